"""Which of a job's roots are final: the commitments that quorum certificates hold, read from relays and stores."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee import quorum_certificate as certificate
from nodewire.protocol.encoding import tags
from nodewire.protocol.job.chunk import claim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.market import Market
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.committee.commitment import ChunkRoot, CommitmentEvent
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.quorum_certificate import Certificate
    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.job.request import Request

_TOPICS_PER_FETCH = 64
_MANY_TAGS = 256
"""A commitment to more requests does not name them all in tags."""
log = logging.getLogger("nodewire.customer")


@dataclass(frozen=True, slots=True)
class CertifiedRoot:
    """A commitment event's root that the certified body of `epoch` (`certificate`: its digest) holds."""

    provider: str
    root: ChunkRoot
    commitment: str
    epoch: int
    certificate: str


@dataclass(frozen=True, slots=True)
class Finality:
    """`roots` by provider and the root's key: the first that a certificate holds.

    `committed` are all events that say that they commit to something of the job; `unread` the epochs of which something
    could not be had: what they hold besides is not known.
    """

    roots: dict[tuple[str, str, str, int, int], CertifiedRoot]
    certificates: dict[int, Certificate]
    committed: dict[str, CommitmentEvent]
    unread: dict[int, str]

    def of_chunk(self, plan: Plan, provider: str, chunk: int, attempt: int) -> list[CertifiedRoot]:
        """The provider's final roots of a chunk at an attempt, in the order of the plan's tasks."""
        order = {a.task: n for n, a in enumerate(plan.tasks)}
        found = [
            one
            for (who, _, task, number, at), one in self.roots.items()
            if (who, number, at) == (provider, chunk, attempt) and task in order
        ]
        return sorted(found, key=lambda one: order[one.root.task])

    def claimed(self, plan: Plan, provider: str, chunk: int, attempt: int, root: str) -> CertifiedRoot | None:
        """What makes the work final that a provider claimed payment for with `root`; None if nothing does."""
        found = self.of_chunk(plan, provider, chunk, attempt)
        if not found or claim([one.root for one in found]) != root:
            return None
        return max(found, key=lambda one: (one.epoch, one.commitment))


async def final_roots(
    request: str, plan: Plan, market: Market, relays: Relays, *, also: Iterable[int] = ()
) -> Finality:
    """What certificates hold of a job. Raises as `Relays.fetch_all`.

    The job is no older than its plan's epoch, by a certificate. The request's date is its customer's word: one of long
    ago would have years of commitments read, and one of tomorrow none.

    Read are the epochs that relays have commitments to it for. Whoever concludes something from there being none reads
    `also` those in which one may be certified: its author may have deleted it.
    """
    members = frozenset(plan.providers())
    since_s = market.committee.close_ms(plan.epoch - 1) // 1000
    wanted = Filter(kinds=frozenset({kinds.COMMITMENT}), authors=members, since=since_s)
    committed: dict[str, CommitmentEvent] = {}
    for event in await relays.fetch_all([wanted]):
        named = event.values("e")
        if request not in named and len(named) < _MANY_TAGS:
            continue
        try:
            committed[event.id] = commitment.parse(event)
        except BadInput:
            continue
    epochs = {one.epoch for one in committed.values()}.union(also)
    found = Finality({}, await certificates(relays, market.committee, epochs), committed, {})
    for epoch, certified in sorted(found.certificates.items()):
        try:
            held = await market.contents(certified.body)
        except NodewireError as error:
            log.info("epoch %d cannot be read: %s", epoch, error)
            found.unread[epoch] = str(error)
            continue
        if held.lacking:
            found.unread[epoch] = f"{len(held.lacking)} commitments are not to be had, such as {held.lacking[0]}"
        for one in sorted(held.commitments, key=lambda one: one.id):
            for root in one.chunks:
                late = epoch > plan.deadline_epoch(root.chunk, market.committee.epoch_ms)
                if root.request == request and one.provider in members and not late:
                    final = CertifiedRoot(one.provider, root, one.id, epoch, certified.digest)
                    found.roots.setdefault((one.provider, *root.key), final)
    return found


async def final_claims(
    request: Request, claims: Iterable[Feedback], epochs: int, market: Market, relays: Relays
) -> Finality:
    """As `final_roots`; where it makes a claim not final, every certificate up to `epochs` after the claim is read.

    Raises as `Relays.fetch_all`.
    """
    plan, committee = request.plan, market.committee
    found = await final_roots(request.id, plan, market, relays)
    open_ = [
        said
        for said in claims
        if (due := said.due) is not None
        and found.claimed(plan, said.provider, due.chunk, due.attempt, due.root) is None
    ]
    began = {committee.epoch_at(said.created_at * 1000) for said in open_}
    also = {first + n for first in began for n in range(epochs + 1)}
    if not also - found.certificates.keys():
        return found
    return await final_roots(request.id, plan, market, relays, also=also)


async def certificates(relays: Relays, committee: Committee, epochs: Iterable[int]) -> dict[int, Certificate]:
    """The quorum certificates of these epochs, checked; without those that no relay has."""
    digest, numbers = committee.digest(), sorted(set(epochs))
    oracles = frozenset(oracle.pubkey for oracle in committee.oracles)
    found: dict[int, Certificate] = {}
    for i in range(0, len(numbers), _TOPICS_PER_FETCH):
        topics = frozenset(tags.epoch_topic(number) for number in numbers[i : i + _TOPICS_PER_FETCH])
        about = {"c": frozenset({digest}), "n": topics}
        wanted = Filter(kinds=frozenset({kinds.CERTIFICATE}), authors=oracles, tags=about)
        for event in await relays.fetch_all([wanted]):
            try:
                one = certificate.parse(event)
                if one.body.epoch not in found:
                    one.check(committee)
                    found[one.body.epoch] = one
            except BadInput:
                continue
    return found
