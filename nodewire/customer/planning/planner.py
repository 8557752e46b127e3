"""Draws a plan: the newest certified epoch, its snapshot, and `assign/2` under the customer's terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.customer.planning.failed_providers import FailedProviders
from nodewire.errors import NoProvider, OverBudget
from nodewire.pay.bond.settlement import job_share_ppm
from nodewire.plan.assign import Busy, CertifiedEpoch, assign
from nodewire.plan.codec import Link, Predict, Wish, codecs, predicted
from nodewire.protocol.job.plan import MAX_EXCLUDED, Plan, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.plan.epoch import Epoch
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.snapshot import Node, Snapshot
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.wire.measure.link_health import Health

PATIENCE_EPOCHS = 3
"""How many further epochs may bring a provider for a task that has none."""

EPOCH_S = 30.0
"""How long a customer waits for a certified epoch."""

MAX_POW_BITS = 20
"""Seconds of work. Who demands more in its ad is not planned with."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A plan, what it stands on, and its providers' ads (addresses, LNURL endpoints, required work)."""

    plan: Plan
    certificate: str
    """What says on what the plan stands: the id of the epoch's certificate."""
    partials: tuple[Event, ...]
    """Of its beacon."""
    ads: dict[str, Ad]
    holders: dict[str, int]
    """How many live nodes with a free slot hold each task: what the draw was among."""

    @property
    def pow_bits(self) -> int:
        return max((ad.pow_bits for ad in self.ads.values()), default=0)


class Planner(Protocol):
    """Where a customer's plans come from."""

    def terms(self, asked: Terms, units: int) -> Terms:
        """The terms that providers get, of what the customer asks for, in a job of so many units at most."""

    async def draw(
        self, manifest: Manifest, terms: Terms, *, busy: Sequence[Busy], wish: Wish | None, patience: int
    ) -> Draw:
        """The plan after those that these have refused. Raises NoProvider: there is none; or as its kind says."""

    def note_failed(self, providers: Iterable[str]) -> None:
        """These were not there when they were needed."""


class MarketPlanner:
    """Draws by what a committee certified (a Planner)."""

    def __init__(self, market: Market, customer: str, health: Mapping[str, Health]) -> None:
        """`health` of this customer's own links, by public key of the other end."""
        self._market, self._customer, self._health = market, customer, health
        self._gone = FailedProviders(market.committee)

    def terms(self, asked: Terms, units: int) -> Terms:
        """Their budget is what the verification shares leave of the customer's."""
        if asked.verify != "sampled":
            return asked
        share_ppm = job_share_ppm(self._market.committee.verify_share_ppm, units)
        left_msat = asked.max_total_msat * 1_000_000 // (1_000_000 + share_ppm)
        return asked.model_copy(update={"max_total_msat": left_msat})

    async def draw(
        self, manifest: Manifest, terms: Terms, *, busy: Sequence[Busy], wish: Wish | None, patience: int
    ) -> Draw:
        """The plan that the newest epoch gives after those that `busy` have refused.

        What a `wish` narrows comes into its terms, beside the edges that `terms` name themselves, by what is known of
        links. Who has failed lately is left out where there is a plan without them.

        Raises:
            NoQuorum: no epoch was certified in time.
            NoProvider: a task has no live provider under these terms.
            OverBudget: one chunk would cost more than the terms allow, or than the whole job may.
            BadPlan: the terms narrow an edge that cannot be.

        """
        epoch = await self._market.epoch(timeout_s=EPOCH_S)
        last, digest = epoch.body.epoch + patience, manifest.digest()
        while True:
            snapshot = await self._market.snapshot(epoch.body.snapshot)
            try:
                plan, ads = self._planned(manifest, terms, epoch, snapshot, busy)
                break
            except NoProvider:
                # A provider that has just come, or come back, is in the next snapshots.
                if epoch.body.epoch >= last:
                    if not any(held.manifest == digest for node in snapshot.nodes for held in node.held):
                        raise NoProvider("model", f"no provider serves {manifest.name} yet") from None
                    raise
                epoch = await self._market.epoch(timeout_s=EPOCH_S, after=epoch.body.epoch)
        _check_budget(plan, terms)
        if wish is not None:
            wished = {**codecs(plan, manifest, snapshot, wish, known(self._health)), **plan.terms.codecs}
            plan = plan.model_copy(update={"terms": plan.terms.model_copy(update={"codecs": wished})})
        return Draw(plan, epoch.certificate.id, epoch.partials, ads, _holders(snapshot, plan))

    def _planned(
        self, manifest: Manifest, terms: Terms, epoch: Epoch, snapshot: Snapshot, busy: Sequence[Busy]
    ) -> tuple[Plan, dict[str, Ad]]:
        """The plan of an epoch and its members' ads, without those who have failed lately, or else with them.

        Raises as `assign`.
        """
        avoiding = _avoiding(terms, self._gone.now(snapshot))
        under = partial(
            _planned,
            manifest,
            snapshot,
            epoch=CertifiedEpoch(self._market.committee, epoch.body, epoch.beacon),
            customer=self._customer,
            busy=busy,
            k=len(busy),
        )
        try:
            return under(avoiding)
        except (NoProvider, OverBudget):
            if avoiding == terms:
                raise
            return under(terms)

    def note_failed(self, providers: Iterable[str]) -> None:
        self._gone.note(providers)


def known(health: Mapping[str, Health]) -> Predict:
    """A customer's own links as it has found them, by public key of the other end; all others as `predicted`.

    Nobody publishes bandwidths. That a link carried little counts only if there was more to send.
    """

    def predict(a: Node | None, b: Node | None) -> Link:
        link = predicted(a, b)
        peer = a or b
        found = health.get(peer.pubkey) if peer is not None and None in (a, b) else None
        if found is None:
            return link
        latency_us = found.rtt.least_us // 2 if found.rtt is not None else link.latency_us
        at_least = max(link.bytes_per_ms, found.bytes_per_s // 1_000)
        return Link(latency_us, found.path_bytes_per_s // 1_000 or at_least)

    return predict


def _check_budget(plan: Plan, terms: Terms) -> None:
    """Raises OverBudget."""
    if plan.chunk_msat > terms.max_chunk_msat:
        raise OverBudget("chunk_msat", f"{plan.chunk_msat} msat a chunk, at most {terms.max_chunk_msat} msat allowed")
    if plan.chunk_msat > terms.max_total_msat:
        cost, budget = f"{plan.chunk_msat / 1000:g} sat", f"{terms.max_total_msat / 1000:g} sat"
        raise OverBudget("max_total_msat", f"one chunk costs {cost}, the budget for the whole job is {budget}")


def lookahead_of(plan: Plan, ads: Iterable[Ad]) -> int:
    """What the plan's terms ask for, or what its members take if that is less."""
    return min((plan.terms.lookahead, *(ad.lookahead for ad in ads)))


def _avoiding(terms: Terms, whom: Sequence[str]) -> Terms:
    excluded = tuple(dict.fromkeys((*terms.excluded, *whom)))[:MAX_EXCLUDED]
    return terms.model_copy(update={"excluded": excluded}) if whom else terms


def _planned(manifest: Manifest, snapshot: Snapshot, terms: Terms, **fields: Any) -> tuple[Plan, dict[str, Ad]]:
    """The plan under these terms of nobody who demands too much work, and its members' ads. Raises as `assign`."""
    while True:
        plan = assign(manifest, snapshot, terms=terms, **fields)
        ads = snapshot.ads(set(plan.providers()))
        if (lookahead := lookahead_of(plan, ads.values()) if manifest.mode == "generate" else 1) < terms.lookahead:
            terms = terms.model_copy(update={"lookahead": lookahead})
            continue
        greedy = tuple(sorted(p for p, ad in ads.items() if ad.pow_bits > MAX_POW_BITS))
        if not greedy:
            return plan, ads
        if len(terms.excluded) + len(greedy) > MAX_EXCLUDED:
            raise NoProvider("pow_bits", f"over {MAX_POW_BITS} are demanded everywhere")
        terms = terms.model_copy(update={"excluded": terms.excluded + greedy})


def _holders(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    held = [h for node in snapshot.nodes for h in node.held if h.manifest == plan.manifest and h.free]
    return {a.task: sum(any(t.task == a.task for t in h.tasks) for h in held) for a in plan.tasks}
