"""`nodewire provider ...`, which writes what a chunk's metering takes and how long it waits for credit: `python -m
bench.tools.pay_counter provider --config FILE`.

Each chunk is a line of $NODEWIRE_COUNTS/<pid>.pay: `ask MS` of CPU, with its claim's signature, or `wait MS` of time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bench.tools.stepped import stepped
from bench.tools.task_counter import FOLDER
from nodewire.cli import main
from nodewire.provider.inference.chunk_biller import ChunkBiller
from nodewire.provider.inference.credit import Credit

_admit, _ask = Credit.admit, ChunkBiller._ask


def _write(what: str, ms: float) -> None:
    with (Path(os.environ[FOLDER]) / f"{os.getpid()}.pay").open("a") as file:
        file.write(f"{what} {ms:.4f}\n")


async def _asked(self: ChunkBiller, *chunk: Any) -> None:
    """What is free is not metered."""
    is_free = not self._context.request.plan.price_msat(self._context.me)
    await (_ask if is_free else stepped(_ask, lambda ms, _: _write("ask", ms)))(self, *chunk)


async def _timed(self: Credit, chunk: int) -> None:
    began = time.monotonic()
    if self._may(chunk):
        return
    await _admit(self, chunk)
    _write("wait", (time.monotonic() - began) * 1_000)


if __name__ == "__main__":
    setattr(Credit, "admit", _timed)  # noqa: B010 - mypy would not have it assigned
    setattr(ChunkBiller, "_ask", _asked)  # noqa: B010
    main()
