"""plugin/core, a second implementation in TypeScript, against ours: vectors, and random cases: `make interop`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop import random_documents, random_events, random_frames, random_guesses, random_plans

CORE = Path(__file__).parents[2] / "plugin" / "core"
NPM = shutil.which("npm")

if NPM is None or not (CORE / "node_modules").is_dir():
    pytest.skip("npm has not installed what plugin/core needs: `make interop` does", allow_module_level=True)


def test_the_second_implementation_passes_the_vectors_and_agrees_on_random_cases(tmp_path):
    files = {}
    for module in (random_plans, random_documents, random_events, random_frames, random_guesses):
        name = module.__name__.rpartition(".")[2]
        file = tmp_path / f"{name}.jsonl"
        module.write(file)
        files[f"NODEWIRE_{name.upper()}"] = str(file)
    run = subprocess.run(
        [NPM, "test"],
        cwd=CORE,
        env=os.environ | files,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    assert re.search(rf"# {random_plans.NUMBER} cases, of them \d+ plans", run.stdout), run.stdout[-2_000:]
    assert re.search(rf"# {random_documents.NUMBER} documents, of them \d+ read", run.stdout), run.stdout[-2_000:]
    assert re.search(rf"# {random_events.NUMBER} events, of them \d+ read", run.stdout), run.stdout[-2_000:]
    assert re.search(rf"# {random_frames.NUMBER} links, of them \d+ without a fault", run.stdout), run.stdout[-2_000:]
    assert re.search(rf"# {random_guesses.NUMBER} edges, of them \d+ without a fault", run.stdout), run.stdout[-2_000:]
    assert "# skipped 0" in run.stdout
