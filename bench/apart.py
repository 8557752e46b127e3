"""A bench's cases in a process of their own, which may die of them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

CHILD = "--child"


class Died(Exception):
    """How the process ended, and the end of what it said of that."""


async def apart(module: str, what: Any, timeout_s: float) -> Any:
    """What `python -m module --child WHAT` says, both as JSON.

    Raises:
        Died: it did not come to its end.
        TimeoutError: not in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, CHILD, json.dumps(what),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    try:
        said, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise Died(f"ended with {process.returncode}: {errors.decode()[-300:]}")
    return json.loads(said)
