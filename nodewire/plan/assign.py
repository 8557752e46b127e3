"""`assign/2`: the plan that follows from what a committee certified. Pure, integer-only; anyone gets the same bytes.

Integers are unbounded and never negative where divided; `//` rounds down; `isqrt` is the integer square root. H is the
tagged SHA-256 of `nodewire.protocol.encoding.canonical`; hex fields enter it as raw bytes; u8 and u32 are big-endian.

1. Nodes. Kept are the snapshot's nodes that hold the manifest with at least one free slot (a slot is room for one
   session in every task that the node holds of it), are not in `terms.excluded`, not the author of a cited `busy`, in
   `terms.trusted` and of one of `terms.regions` (each if not empty).
2. Offers. A kept node offers a task at (price, us) if its price is at most `terms.max_chunk_msat`. A task without any
   offer ends in NoProvider. With `terms.driver` = "local" the manifest's first task is the customer's own: provider
   "local", price 0, and it has no place on the network.
3. Weight of an offer: units * speed * idle * known * repute, with
       units = min(max(bond_msat // bond_unit_msat, 1), 1000)         speed = max(1_000_000 // us, 1)
       idle  = 16 - load_ppm * 8 // 1_000_000                        known = 4 + bit length of min(epochs, 4095)
       repute = (10_000_000 + verify_share_ppm * min(bit length of ceil(passed / 4096) // max(price, 1), 8))
                >> min(ceil(withheld / 4096), 4)
   Work that passed is money and counts by how many chunks at this price it is. All of it adds four fifths of the
   committee's share to a weight, and no more; each withheld chunk halves it, up to four. What a node says of
   its load counts for a factor of two. A node is bonded if bond_msat >= bond_unit_msat.
4. The plan's quota. seed = H("nodewire/assign/2", beacon || manifest || customer || u8 k), q = H("nodewire/quota/2",
   seed) as a big-endian integer. Contested are the tasks with bonded and with unbonded offers. If q mod 20 = 0, the
   contested task number (q // 20) mod (their number), in the manifest's order, is open to one unbonded node. No task
   is open if `terms.excluded` or a cited `busy` leaves out an unbonded node of the snapshot: a customer that one of
   them has failed is not given the next one.
5. Draws. Task number i (from 0, manifest's order) has up to 8 candidates, drawn one after the other from its bonded
   offers, or from the unbonded ones if none is bonded; of the open task the first is drawn from the unbonded ones, and
   the others from the bonded. Draw j: h = H("nodewire/draw/2", seed || u32 i || u32 j) as a big-endian integer; by
   ascending pubkey, the first offer is drawn at which the running sum of weights exceeds h mod (the pool's total); it
   leaves the pool.
6. Placement, in the manifest's order. An offer's cost is
       us + sum over the task's edges, back edges too, whose other end is a task already placed on another node:
            link(node, other) + bytes_per_position * 1000 // 12_500
       link(a, b) = (isqrt((ax-bx)^2 + (ay-by)^2) + ah + bh) // 2 if others have found both where they say they are
                    (`is_placed`), else 50_000
   in microseconds: coordinates predict a round trip, a frame takes half of it, and links carry 12,500 bytes per ms.
   A node that is not placed counts as far away. Neighbouring tasks that land on one node have no link between them.
   Of the candidates that leave room under `terms.max_chunk_msat` for the cheapest candidate of every later task, the
   one drawn first is taken whose cost is at most 5/4 of the least; if none leaves room, or if the sum is above
   `terms.max_total_msat`, OverBudget. A lower price is no advantage.
7. Deadlines. turn = sum of the placed tasks' us + cost of all links between them; next = min(2000 + turn * 8 // 1000,
   600_000) ms; first = min(5000 + next + (sum of us) * max(context, 1) // 1000, 600_000) ms.
8. Verification. "sampled": the committee's verify_rate_ppm and verify_share_ppm, or BadPlan where the ring answers
   tokens; "none": zeros.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from nodewire.errors import BadInput, BadPlan, NoProvider, OverBudget
from nodewire.protocol.committee import reputation
from nodewire.protocol.encoding.canonical import tagged_hash
from nodewire.protocol.job import feedback
from nodewire.protocol.job.plan import LOCAL, MAX_BUSY, MAX_REDRAWS, Assignment, Plan, Terms, Verification
from nodewire.protocol.market import coordinates
from nodewire.protocol.market.snapshot import MAX_UNITS, Node, Snapshot
from nodewire.protocol.model.edge_codec import codings
from nodewire.protocol.model.manifest import CUSTOMER, Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.nostr.event import Event
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.epoch_body import Body

CANDIDATES = 8
UNBONDED_ONE_IN = 20
"""Plans, of which one may hold an unbonded node where bonded ones are to be had."""
FAR_US = 50_000
"""A link of a node of which nobody else has found where it is: as between continents."""
_UNSAMPLED = "this model's ring answers tokens; honest nodes may differ where two are as likely, so none is sampled"
LINK_BYTES_PER_MS = 12_500
NEXT_FLOOR_MS, NEXT_PER_US = 2_000, 8
"""An output may take so long, and so many times a turn."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A `busy` feedback that excludes its author: the event's id and the provider that signed it."""

    id: str
    provider: str

    @classmethod
    def cited(cls, event: Event, customer: str) -> Busy:
        """The exclusion that a verified feedback (kind 7000) on a job of `customer` asks for.

        Raises:
            BadEvent, BadTag: it is no feedback.
            BadPlan: it is no refusal, or one of another customer's job.

        """
        said = feedback.parse(event)
        if said.status != "busy" or said.customer != customer:
            raise BadPlan("busy", f"{said.id[:8]} is no refusal of this customer's job")
        return cls(said.id, said.provider)


@dataclass(frozen=True, slots=True)
class CertifiedEpoch:
    """What a committee has certified of an epoch, and drawn for it."""

    committee: Committee
    body: Body
    beacon: str
    """Of the body, 64 hex digits."""


class Offer(NamedTuple):
    """One node's offer for one task: price per chunk, certified speed, and its weight in the draw."""

    node: Node
    price_msat: int
    us: int
    weight: int
    bonded: bool


def assign(
    manifest: Manifest,
    snapshot: Snapshot,
    *,
    epoch: CertifiedEpoch,
    terms: Terms,
    customer: str,
    k: int = 0,
    busy: Sequence[Busy] = (),
    manifest_digest: str | None = None,
) -> Plan:
    """The plan.

    `epoch` cites `snapshot`, whose SHA-256 the caller has checked. `customer` is a pubkey, `k` the redraw;
    `manifest_digest` saves hashing a manifest again.

    Raises:
        NoProvider: nobody offers a task under the terms; `field` is the task's name.
        OverBudget: every choice costs more than the terms allow.
        BadInput: snapshot, body and committee do not belong together, or k or busy is out of range.
        BadPlan: the terms narrow an edge that cannot be, or have a model sampled that answers tokens.

    """
    body, beacon, committee = epoch.body, epoch.beacon, epoch.committee
    if not (snapshot.committee == body.committee == committee.digest() and snapshot.epoch == body.epoch):
        raise BadInput("snapshot", "not of this committee and epoch")
    if not 0 <= k < MAX_REDRAWS or len(busy) > MAX_BUSY:
        raise BadInput("k" if len(busy) <= MAX_BUSY else "busy", "out of range")
    codings(manifest, terms.codecs)  # refused here, or kept by everybody
    if terms.verify == "sampled" and manifest.lends_its_head:
        raise BadPlan("terms.verify", _UNSAMPLED)
    digest = manifest_digest or manifest.digest()
    seed = tagged_hash("nodewire/assign/2", bytes.fromhex(beacon + digest + customer) + bytes([k]))
    left_out = {*terms.excluded, *(b.provider for b in busy)}
    offers = _offers(manifest, digest, snapshot, committee, terms, left_out)
    has_failed = any(node.pubkey in left_out and not committee.is_bond(node.bond_msat) for node in snapshot.nodes)
    drawn = _draw_each(manifest, offers, seed, has_failed=has_failed)
    links = _links(manifest)
    placed = _place(manifest, drawn, links, terms)
    total_msat = sum(offer.price_msat for offer in placed.values())
    if total_msat > terms.max_total_msat:
        raise OverBudget(
            "max_total_msat", f"one chunk costs {total_msat} msat, {terms.max_total_msat} msat are allowed"
        )
    first_ms, next_ms = _deadlines_ms(manifest, placed, links)
    sampled = terms.verify == "sampled"
    return Plan(
        manifest=digest,
        committee=body.committee,
        epoch=body.epoch,
        snapshot=body.snapshot,
        certificate=body.digest(),
        beacon=beacon,
        customer=customer,
        k=k,
        busy=tuple(b.id for b in busy),
        terms=terms,
        tasks=tuple(_assignment(task.name, placed) for task in manifest.tasks),
        chunk_msat=total_msat,
        first_result_ms=first_ms,
        next_result_ms=next_ms,
        verification=Verification(
            policy=terms.verify,
            rate_ppm=committee.verify_rate_ppm if sampled else 0,
            share_ppm=committee.verify_share_ppm if sampled else 0,
        ),
    )


def open_task(seed: bytes, offers: Mapping[str, Sequence[Offer]]) -> str | None:
    """The task, if any, that this plan opens to one unbonded node (step 4); `offers` in the manifest's order."""
    q = int.from_bytes(tagged_hash("nodewire/quota/2", seed), "big")
    if q % UNBONDED_ONE_IN:
        return None
    contested = [task for task, those in offers.items() if len({offer.bonded for offer in those}) == 2]
    return contested[q // UNBONDED_ONE_IN % len(contested)] if contested else None


def _draw_each(
    manifest: Manifest, offers: dict[str, list[Offer]], seed: bytes, *, has_failed: bool
) -> dict[str, list[Offer]]:
    """By task, the offers that are drawn. `has_failed`: an unbonded node did, so none gets a task by the same seed."""
    open_ = None if has_failed else open_task(seed, offers)
    return {
        task.name: draw(seed, number, offers[task.name], is_open=task.name == open_)
        for number, task in enumerate(manifest.tasks)
        if task.name in offers
    }


def draw(seed: bytes, number: int, offers: Sequence[Offer], *, is_open: bool = False) -> list[Offer]:
    """Up to 8 of the offers (sorted by pubkey) for task `number`, by the verifiable weighted draw of step 5."""
    bonded, unbonded = _Pool([o for o in offers if o.bonded]), _Pool([o for o in offers if not o.bonded])
    is_open = is_open and bool(bonded.offers and unbonded.offers)
    found: list[Offer] = []
    pool = bonded if bonded.offers else unbonded
    for j in range(CANDIDATES):
        source = unbonded if is_open and j == 0 else pool
        if not source.offers:
            break
        data = seed + number.to_bytes(4, "big") + j.to_bytes(4, "big")
        found.append(source.draw(int.from_bytes(tagged_hash("nodewire/draw/2", data), "big")))
    return found


class _Pool:
    """Offers that have not been drawn yet, with their weights beside them."""

    def __init__(self, offers: list[Offer]) -> None:
        self.offers, self.weights = offers, [offer.weight for offer in offers]

    def draw(self, value: int) -> Offer:
        sums = list(accumulate(self.weights))
        index = bisect_right(sums, value % sums[-1])
        self.weights.pop(index)
        return self.offers.pop(index)


def link_us(a: Node, b: Node) -> int:
    """How long a small frame is expected to take from one node to the other, in microseconds, by what is certified."""
    if not (a.is_placed and b.is_placed):
        return FAR_US
    return coordinates.rtt_us(a.coordinates, b.coordinates) // 2


def _offers(
    manifest: Manifest, digest: str, snapshot: Snapshot, committee: Committee, terms: Terms, left_out: set[str]
) -> dict[str, list[Offer]]:
    """By task, all offers under the terms, sorted by pubkey (as the snapshot's nodes are)."""
    trusted, regions = set(terms.trusted), set(terms.regions)
    local, ends = terms.local(manifest), manifest.ends if terms.ends else frozenset[str]()
    offers: dict[str, list[Offer]] = {task.name: [] for task in manifest.tasks if task.name not in local}
    if not offers:
        raise NoProvider("driver", "all tasks are the customer's own: nothing is left to buy")
    for node in snapshot.nodes:
        held = next((h for h in node.held if h.manifest == digest and h.free > 0), None)
        if held is None or node.pubkey in left_out:
            continue
        if (trusted and node.pubkey not in trusted) or (regions and node.region not in regions):
            continue
        share, bonded = _share(node, committee), committee.is_bond(node.bond_msat)
        for task in held.tasks:
            if task.task in ends and node.pubkey not in terms.ends:
                continue
            if task.task in offers and task.price_msat <= terms.max_chunk_msat:
                us = task.us_per_position
                weight = share * (1_000_000 // us or 1) * repute(node, task.price_msat, committee.verify_share_ppm)
                offers[task.task].append(Offer(node, task.price_msat, us, weight, bonded))
    for name, found in offers.items():
        if not found:
            raise NoProvider(name, "no live node with a free slot offers this task under the terms")
    return offers


def _share(node: Node, committee: Committee) -> int:
    """The part of a weight that is the same for all of a node's tasks."""
    units = min(max(node.bond_msat // committee.bond_unit_msat, 1), MAX_UNITS)
    idle = 16 - node.load_ppm * 8 // 1_000_000
    return units * idle * (4 + min(node.epochs, 4_095).bit_length())


def repute(node: Node, price_msat: int, share_ppm: int) -> int:
    """What certified verdicts on a node's work make of its weight for a task at this price: 10,000,000 for none.

    Passes can be bought, by jobs for one's own nodes: so all of them together add less to a weight than the share of
    their price that the committee was paid for each (`policy.SelfDealingModel`).
    """
    chunks, withheld = reputation.shown(node.passed) // max(price_msat, 1), reputation.shown(node.withheld)
    return (10_000_000 + share_ppm * min(chunks.bit_length(), 8)) >> min(withheld, 4)


Links = dict[str, list[tuple[str, int]]]
"""By task: every edge's other end, and how long its bytes take on a link (us)."""


def _links(manifest: Manifest) -> Links:
    links: Links = {task.name: [] for task in manifest.tasks}
    for edge in manifest.edges:
        if CUSTOMER in (edge.source, edge.target) or edge.source == edge.target:
            continue
        transfer_us = edge.bytes_per_position * 1_000 // LINK_BYTES_PER_MS
        links[edge.source].append((edge.target, transfer_us))
        links[edge.target].append((edge.source, transfer_us))
    return links


def _links_us(node: Node, links: list[tuple[str, int]], placed: dict[str, Offer]) -> int:
    total_us = 0
    for other, transfer_us in links:
        neighbour = placed.get(other)
        if neighbour is not None and neighbour.node.pubkey != node.pubkey:
            total_us += link_us(node, neighbour.node) + transfer_us
    return total_us


def _first_near_least(offers: Sequence[Offer], links: list[tuple[str, int]], placed: dict[str, Offer]) -> Offer:
    """Of offers in the order of their draw, the first whose cost is at most 5/4 of the least."""
    costs = [offer.us + _links_us(offer.node, links, placed) for offer in offers]
    least = min(costs)
    return next(offer for offer, cost in zip(offers, costs, strict=True) if 4 * cost <= 5 * least)


def _place(manifest: Manifest, drawn: dict[str, list[Offer]], links: Links, terms: Terms) -> dict[str, Offer]:
    placed: dict[str, Offer] = {}
    least_msat = {task: min(o.price_msat for o in offers) for task, offers in drawn.items()}
    later_msat = sum(least_msat.values())
    left_msat = terms.max_chunk_msat
    for task in manifest.tasks:
        if task.name not in drawn:
            continue
        later_msat -= least_msat[task.name]
        affordable = [offer for offer in drawn[task.name] if offer.price_msat + later_msat <= left_msat]
        if not affordable:
            raise OverBudget("max_chunk_msat", f"task {task.name} and those after it cost more than what is left")
        placed[task.name] = _first_near_least(affordable, links[task.name], placed)
        left_msat -= placed[task.name].price_msat
    return placed


def _assignment(task: str, placed: dict[str, Offer]) -> Assignment:
    if task not in placed:
        return Assignment(task=task, provider=LOCAL, price_msat=0)
    chosen = placed[task]
    return Assignment(task=task, provider=chosen.node.pubkey, price_msat=chosen.price_msat)


def _deadlines_ms(manifest: Manifest, placed: dict[str, Offer], links: Links) -> tuple[int, int]:
    compute_us = sum(offer.us for offer in placed.values())
    # every link is seen from both of its ends
    travel_us = sum(_links_us(offer.node, links[task], placed) for task, offer in placed.items()) // 2
    next_ms = min(NEXT_FLOOR_MS + (compute_us + travel_us) * NEXT_PER_US // 1_000, 600_000)
    first_ms = min(5_000 + next_ms + compute_us * max(manifest.context, 1) // 1_000, 600_000)
    return first_ms, next_ms
