"""Who was drawn to verify work of this provider: oracles publish it, and for some epochs it entitles to the inputs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadInput
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.relays import Relays
    from nodewire.protocol.committee.committee import Committee

OPEN_EPOCHS = 6
"""A grant ends this many epochs after its draw."""
MAX_KEPT = 1_024

_MAX_EVENTS = 256


class Grants:
    """Reads kind 8844 of the committee's oracles, when somebody asks to be shown something.

    An oracle could publish samples that no beacon drew; but what a verifier is shown, every oracle may see anyway.
    """

    def __init__(self, relays: Relays, committee: Committee, clock_s: Callable[[], float] = time.time) -> None:
        self._relays, self._committee, self._clock_s = relays, committee, clock_s
        self._oracles = frozenset(oracle.pubkey for oracle in committee.oracles)
        self._digest = committee.digest()
        self._kept = BoundedDict[tuple[str, str], tuple[float, dict[Sample, int]]](MAX_KEPT)

    async def find_samples(self, peer: str, request: str) -> tuple[Sample, ...]:
        """The samples of the job that `peer` was drawn to verify and still may.

        Raises:
            LinkLost: no relay can be asked.

        """
        at, samples = self._kept.get((peer, request), (float("-inf"), {}))
        if self._clock_s() > at + self._committee.epoch_ms / 4000:
            samples = await self._read(peer, request)
            self._kept[peer, request] = self._clock_s(), samples
        now = self._committee.epoch_at(int(self._clock_s() * 1000))
        return tuple(sample for sample, epoch in samples.items() if now - OPEN_EPOCHS <= epoch <= now)

    async def _read(self, peer: str, request: str) -> dict[Sample, int]:
        wanted = Filter(
            kinds=frozenset({kinds.VERIFICATION}),
            authors=self._oracles,
            tags={"e": frozenset({request}), "p": frozenset({peer})},
            limit=_MAX_EVENTS,
        )
        found: dict[Sample, int] = {}
        for event in await self._relays.fetch([wanted]):
            try:
                sampled = verification.parse(event)
            except BadInput:
                continue
            if event.pubkey in self._oracles and (sampled.committee, sampled.request) == (self._digest, request):
                found |= {sample: sampled.epoch for sample in sampled.samples if peer in sample.verifiers}
        return found
