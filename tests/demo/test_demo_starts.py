"""How the demo starts its daemons: an error that may pass is tried again, any other is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
DEMO = Path(__file__).parents[2] / "demo"
BUSY = {"code": "link-lost", "field": "wallet", "reason": "no answer", "retryable": True}
WRONG = {"code": "bad-config", "field": "bond", "reason": "no such holder", "retryable": False}
PROGRAM = """
import json, pathlib, sys
starts = pathlib.Path(sys.argv[1])
number = int(starts.read_text() or 0) if starts.exists() else 0
starts.write_text(str(number + 1))
print(sys.argv[2 + number], flush=True)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What `Market.daemon` says of a program whose starts print these, and how often it was started."""
    monkeypatch.syspath_prepend(str(DEMO))
    import market

    async def start(*documents):
        texts = [json.dumps(document) for document in documents]
        program = [sys.executable, "-c", PROGRAM, str(tmp_path / "starts"), *texts]
        running = market.Market(tmp_path)
        try:
            said = await running.daemon("node", program=program)
        except market.DemoFailure as error:
            said = str(error)
        finally:
            await running.stop()
        return said, int((tmp_path / "starts").read_text())

    return start


async def test_a_daemon_whose_error_may_pass_is_started_again(started):
    ready = {"ready": "node", "public": "ab"}
    assert await started({"error": BUSY}, {"error": BUSY}, ready) == (ready, 3)


async def test_a_daemon_that_cannot_start_says_why(started):
    assert await started({"error": WRONG}) == ("node did not start: bad-config: bond: no such holder", 1)
