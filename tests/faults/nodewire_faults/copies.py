"""A provider's daemon that commits to what others committed to: its commitments, changed from outside.

It reads everybody's commitments (8854) off the relays and, before its own goes out, puts another node's root of the
same request and chunk in place of its own. A root for which it has found none after an epoch is made up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from nodewire.errors import NodewireError
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.provider.evidence.committer import Committer


def copy_commitments() -> None:
    """From now on everything that this process commits to is copied."""
    run, due = Committer.run, Committer._due

    async def copying_run(self: Any) -> None:
        self._seen, self._since = {}, {}
        following = asyncio.create_task(_follow(self))
        try:
            await run(self)
        finally:
            following.cancel()

    async def copying_due(self: Any, epoch: int) -> list[ChunkRoot]:
        ready = []
        for root in await due(self, epoch):
            begun = self._since.setdefault(root.key, epoch)
            if (copied := _copied(self._seen, root)) is not None:
                ready.append(copied)
            elif epoch > begun:
                ready.append(root.model_copy(update={"root": secrets.token_hex(32)}))
        return ready

    _replace(Committer, run=copying_run, _due=copying_due)


def _copied(seen: dict[tuple[str, int], str], root: ChunkRoot) -> ChunkRoot | None:
    found = seen.get((root.request, root.chunk))
    return None if found is None else root.model_copy(update={"root": found})


async def _follow(committing: Any) -> None:
    wanted = Filter(kinds=frozenset({kinds.COMMITMENT}))
    async for event in committing._relays.subscribe([wanted]):
        if event.pubkey == committing._keys.public:
            continue
        try:
            said = commitment.parse(event).commitment
        except NodewireError:
            continue
        for chunk in said.chunks if said else ():
            committing._seen[chunk.request, chunk.chunk] = chunk.root


def _replace(owner: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        setattr(owner, name, method)
