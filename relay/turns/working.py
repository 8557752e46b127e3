"""The prices of a client's requests, in units of about 100 microseconds of a core.

An address that has spent its budget is not refused: its next message is read when its debt is paid. So a flood costs
the relay no more than the budget, and nobody else anything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.core.budget import Budget
    from relay.counting import Counts

ACCEPT = 2.0
CONNECTION = 50.0
"""A websocket. Opening one costs less: the rest is its price, since handshakes come in crowds."""
MESSAGE = 1.0
BAD_SIGNATURE = 10.0
"""Checking one costs less: the rest is its price."""
_BYTES = 2_048
_STEPS = 2_000
_DELIVERIES = 10
_STORED = 0.3
_SENT_BYTES = 65_536
_DOWNLOADED_BYTES = 262_144
_TAGS, _DELETIONS = 8, 5
_VALUES = 40
UPLOAD = 5.0
"""Of a blob, however small: its token is checked, its file and its row are brought to the disk."""
GLANCE = 2.0
"""A request about blobs that brings and takes none."""
LONGEST_S = 10.0
"""A client that is not read for longer would miss the relay's ping."""


def of_message(size: int) -> float:
    """The price of reading a message of so many bytes, and of checking and storing the event in it."""
    return MESSAGE + size / _BYTES


def of_tags(count: int) -> float:
    """The price of so many index entries of an event."""
    return count / _TAGS


def of_deletions(count: int) -> float:
    """The price of looking for so many events that a deletion names, and of remembering them."""
    return count / _DELETIONS


def of_values(count: int) -> float:
    """The price of holding filters with so many values against what comes."""
    return count / _VALUES


def of_query(steps: int) -> float:
    """The price of so many steps of SQLite's virtual machine."""
    return steps / _STEPS


def of_answer(count: int, size: int) -> float:
    """The price of sending so many stored events, of so many characters together."""
    return count * _STORED + size / _SENT_BYTES


def of_download(nbytes: int) -> float:
    """The price of reading so much of a file, and of handing it to the kernel."""
    return nbytes / _DOWNLOADED_BYTES


def of_deliveries(count: int) -> float:
    """The price of passing an event on to so many subscriptions; its sender pays."""
    return count / _DELIVERIES


async def pay(budget: Budget, origin: str, amount: float, counts: Counts) -> None:
    """Charge `origin`, and wait until it is out of debt."""
    debt_s = min(budget.charge(origin, amount), LONGEST_S)
    if debt_s:
        counts.waited_s += debt_s
        await asyncio.sleep(debt_s)
