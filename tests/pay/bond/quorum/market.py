"""A registrar over HTTP with a clock of its own, and its clients: a provider, a customer, and four oracles."""

from __future__ import annotations

import contextlib
import time

import tests.pay.bond_market as bm
from nodewire.pay.bond.quorum import http
from nodewire.pay.bond.quorum.book import Book
from nodewire.pay.bond.quorum.client import QuorumBondHolder
from nodewire.pay.bond.quorum.registrar import Registrar, RegistrarRules

CLOSING_S = 600
COMMITTEE, ORACLES = bm.committee(verify_share_ppm=0)


def request(**changes):
    return bm.request(committee=COMMITTEE, **changes)


def verdict_of(job, **changes):
    return bm.verdict_of(job, committee=COMMITTEE, **changes)


def convicted(job, culprit, **changes):
    return bm.failed(job, culprit=culprit, committee=COMMITTEE, **changes)


class Clock:
    """The machine's, and so many seconds more."""

    def __init__(self):
        self.ahead_s = 0

    def __call__(self):
        return time.time() + self.ahead_s


class Bonds:
    """`custody(who)` makes a custody for the registrar, or for one of its clients."""

    def __init__(self, folder, custody, *, rules=None):
        self.folder, self.custody, self.clock = folder, custody, Clock()
        self.rules = rules or RegistrarRules(statement_s=60, closing_s=CLOSING_S)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self):
        await self.open()
        return self

    async def open(self):
        """Also after `kill`: a registrar that comes back."""
        self.book = Book(self.folder / "book.db")
        own = self.custody("registrar")
        self.registrar = Registrar(bm.HOLDER, COMMITTEE, own, self.book, self.rules, time_s=self.clock)
        self._runner, self.url = await http.start(self.registrar, "127.0.0.1", 0)
        self._stack.push_async_callback(own.close)

    async def kill(self):
        await self._runner.cleanup()
        self.book.close()

    def client(self, name):
        """One role's holder; what a provider must not lose stands in its own file."""
        holder = QuorumBondHolder(
            self.url, self.custody(name), self.folder / f"{name}.db", committee=COMMITTEE.digest(), time_s=self.clock
        )
        self._stack.push_async_callback(holder.close)
        return holder

    async def cosign(self, oracles=ORACLES, known=lambda key: frozenset()):
        count = 0
        for number, oracle in enumerate(oracles):
            count += await self.client(f"oracle{number}-{time.monotonic_ns()}").cosign(oracle, COMMITTEE, known)
        return count

    async def __aexit__(self, *_):
        await self.kill()
        await self._stack.aclose()
