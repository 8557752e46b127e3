"""What one node of a job puts out, by edge and chunk, and its signed word on it. nips/20-sent-and-pulls.md."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadFrame, NodewireError, NotAllowed
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.verification.statement import (
    LACKING,
    MAX_OF_A_DOCUMENT,
    FrameStatement,
    HashedFrame,
    controls,
    digest_of,
)

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

ASK_S = 0.5
"""After how long a consumer asks for what it lacks: it was not in the job yet when that was told."""

Tell = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Sends a control document to a node of the job."""

_log = logging.getLogger("nodewire.wire")


async def tell(control: Tell, peer: str, said: Sequence[FrameStatement]) -> None:
    """Tell statements to who they are for. One that cannot be reached asks again for what it lacks."""
    try:
        for document in controls(said):
            await control(peer, document)
    except NodewireError as error:  # what ended the job is told to the work itself
        _log.info("statements for %s: %s", peer[:8], error)


class OutputSigner:
    """`consumer` says where an edge leads, the public key of another node that is to have this one's word."""

    def __init__(
        self,
        keys: Keys,
        request: str,
        manifest: Manifest,
        consumer: Callable[[Edge], str | None],
    ) -> None:
        self._keys = keys
        self._request = request
        self._edges = {edge.name: edge for edge in manifest.edges}
        self._consumer = consumer
        self._out: dict[tuple[str, int], list[HashedFrame]] = {}
        """What is not signed."""
        self._signed: dict[str, dict[int, FrameStatement]] = {}
        self._answered: dict[tuple[str, str], float] = {}
        """When a consumer was last told again of an edge."""

    def produced(self, chunk: int, edge: str, frame: HashedFrame) -> None:
        """An output; those to the customer, and to this node itself, are not signed."""
        if self._edges[edge].target != CUSTOMER and self._consumer(self._edges[edge]) not in (None, self._keys.public):
            self._out.setdefault((edge, chunk), []).append(frame)

    def sign(self, chunk: int) -> dict[str, list[FrameStatement]]:
        """Statements on what has been put out of a chunk and not signed, by the consumer that each is for."""
        told: dict[str, list[FrameStatement]] = {}
        for name in [name for name, number in self._out if number == chunk]:
            consumer = self._consumer(self._edges[name])
            assert consumer is not None
            said = self._word(name, chunk, self._out.pop((name, chunk)))
            self._signed.setdefault(name, {})[chunk] = said
            told.setdefault(consumer, []).append(said)
        return told

    def _word(self, edge: str, chunk: int, frames: list[HashedFrame]) -> FrameStatement:
        return FrameStatement.sign(
            self._keys,
            request=self._request,
            task=self._edges[edge].source,
            edge=edge,
            chunk=chunk,
            attempt=0,
            frames=digest_of(frames),
        )

    def again(self, peer: str, edge: object, first: object) -> list[FrameStatement]:
        """What was signed of an edge that leads to `peer`, from chunk `first` on, as much as a document holds.

        Raises:
            BadFrame: malformed.
            NotAllowed: the edge does not lead from here to there, or it was asked for a moment ago.

        """
        if not isinstance(edge, str) or type(first) is not int:
            raise BadFrame(LACKING, "not {edge, first}")
        if edge not in self._edges or peer != self._consumer(self._edges[edge]):
            raise NotAllowed("edge", f"{edge[:64]} does not lead to {peer[:8]}")
        if time.monotonic() < self._answered.get((peer, edge), 0.0) + ASK_S / 2:
            raise NotAllowed("edge", f"{peer[:8]} asks too often for {edge}")
        self._answered[peer, edge] = time.monotonic()
        signed = self._signed.get(edge, {})
        return [signed[chunk] for chunk in sorted(signed) if chunk >= first][:MAX_OF_A_DOCUMENT]
