"""A daemon that is ready leaves the garbage collector little to look at, whatever a peer has it make."""

from __future__ import annotations

import json
import subprocess
import sys

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
