"""A daemon that is ready leaves the garbage collector little to look at, whatever a peer has it make."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SERVICE = """
import gc, json
from nodewire.cli.daemon.daemons import run_until_stopped
from nodewire.wire import Node; from nodewire.wire.framing import frames

async def start(stack):
    async def looked_at():
        print(json.dumps({"frozen": gc.get_freeze_count(), "left": len(gc.get_objects())}))
    return {"ready": "test", "wait": looked_at()}

run_until_stopped(start, True)
"""


def test_a_daemon_that_is_ready_has_frozen_its_heap() -> None:
    done = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=120, check=True)
    *_, last = done.stdout.splitlines()
    seen = json.loads(last)
    assert seen["frozen"] > 10_000
    assert seen["left"] < seen["frozen"] / 20


AT_EXIT = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count(), file=sys.stderr))  # called last
from nodewire import cli
sys.argv = ["nodewire", "keys", "--help"]
cli.main()
"""
WORKER = """
import gc, sys
from nodewire.kind import Limits; from nodewire.worker.process import serve
serve.warm_up(Limits(2**20))
print(gc.get_freeze_count(), file=sys.stderr)
"""


@pytest.mark.parametrize("code", [AT_EXIT, WORKER], ids=["command", "worker"])
def test_the_collector_does_not_look_at_what_was_imported_when_a_process_ends(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr) > 10_000
