"""Which models a provider that follows demand may go to: those that its operator lists, or all that the market holds.

A model that nobody lists counts if the committee certifies that somebody holds a task of it, or did so lately, and a
relay of this provider's carries its manifest. That is no trust in its author: what is loaded is verified before, its
weights go by hash, and it computes in a locked worker under a cap. A stranger can make others fetch and hold what
nobody buys; so of more models than are looked at, those with the most bond behind them count, and who wants no
strangers' models lists his own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.model import manifest_event

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nodewire.market import Market
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.model.manifest import Manifest

log = logging.getLogger("nodewire.provider")

MAX_MODELS = 64
MAX_READ = 8
"""New manifests an epoch."""
KEPT_EPOCHS = 360
"""For how long a model counts that nobody holds any more."""
AGAIN_EPOCHS = 30
"""After which a listed address is read again, and a manifest is looked for that was not to be had."""
_FETCH_S = 5.0
_MOST_AUTHORS = 8


@dataclass(slots=True)
class Candidate:
    """A manifest, where it is, and the last epoch in which it counted."""

    address: str
    manifest: Manifest
    seen: int


class Candidates:
    """By digest. `but`: digests of what is served whatever the market lacks; `served`: kinds that a package serves."""

    def __init__(
        self, market: Market, pool: Pool, listed: Sequence[str], served: Collection[int], but: Collection[str]
    ) -> None:
        self._market, self._pool = market, pool
        self._listed, self._served, self._but = listed, served, frozenset(but)
        self._known: dict[str, Candidate] = {}
        self._again: dict[str, int] = {}
        """By address or digest, the epoch before which it is not asked for again."""

    async def at(self, epoch: int, snapshot: Snapshot) -> dict[str, Candidate]:
        """Those that count now, by digest."""
        if self._listed:
            await self._read_listed(epoch)
        else:
            await self._read_held(epoch, snapshot)
        return dict(self._known)

    async def _read_listed(self, epoch: int) -> None:
        for address in self._listed:
            if epoch < self._again.get(address, 0):
                continue
            self._again[address] = epoch + AGAIN_EPOCHS
            try:
                manifest = await self._market.manifest(address)
            except NodewireError as error:
                log.warning("%s cannot be followed: %s", address, error)
                self._again[address] = epoch + 1
                continue
            self._known = {one: known for one, known in self._known.items() if known.address != address}
            self._take(address, manifest, epoch)

    async def _read_held(self, epoch: int, snapshot: Snapshot) -> None:
        behind: dict[str, tuple[int, int]] = {}
        for node in snapshot.nodes:
            for held in node.held:
                bond_msat, nodes = behind.get(held.manifest, (0, 0))
                behind[held.manifest] = bond_msat + node.bond_msat, nodes + 1
        counting = sorted(behind.keys() - self._but, key=lambda one: (-behind[one][0], -behind[one][1], one))
        read = 0
        for digest in counting[:MAX_MODELS]:
            if (known := self._known.get(digest)) is not None:
                known.seen = epoch
            elif read < MAX_READ and epoch >= self._again.get(digest, 0):
                read += 1
                self._again[digest] = epoch + AGAIN_EPOCHS
                try:
                    self._take(*await self._found(digest), epoch)
                except NodewireError as error:
                    log.info("manifest %s cannot be followed: %s", digest[:8], error)
        newest = sorted(self._known, key=lambda one: -self._known[one].seen)[:MAX_MODELS]
        self._known = {one: self._known[one] for one in newest if epoch <= self._known[one].seen + KEPT_EPOCHS}
        self._again = {one: until for one, until in self._again.items() if until > epoch}

    def _take(self, address: str, manifest: Manifest, epoch: int) -> None:
        digest = manifest.digest()
        if manifest.kind in self._served and digest not in self._but:
            self._known[digest] = Candidate(address, manifest, epoch)

    async def _found(self, digest: str) -> tuple[str, Manifest]:
        """A manifest by its digest, of whichever author. Raises NotFound, or as the relays."""
        wanted = Filter(kinds=frozenset({kinds.MANIFEST}), tags={"x": frozenset({digest})}, limit=_MOST_AUTHORS)
        for event in (await self._pool.fetch([wanted], timeout_s=_FETCH_S))[:_MOST_AUTHORS]:
            try:
                return manifest_event.address(event), await self._market.manifest(manifest_event.address(event), digest)
            except NodewireError as error:
                log.info("manifest %s by %s: %s", digest[:8], event.pubkey[:8], error)
        raise NotFound("manifest", "no relay has it")
