"""plugin/core, planner and documents in TypeScript, against ours: its tests and random plans of both: `make interop`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop import random_plans

CORE = Path(__file__).parents[2] / "plugin" / "core"
NPM = shutil.which("npm")

if NPM is None or not (CORE / "node_modules").is_dir():
    pytest.skip("npm has not installed what plugin/core needs: `make interop` does", allow_module_level=True)


def test_the_second_planner_gives_the_vectors_and_every_random_plan(tmp_path):
    plans = tmp_path / "plans.jsonl"
    random_plans.write(plans)
    run = subprocess.run(
        [NPM, "test"],
        cwd=CORE,
        env=os.environ | {"NODEWIRE_RANDOM_PLANS": str(plans)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    assert re.search(rf"# {random_plans.NUMBER} cases, of them \d+ plans", run.stdout), run.stdout[-2_000:]
    assert "# skipped 0" in run.stdout
