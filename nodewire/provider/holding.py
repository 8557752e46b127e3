"""What a provider shows of its finished work: frames, openings, tickets, and what was signed to it, to who judges it.

It shows them to the oracles of its committee, for jobs whose request agreed to be sampled, as long as it keeps them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from nodewire.errors import NotAllowed, NotFound
from nodewire.nostr.keys import Keys
from nodewire.protocol import sent
from nodewire.protocol.chunk import chunk_of, leaf_of, opening
from nodewire.protocol.committee import Committee
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.job import Request, Ticket
from nodewire.protocol.manifest import Manifest
from nodewire.wire.pull import Answer, Want
from nodewire.wire.spool import Spool

MAX_KEPT = 4_096
"""Jobs, the newest."""


@dataclass(frozen=True, slots=True)
class Kept:
    request: Request
    manifest: Manifest
    ticket: Ticket


class Holding:
    """Answers pulls (`nodewire.wire.pull.Holder`) about jobs that this provider took part in."""

    def __init__(self, keys: Keys, committee: Committee, spool: Spool) -> None:
        self._keys = keys
        self._committee = committee
        self._spool = spool
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def keep(self, job: Kept) -> None:
        """A job begins here."""
        self._kept[job.request.id] = job
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    async def show(self, peer: str, want: Want) -> Answer:
        """What is asked for.

        Raises:
            NotAllowed: to somebody else than an oracle, or of a job whose customer did not agree to be verified.
            NotFound: it is not kept here (any more).
        """
        if self._committee.oracle(peer) is None:
            raise NotAllowed("pull", "shown to oracles only")
        job = self._kept.get(want.request)
        if job is None:
            raise NotFound("request", "not kept here")
        if job.request.plan.verification.policy != "sampled":
            raise NotAllowed("request", "its customer did not agree to be verified")
        if want.task not in {task.name for task in job.manifest.tasks}:
            raise NotFound("task", "the manifest has none of this name")
        match want.what:
            case "ticket":
                return job.ticket.to_json().encode()
            case "opening":
                return self._opening(job, want)
            case "frames":
                return self._frames(job, want)
            case "sent":
                return self._sent(job, want)

    def _opening(self, job: Kept, want: Want) -> bytes:
        leaves = [
            leaf_of(job.request.plan.manifest, frame)
            for edge in job.manifest.outputs(want.task)
            for _, frame in self._of_chunks(job, want, edge.name)
        ]
        if not leaves:
            raise NotFound("opening", "nothing of this chunk is kept here")
        return opening(
            self._keys,
            job.manifest,
            leaves,
            request=want.request,
            task=want.task,
            chunk=want.first,
            attempt=want.attempt,
        ).pack()

    def _frames(self, job: Kept, want: Want) -> Iterator[tuple[int, Frame[Array]]]:
        touching = {edge.name for edge in (*job.manifest.inputs(want.task), *job.manifest.outputs(want.task))}
        for name in want.edges:
            if name not in touching:
                raise NotFound("edges", f"{name} does not touch {want.task}")
        return (kept for name in want.edges for kept in self._of_chunks(job, want, name))

    def _sent(self, job: Kept, want: Want) -> bytes:
        """What producers signed of the task's inputs, of `want.edges` only if it names any."""
        edges = {edge.name for edge in job.manifest.inputs(want.task) if not want.edges or edge.name in want.edges}
        kept = self._spool.sent(want.request)
        return sent.pack(one for one in kept if one.edge in edges and want.first <= one.chunk <= want.last)

    def _of_chunks(self, job: Kept, want: Want, edge: str) -> Iterator[tuple[int, Frame[Array]]]:
        for attempt, frame in self._spool.read(want.request, edge):
            chunk = chunk_of(job.manifest, frame.seq)
            if chunk > want.last:
                return
            if chunk >= want.first:
                yield attempt, frame
