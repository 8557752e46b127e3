"""One generation as its buyer saw it: the ids, the moments they came, what the customer's report says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodewire import Customer, NodewireError
from processes.market import DECODER_DTYPE, Market

PROMPTS = (
    "def read_config(path):\n    ",
    "class Queue:\n    def __init__(self, size):\n        ",
    "import os\nimport sys\n\ndef main():\n    ",
    "def parse(text):\n    lines = text.split(",
    "    def close(self):\n        if self._closed:\n            return\n        ",
    "for name, value in sorted(items):\n    ",
)


@dataclass(slots=True)
class Generated:
    """`asked` and `moments` (of each piece) are monotonic seconds; `said` is `Customer.last`, empty if it failed."""

    prompt: str
    asked: float
    ids: list[int] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def steps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.moments, self.moments[1:], strict=False)]


async def generate(
    customer: Customer,
    model: str,
    prompt: str,
    tokens: int,
    *,
    timeout_s: float,
    on_piece: Callable[[int], None] = lambda count: None,
    **options: Any,
) -> Generated:
    """Buy one greedy generation; what it fails with is in the answer. `on_piece` is told how many pieces have come."""
    done = Generated(prompt, time.monotonic())
    try:
        async with asyncio.timeout(timeout_s):
            pieces = customer.generate(model, prompt, max_tokens=tokens, **options)
            async with contextlib.aclosing(pieces):  # type: ignore[type-var]
                async for piece in pieces:
                    done.moments.append(time.monotonic())
                    done.ids += piece.ids
                    on_piece(len(done.moments))
        done.said = customer.last
        # A product that resumes elsewhere may tell the whole history at the end: its word is what the customer has.
        done.ids = list(done.said.get("ids", done.ids))
    except TimeoutError:
        done.error = f"TimedOut: no end within {timeout_s:.0f} s"
    except NodewireError as error:
        done.error = f"{type(error).__name__}: {error}"
    return done


async def references(
    market: Market, folder: Path, prompts: Sequence[str], tokens: int, *options: str
) -> dict[str, list[int]]:
    """What one process generates alone (`nodewire generate --local` with `options`), by prompt."""
    alone = {}
    for prompt in prompts:
        how = ("--local", str(folder), "--dtype", DECODER_DTYPE, "--max-tokens", str(tokens), *options)
        said = await market.command("generate", prompt, *how)
        alone[prompt] = [int(i) for i in said["ids"]]
    return alone
