"""One outer step at its provider: deposit, blobs, the step, delivery, balance."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING

from nodewire.errors import WorkerFailed
from nodewire.nostr.nips import nip44
from nodewire.protocol.tensors.frame import Frame, Meta
from nodewire.store import sealed_blobs
from nodewire.training.protocol import outer_step
from nodewire.training.protocol.outer_step import OuterDeliveryDetails, StepGoods
from nodewire.training.provider.outer_admission import AdmittedOuter
from nodewire.training.provider.paid_job import PaidRun

if TYPE_CHECKING:
    from nodewire.kind import TaskSession, Worker
    from nodewire.protocol.model.manifest import BlobRef

OUTER_TASK = "outer"


class OuterRun(PaidRun[AdmittedOuter]):
    """An outer step."""

    task = OUTER_TASK

    async def train(self, worker: Worker) -> None:
        """Make the step and deliver it; when this returns the balance is due, and the worker has forgotten it.

        Raises:
            NodewireError: a blob is not to be had or not what was cited, or the worker failed.

        """
        job = self.job
        step, ticket = job.assigned, job.ticket
        params = {"recipe": job.recipe.pack(), "round": step.round}
        session = self._session = await worker.open(self.task, job.request.id, params)
        await self._feed(session, "theta", await self._blobs.get(step.theta), ticket.theta_key, ticket.theta_sha256)
        if step.momenta is not None and ticket.momenta_key and ticket.momenta_sha256:
            momenta = await self._blobs.get(step.momenta)
            await self._feed(session, "momenta", momenta, ticket.momenta_key, ticket.momenta_sha256)
        paths = await asyncio.gather(*(self._blobs.get(one.update) for one in step.inputs))
        for at, (one, path, (key, sha256)) in enumerate(zip(step.inputs, paths, ticket.opens, strict=True)):
            said: Meta = {"at": at, "weight": one.weight}
            await self._feed(session, "update", path, key, sha256, said)
        (stepped,) = await session.receive(Frame("step", 0))
        root = stepped.meta["root"]
        if not isinstance(root, str):
            raise WorkerFailed("step", "an answer that is none")
        await self._deliver(session, root)
        await self.close()
        self._session = None

    async def _deliver(self, session: TaskSession, root: str) -> None:
        """Seal and upload theta and momenta, and publish what the customer needs to open them."""
        job, request = self.job, self.job.request
        theta, theta_key, theta_sha256 = await self._after(session, "theta")
        momenta: tuple[BlobRef | None, str | None, str | None] = None, None, None
        if outer_step.momenta_rows(job.recipe):
            momenta = await self._after(session, "momenta")
        made = OuterDeliveryDetails(
            theta_key=theta_key,
            theta_sha256=theta_sha256,
            momenta_key=momenta[1],
            momenta_sha256=momenta[2],
            root=root,
        )
        await self._owe_balance()
        goods = StepGoods(
            commitment=made.commitment(self._keys.public, request.id, request.round.round),
            theta=theta,
            momenta=momenta[0],
            amount_msat=job.assigned.balance_msat,
            ciphertext=nip44.encrypt(made.to_json(), self._conversation),
        )
        event = outer_step.build(self._keys, request.id, request.customer, goods, created_at=int(time.time()))
        await self._publish(event)

    async def _after(self, session: TaskSession, what: str) -> tuple[BlobRef, str, str]:
        """Weights or momenta after the step: the uploaded ciphertext, its key, the plaintext's hash."""
        frames = await session.receive(Frame("after", 0, (), {"what": what}))
        pieces, digest, key = (
            [bytes(frame.tensors[0].data) for frame in frames],
            hashlib.sha256(),
            sealed_blobs.new_key(),
        )
        for piece in pieces:
            digest.update(piece)
        return await self._upload(sealed_blobs.seal(pieces, key)), key, digest.hexdigest()
