"""Which passes an oracle counts: those of chunks whose verification share came before the draw.

Others gave nobody anything.

Without that, jobs at no price, or of customers who pay no share, would have their provider's work judged by verifiers
and oracles for nothing, and its reputation grow by it. Work that was withheld or is in doubt counts in any case.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.bond.bond_holder import BondHolder, is_share_paid
from nodewire.protocol.job import request

if TYPE_CHECKING:
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.verification.verdict import Verdict

ASKED_AFTER_EPOCHS = (0, 1, 2, 4)
"""A holder that is away is asked again so many epochs later: by the last the verdict is counted, or never."""

_log = logging.getLogger("nodewire.oracle.shares")


class Shares:
    """Asks `holder`; None: there is nobody to ask, and passes are left to the oracles that have one."""

    def __init__(self, committee: Committee, relays: Relays, holder: BondHolder | None) -> None:
        self._committee, self._relays, self._holder = committee, relays, holder

    async def counts(self, said: Verdict) -> bool:
        """Whether what a certified verdict says of the provider may be counted; it may take epochs to know."""
        if said.outcome != "pass" or not self._committee.verify_share_ppm:
            return True
        if self._holder is None:
            return False
        for epochs in ASKED_AFTER_EPOCHS:
            await asyncio.sleep(epochs * self._committee.epoch_ms / 1000)
            try:
                is_paid = await self._is_paid(said, self._holder)
            except (NodewireError, OSError) as error:
                _log.info("share of sample %s: %s", said.key[:8], error)
                continue
            if not is_paid:
                _log.info("sample %s is not counted: its chunk's share had not come when it was drawn", said.key[:8])
            return is_paid
        return False

    async def _is_paid(self, said: Verdict, holder: BondHolder) -> bool:
        events = await self._relays.fetch([Filter(ids=frozenset({said.request}))])
        if not events:
            raise NotFound("request", f"no relay has {said.request[:8]}")
        return await is_share_paid(holder, request.parse(events[0]), said.chunk, said.epoch, self._committee)
