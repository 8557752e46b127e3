"""A generation's transcript, held against itself: signatures, tickets, ads, roots, payments, the chain.

Nothing is fetched here. With a worker that has the manifest's tasks, `replay` makes the tokens again, one turn of the
ring after the other, as if nobody had guessed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from nodewire.errors import BadEvent, NodewireError
from nodewire.nostr import event as events
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import receipt
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import claim
from nodewire.protocol.job.plan import LOCAL, Plan
from nodewire.protocol.job.request import Request, Ticket
from nodewire.protocol.job.transcript import GenerationTranscript, Part, asked
from nodewire.protocol.market import ad
from nodewire.protocol.model.edge_codec import codings
from nodewire.protocol.model.manifest import CUSTOMER, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.kind import JobKind, SharedWorker, TaskSession
    from nodewire.nostr.event import Event
    from nodewire.protocol.tensors.frame import Array, Frame

T = TypeVar("T")
MAX_FAULTS = 1_000


@dataclass(frozen=True, slots=True)
class Fault:
    """`step`: signature, manifest, request, ticket, ad, root, receipt, payment, chain; made again: token."""

    step: str
    reason: str
    job: int | None = None


@dataclass(slots=True)
class GenerationAudit:
    """What contradicts what.

    `held` counts what was looked at, by step; `missing` roots of chunks whose tokens are in the text: a job that broke
    off had no time to commit to its last.
    """

    transcript: GenerationTranscript
    manifest: Manifest | None = None
    requests: list[Request | None] = field(default_factory=list)
    tickets: list[Ticket | None] = field(default_factory=list)
    hardware: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By provider, hardware and region as its ad says them."""
    missing: int = 0
    faults: list[Fault] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)

    def wrong(self, step: str, reason: str, number: int | None = None) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(step, reason[:300], number))

    def hold(self, step: str, look: Callable[[], T], number: int | None = None) -> T | None:
        """What looking at something gives; what it raises is a fault."""
        self.held[step] = self.held.get(step, 0) + 1
        try:
            return look()
        except NodewireError as error:
            self.wrong(step, str(error), number)
            return None


def check(transcript: GenerationTranscript) -> GenerationAudit:
    """Everything that can be seen in a transcript alone."""
    reading = GenerationAudit(transcript)
    reading.hold("signature", transcript.check_signature)
    reading.manifest = reading.hold("manifest", partial(Manifest.parse, transcript.manifest))
    if reading.manifest is None:
        return reading
    if reading.manifest.chunk != transcript.size or reading.manifest.mode != "generate":
        reading.wrong("manifest", "of another chunk's size, or no decoder's")
    for number, part in enumerate(transcript.jobs):
        request = reading.hold("request", partial(_request, reading, part), number)
        reading.requests.append(request)
        reading.tickets.append(
            None if request is None else reading.hold("ticket", partial(_ticket, reading, part, request), number)
        )
        if request is not None:
            _part(reading, reading.manifest, number, part, request)
    reading.held["chain"] = 1
    *_, last = transcript.links()
    if last != transcript.chain:
        reading.wrong("chain", "not the one of these tokens and roots")
    return reading


def _part(reading: GenerationAudit, manifest: Manifest, number: int, part: Part, request: Request) -> None:
    for text in part.ads:
        reading.hold("ad", partial(_ad, reading, text, request.plan), number)
    roots = _roots(reading, number, part, request)
    _receipts(reading, number, part, request, roots)


def _request(reading: GenerationAudit, part: Part) -> Request:
    event = events.parse(part.request, max_bytes=len(part.request) + 1)
    request = job.parse(event)
    assert reading.manifest is not None
    if request.customer != reading.transcript.customer:
        raise BadEvent("transcript", "another customer's")
    if request.plan.manifest != reading.manifest.digest():
        raise BadEvent("transcript", "of another manifest")
    return request


def _ticket(reading: GenerationAudit, part: Part, request: Request) -> Ticket:
    """Raises a typed error: it is not what the request sealed, or not for what the transcript says was asked."""
    ticket = Ticket.parse(part.ticket)
    if ticket.request != request.id or ticket.seal() != request.ticket:
        raise BadEvent("transcript", "not the ticket that the request has sealed")
    said = asked(_edge_in(reading.manifest), reading.transcript.prompt, reading.transcript.ids[: part.first])
    if ticket.inputs != ((said.edge, 0, job.content_of(said)),):
        raise BadEvent("transcript", "another prompt was asked, or other tokens came before")
    return ticket


def _ad(reading: GenerationAudit, text: str, plan: Plan) -> None:
    event = events.parse(text)
    said = ad.parse(event)
    if event.pubkey not in plan.providers():
        raise BadEvent("transcript", f"{event.pubkey[:8]} is no member of the plan")
    if all(offer.manifest != plan.manifest for offer in said.manifests):
        raise BadEvent("transcript", f"{event.pubkey[:8]} does not offer this model")
    reading.hardware[event.pubkey] = said.hardware, said.region


def _roots(
    reading: GenerationAudit, number: int, part: Part, request: Request
) -> dict[tuple[str, int, int], dict[str, ChunkRoot]]:
    """By provider, chunk and attempt, its tasks' roots."""
    found: dict[tuple[str, int, int], dict[str, ChunkRoot]] = {}
    tasks = {one.task: one.provider for one in request.plan.tasks}
    have: set[tuple[str, int]] = set()
    for said in part.roots:
        reading.held["root"] = reading.held.get("root", 0) + 1
        if said.provider != tasks.get(said.task):
            reading.wrong("root", f"{said.task} of chunk {said.chunk} was not {said.provider[:8]}'s", number)
            continue
        mine = found.setdefault((said.provider, said.chunk, said.attempt), {})
        if said.task in mine:
            reading.wrong("root", f"{said.task} of chunk {said.chunk} stands twice", number)
        mine[said.task] = ChunkRoot(
            request=request.id, task=said.task, chunk=said.chunk, attempt=said.attempt, root=said.root
        )
        have.add((said.task, said.chunk))
    wanted = [task for task, provider in tasks.items() if provider != LOCAL]
    chunks = [chunk for of, chunk, _ in reading.transcript.chunks() if of == number]
    reading.missing += sum((task, chunk) not in have for task in wanted for chunk in chunks)
    return found


def _receipts(
    reading: GenerationAudit,
    number: int,
    part: Part,
    request: Request,
    roots: dict[tuple[str, int, int], dict[str, ChunkRoot]],
) -> None:
    """What was paid, and that it was paid for these roots."""
    paid_msat = fees_msat = 0
    for text in part.receipts:
        found = reading.hold("receipt", partial(_receipt, text, request), number)
        for paid in found.chunks if found is not None else ():
            assert found is not None
            paid_msat, fees_msat = paid_msat + paid.amount_msat, fees_msat + paid.fee_msat
            mine = roots.get((found.provider, paid.chunk, paid.attempt), {})
            ordered = [mine[one.task] for one in request.plan.tasks if one.task in mine]
            if ordered and claim(ordered) != paid.root:
                reading.wrong("payment", f"chunk {paid.chunk} of {found.provider[:8]} was paid for other roots", number)
    reading.held["payment"] = reading.held.get("payment", 0) + 1
    if paid_msat > part.paid_msat or fees_msat > part.fees_msat:
        reading.wrong("payment", f"receipts over {paid_msat} msat and {fees_msat} of fees, more than was paid", number)


def _receipt(text: str, request: Request) -> receipt.Receipt:
    event: Event = events.parse(text)
    found = receipt.parse(event)
    if event.pubkey != request.customer or (found.request, found.plan) != (request.id, request.plan.digest()):
        raise BadEvent("transcript", "of another job")
    return found


async def replay(
    reading: GenerationAudit, kind: JobKind, worker: SharedWorker, told: Callable[[int], None]
) -> list[int]:
    """The tokens as one frame after the other makes them, under the first job's parameters and codecs.

    `worker` has the manifest's tasks, by their names; `told` hears how many tokens there are.

    Raises:
        NodewireError: what a task refuses.

    """
    manifest, request, ticket = reading.manifest, reading.requests[0], reading.tickets[0]
    assert manifest is not None
    assert request is not None
    assert ticket is not None
    params = kind.check(manifest, ticket.params)
    narrowed = codings(manifest, request.plan.terms.codecs)
    target = {edge.name: edge.target for edge in manifest.edges}
    ids: list[int] = []
    sessions: dict[str, TaskSession] = {}
    try:
        for task in manifest.tasks:
            sessions[task.name] = await worker.open(task.name, request.id, params, narrowed)
        waiting = deque([asked(_edge_in(manifest), reading.transcript.prompt, ())])
        while waiting:
            frame = waiting.popleft()
            if target[frame.edge] == CUSTOMER:
                ids += _tokens(frame)
                told(len(ids))
            else:
                waiting.extend(await sessions[target[frame.edge]].receive(frame))
    finally:
        for session in sessions.values():
            await session.close()
    return ids


def compare(reading: GenerationAudit, ids: list[int]) -> None:
    """Hold the transcript's tokens against those of a replay."""
    said = reading.transcript.ids
    reading.held["token"] = len(said)
    first = next((k for k, (one, other) in enumerate(zip(said, ids, strict=False)) if one != other), None)
    if first is None and len(said) != len(ids):
        first = min(len(said), len(ids))
    if first is not None:
        reading.wrong("token", f"number {first} is not what a replay gives, and {len(ids)} tokens came of that")


def _tokens(frame: Frame[Array]) -> list[int]:
    (array,) = frame.tensors
    return [int.from_bytes(array.data[k : k + 8], "little", signed=True) for k in range(0, len(array.data), 8)]


def _edge_in(manifest: Manifest | None) -> str:
    assert manifest is not None
    return next(edge.name for edge in manifest.edges if edge.source == CUSTOMER)
