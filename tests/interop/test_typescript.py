"""plugin/core, planner and documents in TypeScript, against ours: vectors, and random ones of both: `make interop`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop import random_documents, random_plans

CORE = Path(__file__).parents[2] / "plugin" / "core"
NPM = shutil.which("npm")

if NPM is None or not (CORE / "node_modules").is_dir():
    pytest.skip("npm has not installed what plugin/core needs: `make interop` does", allow_module_level=True)


def test_the_second_implementation_passes_the_vectors_and_agrees_on_random_plans_and_documents(tmp_path):
    plans, documents = tmp_path / "plans.jsonl", tmp_path / "documents.jsonl"
    random_plans.write(plans)
    random_documents.write(documents)
    run = subprocess.run(
        [NPM, "test"],
        cwd=CORE,
        env=os.environ | {"NODEWIRE_RANDOM_PLANS": str(plans), "NODEWIRE_RANDOM_DOCUMENTS": str(documents)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    assert re.search(rf"# {random_plans.NUMBER} cases, of them \d+ plans", run.stdout), run.stdout[-2_000:]
    assert re.search(rf"# {random_documents.NUMBER} documents, of them \d+ read", run.stdout), run.stdout[-2_000:]
    assert "# skipped 0" in run.stdout
