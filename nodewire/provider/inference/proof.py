"""What a provider keeps of its jobs to prove its work by: request, ticket, frames, the roots that it commits to."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import NodeFailed, TimedOut
from nodewire.protocol.job.plan import CERTIFY_EPOCHS, Plan
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.verification.statement import FrameStatement
from nodewire.provider.evidence.server import EvidenceServer, KeptJob
from nodewire.wire.evidence.spool import HEADER_BYTES, Spool
from nodewire.wire.framing.headers import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.protocol.committee.committee import Committee
    from nodewire.provider.admission.checks import AdmittedJob
    from nodewire.provider.evidence.committer import Committer
    from nodewire.provider.evidence.store import KeptWork

SPOOL_EPOCHS = 10
"""For how many epochs after a job's end, or a crash, frames are kept that may have to be shown. Its last root is
certified in that epoch or the next; what is drawn is judged in the six that follow, and a judge may ask until the last
is over: that is eight, and two are in reserve. Roots that are published later keep their jobs longer
(`committer.SHOWN_EPOCHS`)."""
log = logging.getLogger("nodewire.provider")


class Proof(Protocol):
    async def begins(self, job: AdmittedJob) -> None:
        """A job begins here.

        Raises:
            Busy: there is no room for what may have to be shown of it.
            NodeFailed: that cannot be kept.

        """

    async def commit(self, plan: Plan, roots: Sequence[ChunkRoot]) -> None:
        """These roots of a chunk are final. They are on disk when it returns.

        Raises:
            TimedOut: no certificate can be counted on to hold them in time, so nothing may be asked for them.
            NodeFailed: they cannot be written down.

        """

    async def ended(self, request: str) -> None:
        """It is over here."""

    async def run(self) -> None:
        """Forget jobs whose time has passed, until cancelled."""


class CommitteeProof:
    """For a committee (a Proof): roots are committed to, and the work of sampled jobs is shown to who judges it."""

    def __init__(
        self,
        public: str,
        kept: KeptWork,
        holding: EvidenceServer,
        committing: Committer,
        spool: Spool,
        committee: Committee,
    ) -> None:
        """`public`: this provider's key."""
        self._public = public
        self._kept, self._holding, self._committing = kept, holding, committing
        self._spool, self._committee, self._epoch_ms = spool, committee, committee.epoch_ms
        self._unseen: set[str] = set()
        """Jobs under way of which nobody may ask anything: not to be judged, or nothing is committed to."""

    async def begins(self, job: AdmittedJob) -> None:
        is_judged = job.request.plan.verification.policy == "sampled"
        if is_judged and job.manifest.mode == "generate":  # of calls nobody knows how many come
            self._spool.reserve(job.request.id, most_bytes(job, self._public))
        if not is_judged or await asyncio.to_thread(self._kept.begun, job.event, job.ticket):
            self._unseen.add(job.request.id)
        self._holding.keep(KeptJob(job.request, job.manifest, job.ticket))

    async def commit(self, plan: Plan, roots: Sequence[ChunkRoot]) -> None:
        deadline = plan.deadline_epoch(roots[0].chunk, self._epoch_ms)
        if plan.verification.policy == "sampled":
            epoch = self._committee.epoch_at(int(time.time() * 1000))
            if epoch > deadline - CERTIFY_EPOCHS:
                raise TimedOut("chunk", f"a certificate must hold it up to epoch {deadline}, and this is {epoch}")
            self._unseen.discard(roots[0].request)  # at once: the roots count, too, if this is cancelled meanwhile
        await self._committing.commit(roots, deadline)

    async def ended(self, request: str) -> None:
        until_s = time.time()
        if request in self._unseen:
            self._unseen.remove(request)
            self._spool.remove(request)
        else:
            until_s += SPOOL_EPOCHS * self._epoch_ms / 1000
            self._spool.keep_until(request, until_s)
        try:
            await asyncio.to_thread(self._kept.ended, request, until_s)
        except NodeFailed as error:
            log.warning("job %s counts as interrupted when this daemon starts anew: %s", request[:8], error)

    async def run(self) -> None:
        """Jobs that may have to be shown go by the file's time."""
        while True:
            try:
                await asyncio.to_thread(self._kept.sweep, time.time())
                self._spool.sweep(time.time(), but=await asyncio.to_thread(self._kept.jobs))
            except NodeFailed as error:
                log.error("jobs are kept on: %s", error)
            await asyncio.sleep(self._epoch_ms / 1000)


def most_bytes(job: AdmittedJob, public: str) -> int:
    """The bytes of a generation that `public` may have to keep.

    They are a frame for each position on each edge of its tasks, and a statement for each chunk that comes.
    """
    tasks, manifest = job.request.plan.tasks_of(public), job.manifest
    said = job.params.get("positions")
    positions = 1 + (said if isinstance(said, int) else manifest.context)
    total = 0
    for edge in manifest.edges:
        if edge.source in tasks or edge.target in tasks:
            tells = edge.target == CUSTOMER and job.params.get("logprobs") is not None
            total += positions * (edge.bytes_per_position + HEADER_BYTES + tells * MAX_HEADER_BYTES)
        if edge.target in tasks:
            total += (2 + positions // manifest.chunk) * FrameStatement.MAX_BYTES
    return total
