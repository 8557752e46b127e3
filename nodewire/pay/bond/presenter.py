"""Presents certified verdicts to the bonds' holder: bonds answer and verifiers are paid though no customer waits.

The leader of the draw's epoch presents at once, each oracle after it a skew later unless the verdict is settled by
then, and after the oracles the verifiers that it names. With a wallet a node also claims what a verdict gives it, and
pulls what is due to it. Of customers nobody runs a presenter: a refund comes by `--wait`
(`customer/audit/verdict_watcher.py`), after a complaint by `customer/payments/refunds.py`, or by `nodewire bond claim`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, NotAllowed, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.bond.presentation_store import KEPT_EPOCHS, OpenVerdict, PresentationStore
from nodewire.protocol import kinds
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.relays import Relays
    from nodewire.pay.bond.bond_holder import BondHolder, VerdictSettlement
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.verification.verdict import Verdict

LATE_EPOCHS = 16
"""How old a certificate may be that is presented after a restart: so long a bond waits for its verdicts."""
COLLECT_EPOCHS = 16
"""How often what is due is pulled, beside when a verdict gives something."""
_FIRST_S, _LONGEST_S = 1.0, 600.0
_log = logging.getLogger("nodewire.pay.presenting")


class Presenter:
    """One node's; `collects`: whether `holder` pays into a wallet of its own. `await run()` until cancelled.

    An oracle cares for every verdict, any other node for those that name it as a verifier who agreed.
    """

    def __init__(
        self,
        keys: Keys,
        committee: Committee,
        relays: Relays,
        holder: BondHolder,
        presented: PresentationStore,
        *,
        collects: bool,
        time_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys, self._committee, self._digest = keys, committee, committee.digest()
        self._relays, self._holder, self._presented = relays, holder, presented
        self._collects, self._time_s, self._monotonic_s = collects, time_s, monotonic_s
        self._oracles = [oracle.pubkey for oracle in committee.oracles]
        self._again: dict[str, tuple[float, float]] = {}
        """By sample: when it is tried next (monotonic), and the pause after that."""
        self._collects_at = self._cosigns_at = 0.0
        self._is_known = False

    async def run(self) -> None:
        """Raises LinkLost: every relay has ended the subscription; a supervisor starts the oracle again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._present_all())

    async def _listen(self) -> None:
        since = int(self._time_s()) - LATE_EPOCHS * self._committee.epoch_ms // 1000
        tags = {"c": frozenset({self._digest})}
        wanted = Filter(kinds=frozenset({kinds.CERTIFICATE}), authors=frozenset(self._oracles), tags=tags, since=since)
        async for event in self._relays.subscribe([wanted]):
            if (event.tag("n") or "").startswith("verdict/"):
                try:
                    self.certified(event)
                except BadInput as error:
                    _log.info("verdict certificate by %s: %s", event.pubkey[:8], error)
        raise LinkLost("relays", "every relay has ended the subscription")

    def certified(self, event: Event) -> None:
        """Note a verdict's certificate, if this node cares, to be presented. Raises BadInput: it does not hold."""
        one = verdict.parse(event)
        key = one.verdict.key
        if self._presented.knows(key) or not self._cares(one.verdict):
            return
        one.check(self._committee)
        self._presented.certified(key, one.verdict.epoch, event)

    def _cares(self, said: Verdict) -> bool:
        return self._keys.public in self._oracles or (self._keys.public, True) in said.verifiers

    async def _present_all(self) -> None:
        while True:
            await asyncio.sleep(self._committee.skew_ms / 2000)
            await self.present_due()

    async def present_due(self) -> None:
        """Take a step with each verdict whose turn it is, and pull what is due when it is time."""
        now = self._monotonic_s()
        self._presented.forget(self._committee.epoch_at(int(self._time_s() * 1000)) - KEPT_EPOCHS)
        for one in self._presented.open():
            at_s, pause_s = self._again.setdefault(one.sample, (now + self._delay_s(one.epoch), _FIRST_S))
            if at_s > now:
                continue
            try:
                await self._step(one)
                self._again.pop(one.sample, None)
            except NodewireError as error:
                _log.info("the verdict on sample %s is not settled yet: %s", one.sample[:8], error)
                self._again[one.sample] = now + pause_s, min(2 * pause_s, _LONGEST_S)
        await self._cosign()
        if self._collects and now >= self._collects_at:
            self._collects_at = now + COLLECT_EPOCHS * self._committee.epoch_ms / 1000
            await self._collect()

    def _delay_s(self, epoch: int) -> float:
        n, me = len(self._oracles), self._keys.public
        place = (self._oracles.index(me) - epoch) % n if me in self._oracles else n
        return place * self._committee.skew_ms / 1000

    async def _step(self, one: OpenVerdict) -> None:
        """Present a verdict, and claim what it gives this node. Raises what may be tried again."""
        await self._check_holder()
        if one.state == "certified":
            try:
                settled = await self._settled(one)
            except (NotAllowed, BadInput) as error:  # the holder itself says so: nobody's presenting can change that
                _log.warning("the holder refuses the verdict on sample %s: %s", one.sample[:8], error)
                self._presented.mark(one.sample, "done")
                return
            if settled.refused:
                _log.warning("the verdict on sample %s reached no bond: %s", one.sample[:8], settled.refused)
            self._presented.mark(one.sample, "presented")
        else:
            settled = await self._holder.case(one.sample)
        if self._collects and settled.due.get(self._keys.public):
            amount_msat = await self._holder.claim(self._keys, one.sample)
            _log.info("sample %s: %d msat claimed", one.sample[:8], amount_msat)
            self._collects_at = 0.0
        self._presented.mark(one.sample, "done")

    async def _settled(self, one: OpenVerdict) -> VerdictSettlement:
        """What the holder made of the verdict, presented by now."""
        if self._delay_s(one.epoch):
            try:
                return await self._holder.case(one.sample)
            except NotFound:
                pass  # whoever led has not presented it
        request = verdict.parse(one.certificate).verdict.request
        for event in await self._relays.fetch([Filter(ids=frozenset({request}))]):
            if event.id == request:
                settled = await self._holder.present(one.certificate, event)
                _log.info("sample %s: %s, presented", one.sample[:8], settled.outcome)
                return settled
        raise NotFound("request", f"no relay has {request}")

    async def _check_holder(self) -> None:
        """Raises BadConfig: who is asked does not hold the bonds of this committee."""
        if not self._is_known:
            said = await self._holder.holder()
            if said.public not in self._committee.bond_holders or said.committee != self._digest:
                raise BadConfig("bonds.url", "not a bond holder of this committee")
            self._is_known = True

    async def _cosign(self) -> None:
        """As an oracle, sign what closes bonds, where a quorum and no holder has the coins."""
        now = self._monotonic_s()
        if self._keys.public not in self._oracles or now < self._cosigns_at:
            return
        self._cosigns_at = now + self._committee.epoch_ms / 1000
        try:
            await self._check_holder()
            count = await self._holder.cosign(self._keys, self._committee, self._presented.convictions)
            if count:
                _log.info("%d closings of bonds signed", count)
        except NodewireError as error:
            _log.warning("the closings of bonds are not all signed: %s", error)

    async def _collect(self) -> None:
        try:
            await self._check_holder()
            paid = await self._holder.collect(self._keys)
            if paid is not None:
                _log.info("%d msat collected", paid.amount_msat)
        except NodewireError as error:
            _log.info("what is due cannot be pulled now: %s", error)
