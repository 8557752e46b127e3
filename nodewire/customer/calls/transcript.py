"""A generation's transcript out of what its purchases know. What it says: `nodewire.protocol.job.transcript`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.customer.job.summary import spent
from nodewire.protocol.job.chunk import claim
from nodewire.protocol.job.transcript import GenerationTranscript, Part, TaskRoot
from nodewire.protocol.market import coordinates
from nodewire.protocol.model.manifest import CUSTOMER, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.customer.calls.generation import Generation
    from nodewire.customer.job.purchased_job import PurchasedJob
    from nodewire.customer.job.session import Session
    from nodewire.customer.payments.job_payments import ZapPayment
    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.snapshot import Snapshot


async def transcribed(made: Generation) -> GenerationTranscript:
    """Of a generation that is over, signed.

    Raises:
        NotFound, BadHash ...: a plan's snapshot is not to be had any more.

    """
    jobs = tuple([await _part(made.session, made.manifest, bought) for bought in made.jobs])
    keys = made.session.keys
    said = GenerationTranscript(
        customer=keys.public,
        model=made.address,
        manifest=made.manifest.to_json(),
        size=made.manifest.chunk,
        prompt=made.prompt,
        ids=tuple(made.ids),
        jobs=jobs,
        chain="0" * 64,
    )
    *_, last = said.links()
    return said.model_copy(update={"chain": last}).signed(keys)


async def _part(session: Session, manifest: Manifest, bought: PurchasedJob) -> Part:
    purchase = bought.purchase
    plan = purchase.plan
    snapshot = await session.market.snapshot(plan.snapshot)
    cost = spent(plan, purchase.booked, purchase.lenders)
    return Part(
        request=purchase.request.to_json(),
        ticket=purchase.ticket.to_json(),
        first=bought.first,
        ads=tuple(event.to_json() for _, event in snapshot.ad_events(plan.providers())),
        rtts_us=_round_trips(plan, manifest, snapshot),
        roots=_roots(plan, purchase.answers.roots, purchase.payments.paid.values()),
        receipts=tuple(event.to_json() for event in purchase.receipts),
        paid_msat=sum(cost.paid_msat.values()) + sum(cost.on_tab_msat.values()),
        fees_msat=cost.fees_msat,
        share_msat=cost.share_msat,
    )


def _roots(plan: Plan, said: Iterable[tuple[str, ChunkRoot]], paid: Iterable[ZapPayment]) -> tuple[TaskRoot, ...]:
    """What providers say that they committed to.

    What is not what one was paid for stands for nothing: its chunk is as one without roots.
    """
    order = {one.task: n for n, one in enumerate(plan.tasks)}
    claims = {(one.provider, one.due.chunk): one.due.root for one in paid}
    of_chunk: dict[tuple[str, int], list[ChunkRoot]] = {}
    for provider, root in sorted(said, key=lambda one: (one[1].chunk, order[one[1].task])):
        of_chunk.setdefault((provider, root.chunk), []).append(root)
    return tuple(
        TaskRoot(provider=provider, task=root.task, chunk=root.chunk, attempt=root.attempt, root=root.root)
        for (provider, chunk), roots in of_chunk.items()
        if (claimed := claims.get((provider, chunk))) is None or claim(roots) == claimed
        for root in roots
    )


def _round_trips(plan: Plan, manifest: Manifest, snapshot: Snapshot) -> tuple[tuple[str, int], ...]:
    place = {one.task: one.provider for one in plan.tasks}
    at = {node.pubkey: node.coordinates for node in snapshot.nodes}
    found = []
    for edge in manifest.edges:
        if CUSTOMER in (edge.source, edge.target):
            continue
        source, target = at.get(place[edge.source]), at.get(place[edge.target])
        if source is not None and target is not None:
            same = place[edge.source] == place[edge.target]
            found.append((edge.name, 0 if same else coordinates.rtt_us(source, target)))
    return tuple(found)
