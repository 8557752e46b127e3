"""Which model a name stands for: on a terminal its user is told, and asked where it may be several."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from nodewire.cli.output import notes, one_line, price_of_work
from nodewire.config import AnyRole, OracleConfig
from nodewire.errors import Ambiguous
from nodewire.nostr.keys import npub

if TYPE_CHECKING:
    from nodewire.customer.models.names import ModelAt
    from nodewire.market import Market
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool

_LINE_BYTES = 1_024
_BY = {
    "pin": "pinned",
    "follow list": "published by you, or by whom you follow",
    "record": "a stranger's: the only one of that name that providers hold",
    "choice": "as you chose",
}


async def resolved(name: str, finding: Awaitable[ModelAt], *, asks: bool) -> ModelAt:
    """What `finding` finds for a name. With `asks` it is said, and a user at a terminal chooses where that is needed.

    Raises Ambiguous: there is nobody to ask, or nothing was chosen.
    """
    try:
        found = await finding
    except Ambiguous as error:
        if not (asks and sys.stdin.isatty() and notes.is_terminal):
            raise
        found = await _chosen(name, error)
    if asks and found.by in _BY:
        notes.print(f"[dim]{one_line(name)} is {one_line(found.address)} ({_BY[found.by]})[/]", soft_wrap=True)
    return found


async def model_at(role: AnyRole, keys: Keys, pool: Pool, market: Market, text: str, *, asks: bool) -> ModelAt:
    """The model that a role means by `text`; the market must be followed. Raises as `ModelNames.find`."""
    from nodewire.customer.models.names import ModelNames

    pins = {} if isinstance(role, OracleConfig) else role.names
    return await resolved(text, ModelNames(keys.public, pool, market, pins).find(text), asks=asks)


async def _chosen(name: str, error: Ambiguous) -> ModelAt:
    """The candidate whose number somebody types. Raises Ambiguous: an empty line."""
    from nodewire.customer.models.names import ModelAt

    notes.print(f"[bold]{one_line(name)}[/] may be any of these models:", soft_wrap=True)
    notes.print(_table(error.candidates))
    for number, one in enumerate(error.candidates, 1):
        notes.print(f"[dim]{number}  {one_line(one['address'])}[/]", soft_wrap=True)
    while True:
        notes.print(f"Which? 1 to {len(error.candidates)}, or Enter for none: ", end="")
        line = (await _line()).strip()
        if not line:
            raise error
        if line.isascii() and line.isdecimal() and 1 <= int(line[:9]) <= len(error.candidates):
            one = error.candidates[int(line[:9]) - 1]
            pin = f"nodewire models pin {name} {one['address']} --config FILE"
            notes.print(f"[dim]`{one_line(pin)}` has it chosen from now on[/]", soft_wrap=True)
            return ModelAt(one["address"], one["digest"] or None, "choice")


def _table(candidates: tuple[Mapping[str, Any], ...]) -> Table:
    table = Table("", "name", "publisher", "weights", "providers", "price", "", box=None, header_style="bold dim")
    for number, one in enumerate(candidates, 1):
        size = "-" if one["bytes"] is None else f"{one['bytes'] / 1e6:,.1f} MB"
        price = "-" if one["price_msat"] is None else price_of_work(one["price_msat"], one["mode"], one["chunk"])
        who = f"{npub(one['publisher'])[:14]}… {one['standing']}"
        table.add_row(
            str(number), one_line(one["name"]), who, size, str(one["providers"]), price, warning(one, "[yellow]{}[/]")
        )
    return table


def warning(candidate: Mapping[str, Any], style: str = "{}") -> str:
    """What speaks against taking a model for another one, as markup; empty if nothing does."""
    said = []
    if candidate["resembles"]:
        said.append(f"not {candidate['resembles']}, which you know: its name is the same, or looks like it")
    if candidate["fault"]:
        said.append(candidate["fault"])
    return style.format(one_line("; ".join(said))) if said else ""


async def _line() -> str:
    """The next line that is typed; the event loop goes on meanwhile, and a cancellation ends it."""
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    typed: asyncio.Future[None] = loop.create_future()
    loop.add_reader(number, _set, typed)
    try:
        await typed
    finally:
        loop.remove_reader(number)
    return os.read(number, _LINE_BYTES).decode(errors="replace")


def _set(typed: asyncio.Future[None]) -> None:
    if not typed.done():
        typed.set_result(None)
