"""What a provider says of one job to the relays: how it stands, what is due, and in the end its result."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, NodeFailed, NodewireError, RelayRefused, TimedOut
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip44
from nodewire.protocol.job import feedback, result
from nodewire.protocol.job.frame_refusal import is_driven

if TYPE_CHECKING:
    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.provider.inference.job_context import JobContext

Publish = Callable[[Event], Awaitable[None]]


class JobPublisher:
    def __init__(self, context: JobContext, publish: Publish, refuse: Publish) -> None:
        """`refuse`: what publishes the error of a job that has not begun, as of one that was refused."""
        self._refuse = refuse
        self.has_begun = False
        self._keys = context.keys
        self._request = context.request
        self._context = context
        self._publish = publish

    async def publish(self, event: Event) -> None:
        """Raises NodeFailed: no relay of this node takes it, which is nobody else's fault."""
        try:
            await self._publish(event)
        except (RelayRefused, TimedOut) as error:
            raise NodeFailed("relays", str(error)[:200]) from error

    def claim(self, due: feedback.Due) -> Event:
        """What asks for a chunk's payment, to be published."""
        request, now_s = self._request, int(time.time())
        return feedback.build(self._keys, request.id, request.customer, "payment-required", created_at=now_s, due=due)

    async def begun(self) -> None:
        """The first input is computed: until then a job has cost its customer nothing, and is told of as a refusal."""
        if not self.has_begun:
            self.has_begun = True
            await self.say("processing")

    async def say(
        self, status: feedback.Status, text: str = "", *, edge: str = "", by: str = "", ciphertext: str = ""
    ) -> None:
        event = feedback.build(
            self._keys,
            self._request.id,
            self._request.customer,
            status,
            created_at=int(time.time()),
            remarks=feedback.Remarks(text=text, ciphertext=ciphertext, edge=edge, by=by),
        )
        await (self.publish if self.has_begun else self._refuse)(event)

    async def failed(self, error: NodewireError) -> None:
        """Say why the job ended here: which edge's frames cannot be computed, or who has ended it before this node.

        Of what is the customer's own, say to it alone which field.
        """
        names_edge = isinstance(error, BadFrame) and not error.by and self._may_name(error.field)
        ciphertext = ""
        if error.code in feedback.THE_CUSTOMERS and not error.by:
            ciphertext = nip44.encrypt(feedback.ErrorDetail.from_error(error).to_json(), self._conversation())
        edge = error.field if names_edge else ""
        await self.say("error", error.code, edge=edge, by=error.by, ciphertext=ciphertext)

    def _conversation(self) -> bytes:
        return nip44.conversation_key(self._keys, self._request.customer)

    def _may_name(self, edge: str) -> bool:
        """One that leads here, or, of what the driver has said against what it sent, the driver's."""
        manifest, tasks = self._context.manifest, self._context.tasks
        return any(one.name == edge and one.target in tasks for one in manifest.edges) or is_driven(manifest, edge)

    async def result(self, roots: Sequence[ChunkRoot], frames: int, compute_us: tuple[int, int]) -> None:
        """`compute_us`: median and total of the calls."""
        said = result.ResultDetails(frames=frames, compute_us=compute_us)
        ciphertext = nip44.encrypt(said.to_json(), self._conversation())
        event = result.build(
            self._keys, self._request.id, self._request.customer, roots, ciphertext, created_at=int(time.time())
        )
        await self.publish(event)
