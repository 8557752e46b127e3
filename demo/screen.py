"""What the demo prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine

from rich.console import Console

out = Console(highlight=False)
STARTED = time.monotonic()


def step(text: str) -> None:
    """A part of the story begins; so long after the start."""
    minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
    out.print(f"[bold cyan]»[/] [dim]{minutes}:{seconds:02}[/]  {text}", soft_wrap=True)


def note(text: str) -> None:
    out.print(f"  [dim]{text}[/]", soft_wrap=True)


class Progress:
    """Says how many of `total` are there, as each comes."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self.total, self._came = what, total, 0

    async def after(self, coming: Coroutine[None, None, dict]) -> dict:
        came = await coming
        self._came += 1
        note(f"{self._what} {self._came} of {self.total} ready")
        return came


async def saying(coming: Coroutine[None, None, dict], say: Callable[[dict], str]) -> dict:
    came = await coming
    note(say(came))
    return came


def sats(msat: int) -> str:
    return f"{msat / 1000:,.3f} sat"
