"""A provider commits to its chunk roots (8854), and sees to it that a certificate holds each.

    a chunk is done            ->  its root is on disk; only then is its payment asked for
    once an epoch              ->  one commitment to all roots that are due, on disk before it is published
    the epoch's certificate    ->  holds the commitment: certified; does not, or there is none: due again

A root stays due until it is certified or its chunk's deadline epoch is over. To commit twice to one root harms nobody:
the first that is certified counts, and both are the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadInput, NodeFailed, NodewireError, NotFound
from nodewire.protocol.committee import commitment as commitments
from nodewire.protocol.committee.commitment import MAX_CHUNKS, ChunkRoot, Commitment
from nodewire.provider.evidence.store import KeptWork, StoredCommitment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.epoch_body import Body
    from nodewire.store.blobs import Blobs

log = logging.getLogger("nodewire.provider")

SHOWN_EPOCHS = 7
"""For how many epochs after one whose certificate may hold a root the work is kept: it is drawn and judged in the six
that follow, and who judges may ask until the last is over."""
LATE_EPOCHS = 2
"""From this many epochs after its own on a certificate that no relay has is taken for one that there will not be."""
_PUBLISH_S = 5.0


class CertifiedMarket(Protocol):
    """What is read of the market (`nodewire.market`)."""

    committee: Committee

    @property
    def committee_digest(self) -> str: ...

    def body_of(self, epoch: int) -> Body | None: ...

    async def find_body(self, epoch: int) -> Body | None: ...

    async def commitment_ids(self, body: Body) -> list[str]: ...


class Committer:
    """`await run()` until cancelled."""

    def __init__(self, keys: Keys, relays: Relays, blobs: Blobs, market: CertifiedMarket, kept: KeptWork) -> None:
        self._keys, self._relays, self._blobs = keys, relays, blobs
        self._market, self._committee, self._kept = market, market.committee, kept
        self._published = -1
        """The epoch of the newest commitment that a relay has taken from this process."""

    async def commit(self, roots: Sequence[ChunkRoot], deadline: int) -> None:
        """Write down roots that epoch `deadline` is the last to certify: whatever happens now, they are published.

        Raises:
            NodeFailed: they cannot be written down.

        """
        await asyncio.to_thread(self._kept.add, roots, deadline)

    async def run(self) -> None:
        """Publish, and follow the certificates, until cancelled."""
        while True:
            epoch = self._committee.epoch_at(int(time.time() * 1000))
            try:
                if epoch >= 0:
                    await self.turn(epoch)
            except NodeFailed as error:  # a full disk may have room again
                log.error("commitments: %s", error)
            await asyncio.sleep(self._committee.beat_ms / 1000)

    async def turn(self, epoch: int) -> None:
        """Do what is to be done now, in `epoch`."""
        for earlier, id_ in await asyncio.to_thread(self._kept.undecided):
            if earlier < epoch:
                await self._decide(earlier, id_, epoch)
        for root, deadline in await asyncio.to_thread(self._kept.give_up, epoch - LATE_EPOCHS + 1):
            log.warning(
                "job %s: no certificate up to epoch %d, its deadline, holds the root of %s, chunk %d. It is never "
                "final: to have claimed payment for it can cost several times the chunk's price of the bond",
                root.request[:8],
                deadline,
                root.task,
                root.chunk,
            )
        if epoch > self._published and (made := await self._made(epoch)) is not None:
            await self._publish(made)

    async def _decide(self, earlier: int, id_: str, epoch: int) -> None:
        """Whether the certificate of an epoch holds its commitment, if that can be known."""
        late = epoch >= earlier + LATE_EPOCHS
        try:
            body = await self._market.find_body(earlier) if late else self._market.body_of(earlier)
            if body is None and not late:
                return
            held = body is not None and id_ in await self._market.commitment_ids(body)
        except (NotFound, BadInput) as error:
            log.info("epoch %d: what its certificate holds is not to be had: %s", earlier, error)
            if not late:
                return
            held = False
        except NodewireError as error:  # no relay answers: nothing is known of that yet, nor could anything be done
            log.info("epoch %d: %s", earlier, error)
            return
        if not held:
            why = "was not certified" if body is None else "does not hold its commitment"
            log.info("epoch %d %s: what it had is published again", earlier, why)
        await asyncio.to_thread(self._kept.decide, earlier, certified=held)

    async def _made(self, epoch: int) -> StoredCommitment | None:
        """The commitment of `epoch`: the one there is, also of an earlier process, or one to all that is due."""
        if (made := await asyncio.to_thread(self._kept.made, epoch)) is not None:
            return made
        roots = await self._due(epoch)
        if not roots:
            return None
        now_s = int(time.time())
        chunks = tuple(sorted(roots, key=lambda root: root.key))
        event, _ = self._event(StoredCommitment(epoch, "", now_s, chunks))
        made = StoredCommitment(epoch, event.id, now_s, chunks)
        until_s = self._committee.close_ms(epoch + SHOWN_EPOCHS) / 1000
        await asyncio.to_thread(self._kept.make, made, until_s)
        return made

    async def _due(self, epoch: int) -> list[ChunkRoot]:
        return await asyncio.to_thread(self._kept.due, epoch, MAX_CHUNKS)

    def _event(self, made: StoredCommitment) -> tuple[Event, bytes | None]:
        document = Commitment(committee=self._market.committee_digest, epoch=made.epoch, chunks=made.roots)
        until_s = self._committee.kept_until_s(made.created_at)
        return commitments.build(self._keys, document, created_at=made.created_at, expires_at_s=until_s)

    async def _publish(self, made: StoredCommitment) -> None:
        event, blob = self._event(made)
        try:
            if blob is not None:
                await self._blobs.put(blob)
            await self._relays.publish(event, _PUBLISH_S)
            self._published = made.epoch
        except NodewireError as error:  # the next turn tries it again
            log.warning("commitment: %s", error)
