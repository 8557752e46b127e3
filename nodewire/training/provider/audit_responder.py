"""Customers who want to see some of the work that they have not paid for yet: which run it is of, and its answer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.training.protocol import result, round_close
from nodewire.training.provider.shard_job import ShardRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.kind import Worker
    from nodewire.nostr.event import Event
    from nodewire.nostr.pool import Pool
    from nodewire.training.protocol.audit import AuditRequest
    from nodewire.training.provider.outer_job import OuterRun

log = logging.getLogger("nodewire.provider")


class AuditResponder:
    """Of one provider. `runs` by request, as they come and go; `worker` computes again what no session has any more."""

    def __init__(self, public: str, pool: Pool, runs: Mapping[str, ShardRun | OuterRun], worker: Worker) -> None:
        self._public, self._pool, self._runs, self._worker = public, pool, runs, worker
        self._one = asyncio.Lock()

    def asked_of(self, asked: AuditRequest) -> ShardRun:
        """The run that a question is of.

        Raises:
            NotFound: nothing of that customer waits for its balance.
            Busy: it was asked for too often.

        """
        run = self._runs.get(asked.request)
        if not isinstance(run, ShardRun) or run.job.request.customer != asked.customer:
            raise NotFound("e", "nothing of that customer waits for its balance here")
        run.check_asked()
        return run

    async def reveal(self, run: ShardRun, asked: AuditRequest) -> None:
        """Publish the snapshots that the round's close draws; what is wrong with the question, the customer is told."""
        try:
            closed = round_close.parse(await self._event(asked.close))
            counted = closed.close.find_result(asked.request, self._public)
            if run.committed is None and counted is not None:  # delivered before this provider died
                mine = result.parse(await self._event(counted.result))
                if (mine.provider, mine.request) == (self._public, asked.request):
                    run.committed = mine.commitment
            async with self._one:  # each opens a session of its own, where the worker has closed the shard's
                await run.reveal(asked, closed, self._worker)
        except NodewireError as error:
            log.warning("round %s: snapshots are not shown: %s", asked.request[:8], error)
            await run.refuse(error)

    async def _event(self, id_: str) -> Event:
        """The event with that id. Raises NotFound: no relay has it."""
        found = await self._pool.fetch([Filter(ids=frozenset({id_}))], timeout_s=10.0)
        if not found:
            raise NotFound("event", f"no relay has {id_[:16]}")
        return found[0]
