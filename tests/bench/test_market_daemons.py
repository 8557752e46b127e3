"""How a market of processes starts its daemons."""

from __future__ import annotations

import sys

import pytest

from processes.market import STARTS, Market

PROGRAM = """
import json, pathlib, sys
file = pathlib.Path(sys.argv[1])
count = len(file.read_text()) if file.exists() else 0
file.write_text("x" * (count + 1))
error = {"code": "timed-out", "retryable": sys.argv[3] == "true"}
print(json.dumps({"error": error} if count < int(sys.argv[2]) else {"ready": "it"}))
"""


@pytest.mark.parametrize(
    ("failures", "retryable", "starts"),
    [(0, "true", 1), (2, "true", 3), (STARTS, "true", STARTS), (1, "false", 1)],
    ids=["at once", "later", "never", "not to be tried again"],
)
async def test_a_daemon_whose_error_may_pass_is_started_again(tmp_path, failures, retryable, starts):
    market, told = Market(tmp_path, providers=0), tmp_path / "starts"
    starting = market.daemon("it", str(told), str(failures), retryable, program=(sys.executable, "-c", PROGRAM))
    if starts > failures:
        assert await starting == {"ready": "it"}
    else:
        with pytest.raises(RuntimeError, match="timed-out"):
            await starting
    assert len(told.read_text()) == starts
    await market.stop()
