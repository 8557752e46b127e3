"""What a producer says it sent: its signed word on the frames of one edge in one chunk. nips/20-sent-and-pulls.md.

It travels as a control document {"t": "sent", "sent": [Sent ...]} to the edge's consumer, which keeps it beside the
frames. So nobody can send one thing and commit to another: the consumer is judged on what it was sent, and whose word
differs from what it committed to has equivocated (`settle`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from nodewire.errors import BadFrame, BadInput, BadSignature, TooLarge
from nodewire.nostr.keys import Keys, verify
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Hex64, Name, Schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodewire.protocol.job.chunk import Leaf
    from nodewire.protocol.tensors.frame import Array, Frame, Meta

CONTROL = "sent"
"""The control document's type."""
LACKING = "unsent"
"""The type of the control document by which a consumer asks for statements."""
MAX_OF_A_DOCUMENT = 64
"""Statements in one control document."""
MAX_PACKED_BYTES = 4 * 2**20
"""Of all statements that are shown at once."""

Tensors = tuple[tuple[str, tuple[int, ...], str], ...]
"""dtype, shape and SHA-256 of the raw bytes of each: what a leaf has of them, but for the sketches."""


@dataclass(frozen=True, slots=True)
class HashedFrame:
    """A frame as it is signed: like a leaf without sketches, but with the meta that its consumer reads."""

    seq: int
    tensors: Tensors
    meta: Meta


def hashed(frame: Frame[Array]) -> HashedFrame:
    tensors = tuple((a.dtype, tuple(a.shape), hashlib.sha256(a.data).hexdigest()) for a in frame.tensors)
    return HashedFrame(frame.seq, tensors, frame.meta)


def tensors_of(leaf: Leaf) -> Tensors:
    """What is committed of a frame, to be compared with `HashedFrame.tensors`."""
    return tuple((t.dtype, t.shape, t.sha256) for t in leaf.tensors)


def digest_of(frames: Iterable[HashedFrame]) -> str:
    """What is signed of a chunk's frames, in the order of their numbers; 64 hex digits."""
    listed = [
        [f.seq, [[dtype, list(shape), bytes.fromhex(sha256)] for dtype, shape, sha256 in f.tensors], dict(f.meta)]
        for f in sorted(frames, key=lambda f: f.seq)
    ]
    return canonical.digest("nodewire/sent-frames/1", listed)


class FrameStatement(Schema):
    """`signer` put these frames out on `edge` in `chunk`, as the provider of `task`."""

    TAG: ClassVar[str] = "nodewire/sent/1"
    NAME: ClassVar[str] = "sent"
    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadFrame

    v: Literal[1] = 1
    request: Hex32
    task: Name
    edge: Name
    chunk: Count
    attempt: Count
    """The close's, as in the chunk's commitment."""
    frames: Hex32
    """`digest_of` them."""
    signer: Hex32
    sig: Hex64

    @classmethod
    def sign(cls, keys: Keys, *, request: str, task: str, edge: str, chunk: int, attempt: int, frames: str) -> Self:
        said = {
            "v": 1,
            "request": request,
            "task": task,
            "edge": edge,
            "chunk": chunk,
            "attempt": attempt,
            "frames": frames,
            "signer": keys.public,
        }
        return cls.from_document({**said, "sig": keys.sign(_hash(said)).hex()})

    def check(self) -> None:
        """Check that `signer` signed this; whether it is the edge's producer is for the caller to see.

        Raises:
            BadSignature: it did not.

        """
        said = self.document()
        signature = bytes.fromhex(said.pop("sig"))
        if not verify(self.signer, _hash(said), signature):
            raise BadSignature("sig", "not the producer's")


def controls(said: Sequence[FrameStatement]) -> list[dict[str, Any]]:
    """The control documents that carry statements."""
    parts = [said[i : i + MAX_OF_A_DOCUMENT] for i in range(0, len(said), MAX_OF_A_DOCUMENT)]
    return [{"t": CONTROL, CONTROL: [one.document() for one in part]} for part in parts]


def from_control(document: Mapping[str, Any]) -> tuple[FrameStatement, ...] | None:
    """The statements in a control document; None if it is one of another type. Raises BadFrame, BadVersion."""
    if document.get("t") != CONTROL:
        return None
    listed = document.get(CONTROL)
    if not isinstance(listed, list | tuple) or len(listed) > MAX_OF_A_DOCUMENT:
        raise BadFrame(CONTROL, f"not a list of at most {MAX_OF_A_DOCUMENT} statements")
    return tuple(FrameStatement.from_document(one) for one in listed)


def pack(said: Iterable[FrameStatement]) -> bytes:
    """Statements as they are shown to who judges. Raises TooLarge."""
    packed = canonical.encode([one.document() for one in said])
    if len(packed) > MAX_PACKED_BYTES:
        raise TooLarge(CONTROL, f"{len(packed)} bytes, at most {MAX_PACKED_BYTES}")
    return packed


def unpack(data: bytes) -> tuple[FrameStatement, ...]:
    """Raises BadInput, BadFrame, BadVersion, TooLarge."""
    listed = canonical.decode(data, max_bytes=MAX_PACKED_BYTES)
    if not isinstance(listed, list):
        raise BadFrame(CONTROL, "not a list")
    return tuple(FrameStatement.from_document(one) for one in listed)


@dataclass(frozen=True, slots=True)
class Equivocation:
    """`culprit` signed other frames on `edge` in `chunk` than it committed to."""

    culprit: str
    edge: str
    chunk: int


Settled = Literal["received", "committed", "equivocated", "unknown"]


def settle(
    said: FrameStatement | None, received: Iterable[HashedFrame], committed: Mapping[int, Tensors] | None
) -> Settled:
    """What the consumer of one edge is judged on in one chunk.

    Args:
        said: the producer's word, checked: its signature, and that it is of this edge, chunk and producer.
        received: the frames that the consumer shows.
        committed: the edge's frames by seq in the producer's opening of a certified root; None if there is none.

    "received" those that the consumer shows, for their producer signed them; "committed" the producer's own;
    "equivocated" the producer signed and sent other frames than it committed to; "unknown" neither can be known.

    """
    shown = list(received)
    if said is None or digest_of(shown) != said.frames:
        return "unknown" if committed is None else "committed"
    if committed is not None and committed != {frame.seq: frame.tensors for frame in shown}:
        return "equivocated"
    return "received"


def _hash(said: dict[str, Any]) -> bytes:
    return canonical.tagged_hash(FrameStatement.TAG, canonical.encode(said))
