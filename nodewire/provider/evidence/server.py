"""What a provider shows of its finished work: frames, openings, tickets, and what was signed to it, to who judges it.

Of jobs whose request agreed to be sampled, and as long as it is kept here: the oracles of the committee see everything;
who was drawn to verify a chunk of a task sees what that task was given, and nothing of what became of it. What this
provider computed as a verifier only oracles see.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import NotAllowed, NotFound
from nodewire.protocol.job.chunk import Opening, chunk_of, first_seq, leaf_of, opening
from nodewire.protocol.job.request import Request, Ticket
from nodewire.protocol.job.request import parse as parse_request
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.verification import choices, statement
from nodewire.protocol.verification.sample import Sample

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.provider.evidence.store import KeptWork
    from nodewire.wire.evidence.pull import Answer, Want
    from nodewire.wire.evidence.spool import Spool

MAX_KEPT = 4_096
"""Jobs in memory, the newest; of those before the file is read."""
MAX_VERIFIED_BYTES = 256 * 2**20
"""Of openings of what was computed here as a verifier: the newest, and at least one."""

Granted = Callable[[str, str], Awaitable[tuple[Sample, ...]]]
"""Given a key and a request: the samples of it that the key was drawn to verify and still may."""


ManifestOf = Callable[[Request], Awaitable[Manifest]]
"""The manifest that a request's plan cites. Raises NotFound ..."""
Recall = Callable[[str], Awaitable["KeptJob | None"]]
"""Given a request: the job, if it is kept on disk."""


@dataclass(frozen=True, slots=True)
class KeptJob:
    request: Request
    manifest: Manifest
    ticket: Ticket


def recall_from(file: KeptWork, manifest_of: ManifestOf) -> Recall:
    """Jobs of this process's file, whoever wrote it."""

    async def recall(request: str) -> KeptJob | None:
        found = await asyncio.to_thread(file.job, request)
        if found is None:
            return None
        event, ticket = found
        parsed = parse_request(event)
        return KeptJob(parsed, await manifest_of(parsed), ticket)

    return recall


class EvidenceServer:
    """Answers pulls (`nodewire.wire.evidence.pull.Holder`) about jobs that this provider took part in."""

    def __init__(
        self, keys: Keys, committee: Committee, spool: Spool, granted: Granted, recall: Recall | None = None
    ) -> None:
        """Without `recall` only jobs of this process are shown."""
        self._keys = keys
        self._committee = committee
        self._spool = spool
        self._granted = granted
        self._recall = recall
        self._kept = BoundedDict[str, KeptJob](MAX_KEPT)
        self._verified: OrderedDict[tuple[str, str, int, int], bytes] = OrderedDict()
        self._verified_bytes = 0

    def keep(self, job: KeptJob) -> None:
        """A job begins here."""
        self._kept[job.request.id] = job

    def verified(self, computed: Opening) -> None:
        """Keep the opening of a chunk that was computed here as a verifier."""
        packed = computed.pack()
        self._verified[computed.request, computed.task, computed.chunk, computed.attempt] = packed
        self._verified_bytes += len(packed)
        while self._verified_bytes > MAX_VERIFIED_BYTES and len(self._verified) > 1:
            _, oldest = self._verified.popitem(last=False)
            self._verified_bytes -= len(oldest)

    async def show(self, peer: str, want: Want) -> Answer:
        """What is asked for.

        Raises:
            NotAllowed: to somebody who neither is an oracle nor was drawn, or was not drawn for this; or of a job whose
                customer did not agree to be verified.
            NotFound: it is not kept here (any more).

        """
        judges = self._committee.oracle(peer) is not None
        if judges and want.what == "opening":
            shown = self._verified.get((want.request, want.task, want.first, want.attempt))
            if shown is not None:
                return shown
        job = self._kept.get(want.request)
        if job is None and self._recall is not None and (job := await self._recall(want.request)) is not None:
            self.keep(job)
        if job is None:
            raise NotFound("request", "not kept here")
        if job.request.plan.verification.policy != "sampled":
            raise NotAllowed("request", "its customer did not agree to be verified")
        if not judges:
            self._check_drawn(job, want, await self._granted(peer, want.request))
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

    def _check_drawn(self, job: KeptJob, want: Want, drawn: tuple[Sample, ...]) -> None:
        """A verifier is shown the inputs of what it verifies: no output of a chunk that it is to compute itself.

        Raises:
            NotAllowed: it was not drawn, or not for this.

        """
        if not any(self._entitles(sample, job.manifest, want) for sample in drawn):
            raise NotAllowed("pull", "shown to oracles, and to those drawn to verify what comes of it")
        shown = {edge.source for edge in job.manifest.edges if edge.name in want.edges}
        if want.what == "opening":
            shown = {want.task}
        if any(sample.task in shown and want.first <= sample.chunk <= want.last for sample in drawn):
            raise NotAllowed("pull", "drawn to compute this")

    def _entitles(self, sample: Sample, manifest: Manifest, want: Want) -> bool:
        """Whether what is asked for is an input of what `sample` has computed again."""
        if want.last > sample.chunk:
            return False
        own = sample.provider == self._keys.public and want.task == sample.task
        inputs = manifest.inputs(sample.task)
        match want.what:
            case "ticket" | "sent":
                return own
            case "opening":
                return any(edge.source == want.task for edge in inputs)
            case "frames":
                names = {edge.name for edge in inputs if own or edge.source == want.task}
                if own and want.last < sample.chunk:  # what a driver chose before decides what it may choose
                    names |= {choices.tokens_edge(manifest, want.task) or ""}
                return bool(want.edges) and names.issuperset(want.edges)

    def _opening(self, job: KeptJob, want: Want) -> bytes:
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

    def _frames(self, job: KeptJob, want: Want) -> Iterator[tuple[int, Frame[Array]]]:
        touching = {edge.name for edge in (*job.manifest.inputs(want.task), *job.manifest.outputs(want.task))}
        for name in want.edges:
            if name not in touching:
                raise NotFound("edges", f"{name} does not touch {want.task}")
        return (kept for name in want.edges for kept in self._of_chunks(job, want, name))

    def _sent(self, job: KeptJob, want: Want) -> bytes:
        """What producers signed of the task's inputs, of `want.edges` only if it names any."""
        edges = {edge.name for edge in job.manifest.inputs(want.task) if not want.edges or edge.name in want.edges}
        kept = self._spool.sent(want.request)
        return statement.pack(one for one in kept if one.edge in edges and want.first <= one.chunk <= want.last)

    def _of_chunks(self, job: KeptJob, want: Want, edge: str) -> Iterator[tuple[int, Frame[Array]]]:
        for attempt, frame in self._spool.read(want.request, edge, first_seq(job.manifest, want.first)):
            chunk = chunk_of(job.manifest, frame.seq)
            if chunk > want.last:
                return
            if chunk >= want.first:
                yield attempt, frame
