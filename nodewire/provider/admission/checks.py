"""Whether a provider takes a job: the cheap checks first, the plan re-derived last. nips/11-job-requests.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadPlan, NodeFailed, NodewireError, NotAllowed, NotFound, PaymentRequired, TooLarge
from nodewire.errors import Busy as NoRoom
from nodewire.nostr.nips import nip13
from nodewire.nostr.nips.nip01 import Filter
from nodewire.plan.assign import Busy, CertifiedEpoch, assign
from nodewire.protocol import kinds
from nodewire.protocol.committee import beacon
from nodewire.protocol.job import feedback
from nodewire.protocol.job import request as job
from nodewire.protocol.market.ad import LOOKAHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.kind import Params
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.job.request import Request, Ticket
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.provider.admission.free_chunks import FreeChunks

_FETCH_S = 5.0


class Derive(Protocol):
    """What a plan must be."""

    @property
    def committee_digest(self) -> str:
        """What plans cite as their committee."""

    @property
    def most_partials(self) -> int:
        """Of a beacon, that a request may bring."""

    async def plan(self, request: Request, manifest: Manifest) -> Plan:
        """The plan that follows from what the request cites, under the terms that it says.

        Raises a NodewireError where there is none.
        """


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """A checked job that this provider runs. `event` is the request's."""

    event: Event
    ticket: Ticket
    request: Request
    manifest: Manifest
    params: Params


class Admission:
    """Checks requests against what this provider serves, whom it trusts and who owes it."""

    def __init__(
        self,
        public: str,
        derive: Derive,
        ledger: Ledger,
        manifest: Callable[[str], Manifest | None],
        pow_bits: int,
        lookahead: int = LOOKAHEAD,
        free: FreeChunks | None = None,
    ) -> None:
        """`manifest`: by its digest, one that something is held of.

        `lookahead`: the most of a plan. `free`: what is computed before it is paid; first chunks are not bounded unless
        given.
        """
        self.free = free
        self._lookahead = lookahead
        self._public = public
        self._derive = derive
        self._ledger = ledger
        self._manifest = manifest
        self._pow_bits = pow_bits

    def glance(self, event: Event, now_s: float) -> tuple[Request, Manifest]:
        """What needs no I/O: form, work, debt, manifest, committee, that this provider is in the plan.

        Raises:
            BadEvent, BadTag, BadPlan, BadVersion, TooLarge: the request is malformed.
            NotAllowed: too little work, nothing of it is served here, or it has been served before.
            PaymentRequired: the customer let an earlier job's payment pass its time.
            WorkRequired, Busy: its key has no credit here, and there are many such.

        """
        nip13.check(event, self._pow_bits)
        request = job.parse(event)
        if self._public not in request.plan.providers():
            raise NotAllowed("p", "this provider is not in the plan")
        if self._ledger.in_debt(request.customer, now_s):
            raise PaymentRequired("customer", "an earlier job's chunk is unpaid")
        manifest = self._manifest(request.plan.manifest)
        if manifest is None:
            raise NotAllowed("x", "this manifest is not served here")
        if request.plan.committee != self._derive.committee_digest:
            raise NotAllowed("committee", "another committee than this provider accepts")
        if request.plan.terms.lookahead > (self._lookahead if manifest.mode == "generate" else 1):
            raise NotAllowed("lookahead", f"{request.plan.terms.lookahead}, more than this provider's ad takes")
        if len(request.partials) > self._derive.most_partials:
            raise TooLarge("partials", f"{len(request.partials)}, the committee has fewer oracles")
        if self._ledger.has_job(request.id):
            raise NotAllowed("id", "this request has been served")
        if (free := self._free_for(request)) is not None:
            free.check(event)
        return request, manifest

    def begin(self, request: Request, origin: str) -> None:
        """The first chunk of a job begins, whose customer's link comes from `origin` (empty: not known).

        Raises Busy: that origin has as much computed for nothing as it may have.
        """
        if (free := self._free_for(request)) is not None:
            free.begin(request.id, request.customer, origin)

    def opened(self, request: Request) -> None:
        """A job has a slot."""
        if (free := self._free_for(request)) is not None:
            free.opened(request.id, request.customer)

    def ended(self, request: Request) -> None:
        """A job is over, whether or not it ever began."""
        if self.free is not None:
            self.free.ended(request.id)

    def _free_for(self, request: Request) -> FreeChunks | None:
        """The bounds on the first chunk of a job; None where it costs nothing."""
        return self.free if request.plan.price_msat(self._public) > 0 else None

    async def check(self, request: Request, manifest: Manifest) -> None:
        """That the plan is the one that follows from what it stands on.

        Raises:
            BadPlan: it is not.
            NodewireError: as `Derive.plan`.

        """
        expected = await self._derive.plan(request, manifest)
        if expected != request.plan:
            raise BadPlan(_first_difference(expected, request.plan), f"not what {expected.algorithm} gives")


class CertifiedPlanner:
    """By `assign/2`, from what a committee certified (a Derive)."""

    def __init__(self, market: Market, relays: EventTransport) -> None:
        self._market, self._relays = market, relays

    @property
    def committee_digest(self) -> str:
        return self._market.committee_digest

    @property
    def most_partials(self) -> int:
        return len(self._market.committee.oracles)

    async def plan(self, request: Request, manifest: Manifest) -> Plan:
        """By the certificate and the beacon that the request cites.

        Raises:
            NotFound, BadQuorum, NoQuorum, BadHash: what the plan stands on is missing or not certified.
            NotAllowed: the epoch is too old.
            BadEvent, BadTag: what the plan cites as a refusal is not even feedback.
            BadPlan: it cites refusals that are none.

        """
        plan = request.plan
        # First what only the committee can have made: a stranger's invention makes nobody ask relays or stores.
        value = beacon.combine(
            self._market.committee, plan.certificate, [beacon.parse(partial) for partial in request.signed_partials()]
        )
        body = await self._market.certified(plan.certificate, request.certificate_event)
        if not self._market.is_valid(body):
            raise NotAllowed("epoch", f"the plan's, {plan.epoch}, is too old: plan again by the newest certificate")
        snapshot = await self._market.snapshot(body.snapshot)
        return assign(
            manifest,
            snapshot,
            epoch=CertifiedEpoch(self._market.committee, body, value),
            terms=plan.terms,
            customer=plan.customer,
            k=plan.k,
            busy=await self._busy(plan),
        )

    async def _busy(self, plan: Plan) -> list[Busy]:
        """The signed refusals that the plan cites, in its order."""
        if not plan.busy:
            return []
        wanted = Filter(ids=frozenset(plan.busy), kinds=frozenset({kinds.FEEDBACK}))
        found = {event.id: event for event in await self._relays.fetch([wanted], timeout_s=_FETCH_S)}
        if missing := [id_ for id_ in plan.busy if id_ not in found]:
            raise NotFound("busy", f"no relay has the feedback {missing[0][:8]}")
        return [Busy.cited(found[id_], plan.customer) for id_ in plan.busy]


def _first_difference(expected: Plan, plan: Plan) -> str:
    a, b = expected.document(), plan.document()
    return next((name for name in a if a[name] != b[name]), "plan")


def feedback_for(error: NodewireError) -> tuple[feedback.Status, str]:
    """Which status a refusal has, and the public text of it. A node that cannot serve now is busy, and says why."""
    return ("busy" if isinstance(error, NoRoom | NodeFailed) else "error"), error.code
