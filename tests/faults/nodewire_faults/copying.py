"""A provider's daemon that commits to what others committed to: its announcer, changed from outside.

It reads everybody's commitments (8854) off the relays and, before its own goes out, puts another node's root of the
same request and chunk in place of its own. A root for which it has found none after an epoch is made up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from nodewire.errors import NodewireError
from nodewire.nostr.nip01 import Filter
from nodewire.protocol import commitment, kinds
from nodewire.protocol.commitment import ChunkRoot
from nodewire.provider.announcing import Announcer


def copy_commitments() -> None:
    """From now on every announcer of this process copies."""
    run, commit = Announcer.run, Announcer._commit

    async def copying_run(self: Any) -> None:
        self._published, self._since = {}, {}
        following = asyncio.create_task(_follow(self))
        try:
            await run(self)
        finally:
            following.cancel()

    async def copying_commit(self: Any, epoch: int) -> int:
        own, ready = list(self._roots), []
        for root in own:
            begun = self._since.setdefault(root.key, epoch)
            if (copied := _copied(self._published, root)) is not None:
                ready.append(copied)
            elif epoch > begun:
                ready.append(root.model_copy(update={"root": secrets.token_hex(32)}))
        waiting = [root for root in own if root.key not in {r.key for r in ready}]
        self._roots = ready
        done = await commit(self, epoch) if ready else -1
        self._roots = [*self._roots, *waiting]
        return done

    _replace(Announcer, run=copying_run, _commit=copying_commit)


def _copied(published: dict[tuple[str, int], str], root: ChunkRoot) -> ChunkRoot | None:
    found = published.get((root.request, root.chunk))
    return None if found is None else root.model_copy(update={"root": found})


async def _follow(announcer: Any) -> None:
    wanted = Filter(kinds=frozenset({kinds.COMMITMENT}))
    async for event in announcer._pool.subscribe([wanted]):
        if event.pubkey == announcer._keys.public:
            continue
        try:
            said = commitment.parse(event).commitment
        except NodewireError:
            continue
        for chunk in said.chunks if said else ():
            announcer._published[chunk.request, chunk.chunk] = chunk.root


def _replace(owner: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        setattr(owner, name, method)
