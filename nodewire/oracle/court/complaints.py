"""Complaints about claims without roots: which of them hold, by what certificates say. It decides nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.oracle.court.case import UnfoundedComplaint
from nodewire.protocol.job import request as job
from nodewire.protocol.verification import complaint
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS, ENOUGH_EPOCHS, HEARD_EPOCHS, Complaint
from nodewire.verify.finality import certificates, final_roots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.kind import Clock
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.job.request import Request

LOOKED_EPOCHS = 4
"""How long after its last epoch a complaint is looked into, if something is not to be had at first."""
MAX_OF_ONE = 64
"""Complaints about one node: those about the largest claims, so that small ones do not hide them."""
MAX_ACCUSED = 4_096
MAX_UNREAD = 1_024
"""Complaints that are kept while it is not known yet who has a bond."""
BONDED_EPOCHS = 32
"""Who had a bond so many epochs ago can be complained about: it has not been paid out since."""
_log = logging.getLogger("nodewire.oracle.complaints")


class Complaints:
    """`holds` is told of each complaint that does. `await run()` until cancelled.

    Only who has a bond, or had one lately, is complained about: there is nothing to take of others. `snapshots`: by
    epoch the SHA-256 of those that are known.
    """

    def __init__(
        self,
        market: Market,
        relays: Relays,
        clock: Clock,
        snapshots: Callable[[], Mapping[int, str]],
        holds: Callable[[UnfoundedComplaint], None],
    ) -> None:
        self._market, self._relays, self._clock = market, relays, clock
        self._committee, self._digest = market.committee, market.committee.digest()
        self._snapshots, self._holds = snapshots, holds
        self._bonded: dict[str, int] = {}
        """By node: the newest epoch in whose snapshot it had a bond."""
        self._read = -1
        self._open: dict[str, dict[str, Complaint]] = {}
        """By the accused and the case's key."""

    def add(self, event: Event) -> None:
        """Raises BadInput: it is malformed, or too old to be looked into."""
        one = complaint.parse(event)
        if one.committee != self._digest:
            raise BadInput("c", "another committee's")
        epoch, last = self._epoch(), one.last_epoch(self._committee)
        if not last - CLAIMED_EPOCHS - 1 <= epoch <= last + LOOKED_EPOCHS:
            raise BadInput("created_at", f"the complaint is of epoch {last - CLAIMED_EPOCHS}, this is {epoch}")
        if (claimed := self._claimed(one)) < last - CLAIMED_EPOCHS - HEARD_EPOCHS:
            raise BadInput("created_at", f"the claim is of epoch {claimed}, over {HEARD_EPOCHS} before the complaint")
        if self._read >= 0 and one.provider not in self._bonded:
            raise BadInput("p", "the accused has no bond")
        if one.provider not in self._open and len(self._open) >= MAX_ACCUSED:
            raise BadInput("p", f"{MAX_ACCUSED} nodes are accused already")
        if self._read < 0 and sum(map(len, self._open.values())) >= MAX_UNREAD:
            raise BadInput("p", "it is not known yet who has a bond, and many are accused")
        of_one = self._open.setdefault(one.provider, {})
        if one.key in of_one and of_one[one.key].created_at <= one.created_at:
            return  # votes are about one and the same
        of_one[one.key] = one
        if len(of_one) > MAX_OF_ONE:
            del of_one[min(of_one, key=lambda key: (of_one[key].due.amount_msat, key))]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._committee.epoch_ms / 2000)
            await self.look()

    async def look(self) -> None:
        """Look into every complaint whose time has come: when its last epoch's round is over."""
        await self._read_bonds()
        if self._read >= 0:  # what came before anything was read
            self._open = {accused: of_one for accused, of_one in self._open.items() if accused in self._bonded}
        due = [
            one
            for of_one in self._open.values()
            for one in of_one.values()
            if self._epoch() >= one.last_epoch(self._committee) + 2
        ]
        for one in sorted(due, key=lambda one: -one.due.amount_msat):
            if one.provider in self._bonded:
                try:
                    await self._look(one)
                except BadInput as error:
                    _log.info("complaint about %s: %s", one.provider[:8], error)
                except NodewireError as error:
                    _log.info("complaint about %s cannot be looked into: %s", one.provider[:8], error)
                    if self._epoch() <= one.last_epoch(self._committee) + LOOKED_EPOCHS:
                        continue
            self._forget(one)

    async def _look(self, one: Complaint) -> None:
        """Tell of it if it holds.

        Raises:
            BadInput: it does not.
            NotFound, LinkLost, TimedOut: something that it needs is not to be had.

        """
        request = await self._request(one)
        plan, last = request.plan, one.last_epoch(self._committee)
        task = next((a.task for a in plan.tasks if a.provider == one.provider), None)
        if request.customer != one.customer or plan.committee != self._digest or task is None:
            raise BadInput("e", "not the customer's own job of this committee, or the accused has no part in it")
        if plan.verification.policy != "sampled":
            raise BadInput("policy", "the job's customer had nothing sampled")
        spans = [range(first, first + CLAIMED_EPOCHS + 1) for first in (self._claimed(one), last - CLAIMED_EPOCHS)]
        also = {epoch for span in spans for epoch in span}
        finality = await final_roots(request.id, plan, self._market, self._relays, also=also)
        if finality.unread:
            raise NotFound("epochs", f"what {len(finality.unread)} of them certify is not to be had")
        held = finality.claimed(plan, one.provider, one.due.chunk, one.due.attempt, one.due.root)
        if held is not None and held.epoch <= last:
            raise BadInput("root", f"certified in epoch {held.epoch}")
        certified = await certificates(self._relays, self._committee, also)
        if (few := min(sum(epoch in certified for epoch in span[1:]) for span in spans)) < ENOUGH_EPOCHS:
            raise BadInput("epochs", f"only {few} were certified in which the roots could have been")
        _log.warning("%s claimed chunk %d and committed to nothing", one.provider[:8], one.due.chunk)
        self._holds(UnfoundedComplaint(one, last, task))

    async def _request(self, one: Complaint) -> Request:
        for event in await self._relays.fetch([Filter(ids=frozenset({one.request}))]):
            if event.id == one.request:
                return job.parse(event)
        raise NotFound("request", f"no relay has {one.request[:8]}")

    async def _read_bonds(self) -> None:
        for epoch, sha256 in sorted(self._snapshots().items()):
            if epoch <= self._read:
                continue
            try:
                nodes = (await self._market.snapshot(sha256)).nodes
            except NodewireError as error:
                _log.info("who had a bond in epoch %d: %s", epoch, error)
                continue
            self._bonded |= {node.pubkey: epoch for node in nodes if self._committee.is_bond(node.bond_msat)}
            self._read = epoch
        oldest = self._read - BONDED_EPOCHS
        self._bonded = {pubkey: epoch for pubkey, epoch in self._bonded.items() if epoch >= oldest}

    def _forget(self, one: Complaint) -> None:
        of_one = self._open[one.provider]
        of_one.pop(one.key, None)
        if not of_one:
            del self._open[one.provider]

    def _claimed(self, one: Complaint) -> int:
        """The epoch that the claim is dated in."""
        return self._committee.epoch_at(one.claim.created_at * 1000)

    def _epoch(self) -> int:
        return self._committee.epoch_at(int(self._clock.time_s() * 1000))
