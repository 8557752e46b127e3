"""Jobs of a generation whose tokens a test gives, one by one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.purchased_job import PurchasedJob
from nodewire.customer.migration.contender import Contender
from nodewire.customer.tokens.token_chunk import Piece
from tests.protocol import documents

CHUNK = 8
TOKENS = list(range(1_000, 1_200))


class Scripted:
    """Stands for a `Purchase`: its outputs are what the test puts."""

    most_units = 8

    def __init__(self, plan=None, ads=None):
        self.timing, self.manifest = JobTimes(), documents.manifest().model_copy(update={"chunk": CHUNK})
        self.plan = plan or documents.plan()
        self.closed = asyncio.Event()
        self.request = SimpleNamespace(id="ab" * 32)
        self.running = SimpleNamespace(request=self.request, drawn=SimpleNamespace(ads=ads or {}))
        self._given = asyncio.Queue()

    def put(self, *given):
        """Token ids, or pieces; an error ends it; None is the end."""
        for one in given:
            self._given.put_nowait(one)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        await asyncio.sleep(0)
        self.closed.set()

    async def paid(self):
        assert self.closed.is_set()

    async def outputs(self):
        while (given := await self._given.get()) is not None:
            if isinstance(given, Exception):
                raise given
            self.timing.output()
            yield given if isinstance(given, Piece) else piece(given)


def piece(token):
    return Piece(str(token), (token,), False, "")


def last(token):
    return Piece(str(token), (token,), True, "stop")


def contender(first=0, *, tokens=100, begun=lambda contender: None, **changes):
    return Contender(PurchasedJob(Scripted(**changes), first), 8, tokens, begun)
