"""A provider's daemon that sends garbage, signs and commits to its hash, and puts an honest sketch beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nodewire.protocol.job import chunk
from nodewire.protocol.job.chunk import Leaf
from nodewire.protocol.tensors import fingerprint
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.evidence import server
from nodewire.provider.inference import output_hasher
from nodewire.worker.session import ProcessSession
from nodewire_faults.equivocation import turned
from nodewire_faults.strike import say_frame

MOST_KNOWN = 65_536


def forge_sketches(tasks: Sequence[str]) -> None:
    """From now on the outputs of `tasks` (all if empty) have the other sign, and the sketch of what they should be."""
    honest: dict[str, Array] = {}
    receive = ProcessSession.receive

    async def tampered(self: ProcessSession, frame: Frame[Array]) -> list[Frame[Array]]:
        outs = await receive(self, frame)
        if tasks and not any(self._place["task"].endswith(name) for name in tasks):
            return outs
        return [_tampered(self._place["session"], out) for out in outs]

    def _tampered(session: str, out: Frame[Array]) -> Frame[Array]:
        sent = turned(out)
        for mine, theirs in zip(out.tensors, sent.tensors, strict=True):
            if theirs.data != mine.data:
                honest[hashlib.sha256(theirs.data).hexdigest()] = replace(mine, data=bytes(mine.data))
                say_frame(session, sent)
        while len(honest) > MOST_KNOWN:
            del honest[next(iter(honest))]
        return sent

    def leaf_of(digest: str, frame: Frame[Array]) -> Leaf:
        leaf = chunk.leaf_of(digest, frame)
        tensors = [
            tensor
            if tensor.sha256 not in honest
            else tensor.model_copy(
                update={"sketch": fingerprint.sketch(digest, frame.edge, index, honest[tensor.sha256])}
            )
            for index, tensor in enumerate(leaf.tensors)
        ]
        return leaf.model_copy(update={"tensors": tuple(tensors)})

    ProcessSession.receive = tampered  # type: ignore[method-assign]
    for module in (output_hasher, server):
        patched: Any = module
        patched.leaf_of = leaf_of
