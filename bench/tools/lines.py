"""What a bench and a process of its own say to each other: JSON, a line each, over the process's pipes."""

from __future__ import annotations

import asyncio
import json
from typing import Any


async def said(node: asyncio.subprocess.Process, timeout_s: float = 300.0) -> Any:
    """The next line; "nothing" if the process has ended. Raises TimeoutError."""
    assert node.stdout is not None
    return json.loads(await asyncio.wait_for(node.stdout.readline(), timeout_s) or '"nothing"')


async def tell(node: asyncio.subprocess.Process, what: Any) -> None:
    assert node.stdin is not None
    node.stdin.write(json.dumps(what).encode() + b"\n")
    await node.stdin.drain()
