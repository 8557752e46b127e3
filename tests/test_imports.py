"""Who may import whom, and that no daemon loads torch: DESIGN's house rules, checked on the code as it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}
HEAVY = ("torch", "transformers")
IN_THE_WORKER = ("nodewire.worker.process.serve", "nodewire.worker.process.edge_codec")
ENGINE_ROOMS = (
    "nodewire.graph",
    "nodewire.llm",
    "nodewire.training.engine",
    "nodewire.weights",
    *IN_THE_WORKER,
    "nodewire.cli.__main__",
)

IMPORT_ALL = """
import importlib, json, sys
loaded = {}
for name in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(name)
    loaded[name] = sorted({m.partition(".")[0] for m in set(sys.modules) - before})
print(json.dumps(loaded))
"""


def light_modules() -> list[str]:
    """Every module that a daemon may load: all but the engines and the worker entries of kinds."""
    names = []
    for package in ("nodewire", "relay", "kinds", "simnet"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not name.startswith(ENGINE_ROOMS) and not name.endswith(("_worker", "__main__")):
                names.append(name)
    return names


def test_no_daemon_loads_an_engine():
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *light_modules()],
        cwd=ROOT,
        env=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    loaded = json.loads(run.stdout)
    assert {name for name, roots in loaded.items() if set(roots) & set(HEAVY)} == set()


def test_a_command_imports_neither_another_commands_modules_nor_clients_that_it_does_not_use():
    """What `nodewire keys show` and a customer's commands would load for nothing, in each process that starts."""
    shown = (
        "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
        "from nodewire import cli; sys.argv[1:] = ['keys', '--help']; cli.main()"
    )
    keys, customer = (
        set(subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=HERE, capture_output=True, text=True, check=True)
            .stderr.split())
        for code in (shown, "import sys, nodewire.customer.api; print(*sorted(sys.modules), file=sys.stderr)")
    )  # fmt: skip
    assert {name for name in keys if name.startswith("nodewire.cli.")} == {
        "nodewire.cli.commands",
        "nodewire.cli.market",
        "nodewire.cli.market.keys",
        "nodewire.cli.output",
    }
    assert keys.isdisjoint({"aiohttp", "numpy", "requests", "httpx"})
    assert customer.isdisjoint({"requests", "httpx"})


def test_the_contracts_between_the_rooms_hold():
    linter = Path(sys.executable).with_name("lint-imports")
    command = str(linter) if linter.exists() else shutil.which("lint-imports")
    assert command, "import-linter is part of the extra `dev`"
    run = subprocess.run([command, "--no-cache"], cwd=ROOT, env=HERE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
