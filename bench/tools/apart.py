"""A bench's cases in a process of their own, which may die of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHILD = "--child"


class Died(Exception):
    """How the process ended, and the end of what it said of that."""


async def apart(module: str, what: Any, timeout_s: float, env: Mapping[str, str] | None = None) -> Any:
    """What `python -m module --child WHAT` says in its last line, both as JSON; `env` is added to this one's.

    Raises:
        Died: it did not come to its end.
        TimeoutError: not in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, CHILD, json.dumps(what),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    try:
        said, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise Died(f"ended with {process.returncode}: {errors.decode('utf-8', 'replace')[-300:]}")
    return json.loads(said.splitlines()[-1])
