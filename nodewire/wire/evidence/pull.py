"""Kept frames and openings, asked for over the wire: a verifier's inputs and a provider's evidence.

    puller                                                      holder
       |--- CONTROL {"t": "pull", "job", "want", "nonce", "limit"} ->|  may this key have this?
       |<-- CONTROL {"t": "error", "job", "attempt": 0, "error"} ----|  no; or
       |<== frames 0, 1, ... on the edge "pull" of job ==============|  within the puller's window, the last with `end`

A pull is a short job between two keys: it has the wire's windows, caps and typed errors. `job` is H("nodewire/pull/1",
canonical [want, puller, holder, nonce]): a puller cannot take the id of a job that is no pull. A kept frame travels as
two byte arrays: its record (as the spool has it: attempt, seq, types, meta) and its tensors' raw bytes, with `edge` in
the frame's meta. A document travels as one byte array, `document` in the meta.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from nodewire.errors import BadFrame, BadInput, Busy, NodewireError, NotAllowed, TimedOut, TooLarge
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Name, Schema
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire.framing import frames
from nodewire.wire.framing.frames import MAX_FRAME_BYTES, MAX_HEADER_BYTES, Document
from nodewire.wire.job.channel_spec import JobChannelSpec
from nodewire.wire.job.mailbox import ERROR, JobMailbox, Route

if TYPE_CHECKING:
    from nodewire.wire.link.link import Link

PULL = "pull"
"""The control document's type, and the name of the one edge of a pull."""
MAX_PULLS = 16
MAX_PULLS_OF_A_PEER = 2
FRAME_BYTES = 16 * 2**20
DOCUMENT_BYTES = 4 * 2**20
PULL_BYTES = 2**30
PATIENCE_S = 30.0
"""For the holder's decision, and between frames on either side."""
MAX_PULL_S = 600.0

_NONCE_BYTES = 16
_log = logging.getLogger("nodewire.wire")


class Want(Schema):
    """What is asked for, of a task's chunks first to last.

    It is kept frames, a commitment's opening, the job's ticket, or what was signed of its inputs
    (`protocol.verification.statement.pack`).
    """

    TAG: ClassVar[str] = "nodewire/pull/1"
    MAX_BYTES: ClassVar[int] = 8_192
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    what: Literal["frames", "opening", "ticket", "sent"]
    request: Hex32
    task: Name
    """Whose chunks they are: frames are its inputs unless `edges` says otherwise."""
    edges: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    attempt: Count
    first: Count
    """Chunk."""
    last: Count
    epoch: Count = 0
    """Of the draw that entitles the puller, if one does."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Want:
        if self.last < self.first:
            raise ValueError("last: before first")
        return self


Answer = Iterator[tuple[int, Frame[Array]]] | bytes
"""(attempt, frame) of what is kept, in order per edge; or a document's bytes."""
Holder = Callable[[str, Want], Awaitable[Answer]]
"""Given the puller's proven key. Raises NotAllowed, NotFound or another NodewireError, which the puller is told."""


class Exchange(Protocol):
    """The node as pulls see it."""

    public: str

    async def link(self, public: str, addresses: Sequence[str]) -> Link: ...

    def open_link(self, peer: str) -> Link | None: ...

    def open_job(self, channel: JobChannelSpec) -> JobMailbox: ...


async def pull(
    node: Exchange,
    peer: str,
    addresses: Sequence[str],
    want: Want,
    *,
    max_bytes: int = PULL_BYTES,
    max_frame_bytes: int = FRAME_BYTES,
    patience_s: float = PATIENCE_S,
) -> AsyncGenerator[tuple[int, Frame[Array]]]:
    """(attempt, frame) of what `peer` keeps, one after another; who stops early closes the generator.

    At most max(16 MiB, 2 * max_frame_bytes) wait here to be taken. What comes is checked for its form only.

    Raises:
        NotAllowed, NotFound, Busy: the holder's refusal.
        TooLarge: more than `max_bytes` came.
        BadFrame: something else than frames of the edges that were asked for, or one above its limit.
        TimedOut: nothing came for `patience_s`.
        LinkLost, BadPeer ...: as Node.link; also if the link ends in the middle.

    """
    total = 0
    async for frame in _answers(node, peer, addresses, want, max_frame_bytes, patience_s):
        attempt, pulled = _unwrap(frame)
        if want.edges and pulled.edge not in want.edges:
            raise BadFrame("edge", f"{pulled.edge} was not asked for")
        total += frame.tensors[1].nbytes
        if total > max_bytes:
            raise TooLarge(PULL, f"more than {max_bytes} bytes")
        yield attempt, pulled


async def pull_document(
    node: Exchange,
    peer: str,
    addresses: Sequence[str],
    want: Want,
    *,
    max_bytes: int = DOCUMENT_BYTES,
    patience_s: float = PATIENCE_S,
) -> bytes:
    """The document that `peer` keeps. Raises as `pull`."""
    async for frame in _answers(node, peer, addresses, want, max_bytes, patience_s):
        if frame.meta.get("document") is not True or len(frame.tensors) != 1:
            break
        return bytes(frame.tensors[0].data)
    raise BadFrame("document", "something else came")


class Pulls:
    """The holder's side: decides by `holder`, sends a few answers at a time, and to `judges` beside all the others."""

    def __init__(self, node: Exchange, holder: Holder | None, judges: Collection[str] = ()) -> None:
        self._node = node
        self._holder = holder
        self._judges = frozenset(judges)
        self._under_way: Counter[str] = Counter()

    async def asked(self, peer: str, document: Document) -> None:
        """Answer a `pull` document from `peer`."""
        job = document.get("job")
        if not isinstance(job, str) or len(job) != 64:
            return
        try:
            if self._holder is None:
                raise NotAllowed(PULL, "nothing is kept here")
            others = sum(count for other, count in self._under_way.items() if other not in self._judges)
            is_full = others >= MAX_PULLS and peer not in self._judges
            if is_full or self._under_way[peer] >= MAX_PULLS_OF_A_PEER:
                raise Busy(PULL, f"{MAX_PULLS_OF_A_PEER} of a peer, {MAX_PULLS} in all are under way")
            want, limit = self._parse(peer, job, document)
            self._under_way[peer] += 1
            try:
                await self._answer(peer, job, want, limit, self._holder)
            finally:
                self._under_way -= Counter({peer: 1})
        except NodewireError as error:
            _log.debug("pull by %s refused: %s", peer[:8], error)  # anybody may ask, as often as it likes
            link = self._node.open_link(peer)
            if link is not None:
                link.send_control({"t": ERROR, "job": job, "attempt": 0, "error": error.as_dict()})

    def _parse(self, peer: str, job: str, document: Document) -> tuple[Want, int]:
        nonce, limit = document.get("nonce"), document.get("limit")
        if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
            raise BadInput("nonce", f"not {_NONCE_BYTES} bytes")
        if type(limit) is not int or not 0 < limit <= MAX_FRAME_BYTES:
            raise BadInput("limit", "not a frame's size")
        want = Want.from_document(document.get("want"))
        if job != _job(want, peer, self._node.public, nonce):
            raise BadInput("job", "not the name of this pull")
        return want, limit

    async def _answer(self, peer: str, job: str, want: Want, limit: int, holder: Holder) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await holder(peer, want)
        except TimeoutError:
            raise TimedOut(PULL, "no decision") from None
        mailbox = self._node.open_job(JobChannelSpec(job, {PULL: Route(self._node.public, peer)}, limits={PULL: limit}))
        try:
            async with asyncio.timeout(MAX_PULL_S):
                for frame in _wrap(answer):
                    async with asyncio.timeout(PATIENCE_S):
                        await mailbox.put(frame)
                    await asyncio.sleep(0)  # reading disks and filling sockets: others get their turn
        except TimeoutError:
            raise TimedOut(PULL, "not taken in time") from None
        finally:
            mailbox.close()
            if isinstance(answer, Generator):
                answer.close()


async def _answers(
    node: Exchange, peer: str, addresses: Sequence[str], want: Want, limit: int, patience_s: float
) -> AsyncGenerator[Frame[Array]]:
    """The frames of a pull but for a last one that is empty."""
    link = await node.link(peer, addresses)
    nonce = os.urandom(_NONCE_BYTES)
    job = _job(want, node.public, peer, nonce)
    limit = min(limit + MAX_HEADER_BYTES, MAX_FRAME_BYTES)
    mailbox = node.open_job(JobChannelSpec(job, {PULL: Route(peer, node.public)}, limits={PULL: limit}))
    ended = False
    try:
        link.send_control({"t": PULL, "job": job, "want": want.document(), "nonce": nonce, "limit": limit})
        while not ended:
            try:
                async with asyncio.timeout(patience_s):
                    frame = await mailbox.get()
            except TimeoutError:
                raise TimedOut(PULL, f"nothing came for {patience_s:g} s") from None
            ended = frame.meta.get("end") is True
            if frame.tensors:
                yield frame
    finally:
        if not ended:
            mailbox.cancel(NotAllowed(PULL, "given up"))
        mailbox.close()


def _job(want: Want, puller: str, holder: str, nonce: bytes) -> str:
    return canonical.digest(Want.TAG, [want.document(), puller, holder, nonce])


def _wrap(answer: Answer) -> Iterator[Frame[Array]]:
    if isinstance(answer, bytes):
        yield Frame(PULL, 0, (_bytes(answer),), {"document": True, "end": True})
        return
    seq = 0
    for attempt, frame in answer:
        record = frames.pack_record(attempt, frame.seq, frame.tensors, frame.meta)
        raw = b"".join(array.data for array in frame.tensors)
        yield Frame(PULL, seq, (_bytes(record), _bytes(raw)), {"edge": frame.edge})
        seq += 1
    yield Frame(PULL, seq, (), {"end": True})


def _unwrap(frame: Frame[Array]) -> tuple[int, Frame[Array]]:
    edge = frame.meta.get("edge")
    if not isinstance(edge, str) or not 0 < len(edge) <= 64 or len(frame.tensors) != 2:
        raise BadFrame(PULL, "not a kept frame")
    record, raw = frame.tensors
    header = frames.unpack_record(memoryview(record.data))
    if header.nbytes != raw.nbytes:
        raise BadFrame(PULL, f"{raw.nbytes} bytes came for a frame of {header.nbytes}")
    return header.attempt, Frame(edge, header.seq, header.arrays(memoryview(raw.data)), header.meta)


def _bytes(data: bytes) -> Array:
    return Array("uint8", (len(data),), data)
