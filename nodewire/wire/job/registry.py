"""The jobs that are open on a node, as its links see them.

It knows whose frames may come, what waits, and whose further frames are not read.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import Busy, LinkLost, NodewireError, NotAllowed, NotFound
from nodewire.net.origin_turns import Turns
from nodewire.net.rate_limits import stray_bytes
from nodewire.wire.framing.buffer_pool import Memory
from nodewire.wire.framing.decoder import FrameMemory
from nodewire.wire.job.early_frames import Early
from nodewire.wire.job.mailbox import ERROR, Exchange, JobMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.wire.framing.frames import DataHeader, Document
    from nodewire.wire.job.channel_spec import JobChannelSpec
    from nodewire.wire.link.link import Link

_MAX_FENCES = 4_096
_MAX_OVER = 4_096
_REFUSAL_BYTES = 16_384
"""What a refusal takes of a link's allowance besides the frame: it is written out, and takes as long as four frames."""

_log = logging.getLogger("nodewire.wire")


class Jobs:
    """Of one node, which is their mailboxes' exchange; frames of jobs that are not open are kept for `early_s`."""

    def __init__(self, exchange: Exchange, early_s: float) -> None:
        self.early = Early()
        self._exchange = exchange
        self._early_s = early_s
        self._open: dict[str, JobMailbox] = {}
        self._memory = Memory()
        self._over = BoundedDict[str, None](_MAX_OVER)
        self._fences = BoundedDict[tuple[str, str], None](_MAX_FENCES)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[JobMailbox]:
        return iter(list(self._open.values()))

    def get(self, request: str) -> JobMailbox | None:
        return self._open.get(request)

    def open(self, channel: JobChannelSpec) -> JobMailbox:
        """As Node.open_job."""
        request = channel.request
        if request in self._open:
            raise NotAllowed("request", "the job is open already")
        job = self._open[request] = JobMailbox(self._exchange, channel)
        for fence in [f for f in self._fences if f[1] == request]:
            del self._fences[fence]
        for peer, held in self.early.pop(request):
            if (link := self._exchange.open_link(peer)) is None or (peer, request) in self._fences:
                continue
            try:
                job.begin(peer, held.header)
            except NodewireError as error:
                self._fence(link, job, held.header, error)
            else:
                link.allowance.excuse(stray_bytes(0, held.header.cost))
                if held.done:
                    job.end(held.header, held.memory)
        job.opened()
        for peer in job.members:
            if (link := self._exchange.open_link(peer)) is not None:
                job.linked(link)
        return job

    def forget(self, job: JobMailbox) -> None:
        if self._open.get(job.request) is not job:
            return
        del self._open[job.request]
        if not self._open:
            self._memory.clear()
        self._over[job.request] = None
        self._exchange.end_job(job)

    def data_begins(self, link: Link, header: DataHeader) -> FrameMemory:
        """Where a frame goes: what no job expects is the link's own affair, whether it is kept or passes by."""
        if (link.peer, header.job) in self._fences:
            return FrameMemory(None, is_expected=False)
        job = self._open.get(header.job)
        try:
            if job is None and header.job in self._over:
                raise NotFound("job", "closed here")
            if job is None:
                origin = link.origin
                for (other, name), attempt in self.early.displaced(link.peer, origin, header):
                    if (theirs := self._exchange.open_link(other)) is not None:
                        self._close_to(theirs, name, attempt, Busy("job", "not open here, and others wait"))
                memory, first = self.early.begin(link.peer, origin, header)
                if first:
                    expire = partial(self._expire, link, header.job, header.attempt)
                    loop, turns = asyncio.get_running_loop(), Turns.here()
                    loop.call_later(self._early_s, turns.wait, origin, expire)  # a thousand may be due at once
                return FrameMemory(memory, is_expected=False)
            job.begin(link.peer, header)
            return FrameMemory(self._memory.allocate(header.nbytes), is_expected=True)
        except NodewireError as error:
            link.stray(_REFUSAL_BYTES)
            self._fence(link, job, header, error)
            return FrameMemory(None, is_expected=False)

    def data_ends(self, link: Link, header: DataHeader, memory: memoryview) -> None:
        job = self._open.get(header.job)
        if job is not None:
            job.end(header, memory)
        else:
            self.early.end(link.peer, header)

    def credit(self, link: Link, job: str, edge: str, attempt: int, limit: int) -> None:
        mailbox = self._open.get(job)
        if mailbox is not None:
            mailbox.credited(link, edge, limit)

    def control(self, link: Link, document: Document) -> bool:
        """Whether a control document is of a job that is open here; then its mailbox has it."""
        name = document.get("job")
        job = self._open.get(name) if isinstance(name, str) else None
        if job is None or link.peer not in job.members:
            return False
        job.documented(link.peer, document)
        return True

    def linked(self, link: Link) -> None:
        """There is a link to a peer."""
        for job in self:
            if link.peer in job.members and link.is_open:
                job.linked(link)

    def lost(self, link: Link, error: NodewireError, *, here: bool) -> None:
        """The link to a peer has ended: all jobs with it lose it, or if it was we who left (`here`), end."""
        self.early.drop_peer(link.peer)
        for fence in [f for f in self._fences if f[0] == link.peer]:
            del self._fences[fence]
        for job in self:
            if link.peer not in job.members:
                continue
            if here:
                job.fail(LinkLost(self._exchange.public, "this node is closed"))
            else:
                job.lost(link.peer, error)

    # Frames that break their job's rules.

    def _fence(self, link: Link, job: JobMailbox | None, header: DataHeader, error: NodewireError) -> None:
        """End the job for this peer, and, if the peer's frames are a part of it, here."""
        self._close_to(link, header.job, header.attempt, error, level=logging.DEBUG if job is None else logging.INFO)
        if job is not None:
            job.refuse(link.peer, header.edge, error)

    def _close_to(self, link: Link, name: str, attempt: int, error: NodewireError, level: int = logging.DEBUG) -> None:
        """End a job for this peer: it is told once, and its further frames pass by unread.

        `level`: what anybody may bring about as often as it likes is not written down.
        """
        self._fences[link.peer, name] = None
        link.discard(name)
        _log.log(level, "job %s, frame from %s refused: %s", name[:8], link.peer[:8], error)
        document = {"t": ERROR, "job": name, "attempt": attempt, "error": error.as_dict()}
        if link.is_open:
            link.send_control(document)

    def _expire(self, link: Link, name: str, attempt: int) -> None:
        # What came over a link that has ended went with it; the books are its successor's, whose memory is in use.
        if self._exchange.open_link(link.peer) is link and self.early.drop((link.peer, name)):
            self._close_to(link, name, attempt, NotFound("job", "not open here"))
