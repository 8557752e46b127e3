"""A provider as Prometheus sees it: jobs, what they brought in, its bond, and whether the committee lists it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import NodewireError
from nodewire.metrics.family import CODES, OTHER, Labels, capped, counter, gauge, histogram
from nodewire.pay.accounts import earnings
from nodewire.protocol.market.bond import BondStatement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_client.core import Metric

    from nodewire.kind import Worker
    from nodewire.market import Market
    from nodewire.metrics.durations import Durations
    from nodewire.provider.job_counters import Figures
    from nodewire.provider.market.bond import BondKeeper
    from nodewire.provider.outage import Outage
    from nodewire.provider.tasks.registry import Specializations

JOBS = counter(
    "nodewire_provider_jobs_total",
    "Jobs by the request's kind: served, failed after they were begun, or refused; the code says why.",
    *("kind", "outcome", "code"),
)
TIME = histogram("nodewire_provider_job_seconds", "Jobs served, from admission to the last payment.", "kind")
IN_FLIGHT = gauge("nodewire_provider_jobs_in_flight", "Jobs that are open now.", "kind")
CHUNKS = counter("nodewire_provider_chunks_total", "Chunks of inference that were computed and committed to.")
WAITS = counter(
    "nodewire_provider_payment_wait_seconds_total",
    "Seconds that chunks of inference waited until one before was paid, or within its customer's credit.",
)
STEPS = counter("nodewire_provider_training_steps_total", "Inner steps of rounds that were delivered.")
UNTOLD = counter(
    "nodewire_provider_refusals_untold_total", "Refusals that nobody was told, for the day's room for them was full."
)
SLOTS = gauge("nodewire_provider_slots", "Sessions that a model may have here at a time.", "model", "manifest")
BUSY = gauge(
    "nodewire_provider_slots_busy", "Slots that are taken; a short session takes a part of one.", "model", "manifest"
)
PRICE = gauge("nodewire_provider_price_msat", "A chunk's price, over all tasks held of a model.", "model", "manifest")
FREE = gauge("nodewire_provider_training_workers_free", "Workers that could begin a round now.")
PAID = counter(
    "nodewire_provider_paid_msat_total", "Millisats that the own wallet received for work, by the whole ledger."
)
PAYMENTS = counter("nodewire_provider_payments_total", "Payments that make up this sum.")
DEPOSITS = counter("nodewire_provider_deposits_msat_total", "Millisats that customers have paid in ahead.")
TIPS = counter(
    "nodewire_provider_tips_msat_total", "Millisats that came for no work: zaps of strangers, and plain payments."
)
OWED = gauge("nodewire_provider_owed_msat", "Millisats for delivered chunks that are unpaid and in time.")
OVERDUE = gauge(
    "nodewire_provider_overdue_msat",
    "Millisats for delivered chunks that were not paid in time: lost, unless the customers come again.",
)
BOND = gauge("nodewire_provider_bond_msat", "The bond, as its holder states it.")
BOND_UNTIL = gauge("nodewire_provider_bond_statement_expires_timestamp_seconds", "The end of the holder's statement.")
EPOCH = gauge("nodewire_market_epoch", "The epoch that is open, by this machine's clock.")
CERTIFIED_EPOCH = gauge("nodewire_market_certified_epoch", "The newest epoch whose certificate has come.")
LISTED = gauge(
    "nodewire_provider_certified",
    "1 if the newest certified snapshot that was read lists this provider. One that has come since the last scrape is"
    " read by the next.",
)
OUTAGE = gauge(
    "nodewire_provider_outage", "1 while this node cannot serve for a reason of its own; the cause says which.", "cause"
)
JOB_FAMILIES = (JOBS, TIME, IN_FLIGHT, CHUNKS, WAITS, STEPS, UNTOLD, PAID, PAYMENTS, DEPOSITS, TIPS, OWED, OVERDUE)
SERVING_FAMILIES = (SLOTS, BUSY, PRICE, BOND, BOND_UNTIL, EPOCH, CERTIFIED_EPOCH, LISTED, OUTAGE)
TRAINING_FAMILIES = (FREE,)


class Half(Protocol):
    """What serves one kind of request, or several."""

    figures: Figures

    @property
    def in_flight(self) -> Mapping[int, int]: ...


class Jobs:
    """Of all halves. To be collected on the event loop."""

    def __init__(self, halves: Sequence[Half]) -> None:
        self._halves = halves

    def collect(self) -> Iterator[Metric]:
        ended: Counter[Labels] = Counter()
        took: dict[Labels, Durations] = {}
        open_: Counter[Labels] = Counter()
        for half in self._halves:
            for (kind, outcome, code), count in half.figures.ended.items():
                ended[_kind(kind), outcome, capped(code, CODES) if code else ""] += count
            took |= {(_kind(kind),): durations for kind, durations in half.figures.took.items()}
            open_.update({(_kind(kind),): count for kind, count in half.in_flight.items()})
        yield JOBS.by(ended)
        yield TIME.spread(took)
        yield IN_FLIGHT.by(open_)
        yield CHUNKS.to_metric(sum(half.figures.chunks for half in self._halves))
        yield WAITS.to_metric(sum(half.figures.waits_s for half in self._halves))
        yield STEPS.to_metric(sum(half.figures.steps for half in self._halves))
        yield UNTOLD.to_metric(sum(half.figures.untold for half in self._halves))


class Till:
    """What the ledger at `path` says. To be collected apart."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        found = earnings.read(self._path, time.time())
        yield PAID.to_metric(found.paid_msat)
        yield PAYMENTS.to_metric(found.paid)
        yield DEPOSITS.to_metric(found.deposits_msat)
        yield TIPS.to_metric(found.tips_msat)
        yield OWED.to_metric(found.owed_msat)
        yield OVERDUE.to_metric(found.overdue_msat)


class Stall:
    """What is sold here, and on what standing. To be collected on the event loop."""

    def __init__(self, public: str, held: Specializations, bonding: BondKeeper, market: Market, outage: Outage) -> None:
        self._public = public
        self._held = held
        self._bonding = bonding
        self._market = market
        self._outage = outage
        self._read = ""
        """The digest of the body whose snapshot was read last."""
        self._reading: asyncio.Task[None] | None = None
        self._is_listed = False

    def collect(self) -> Iterator[Metric]:
        named = {(one.manifest.name, one.digest[:8]): one for one in self._held.offered}
        yield SLOTS.by({labels: one.slots for labels, one in named.items()})
        yield BUSY.by({labels: one.slots * one.room.taken / one.room.pages for labels, one in named.items()})
        yield PRICE.by({labels: sum(one.prices_msat.values()) for labels, one in named.items()})
        held = self._bonding.held or BondStatement("", "", 0, 0)
        yield BOND.to_metric(held.amount_msat)
        yield BOND_UNTIL.to_metric(held.expires_at_s)
        newest = self._market.newest()
        yield EPOCH.to_metric(self._market.committee.epoch_at(int(time.time() * 1000)))
        yield CERTIFIED_EPOCH.to_metric(newest.epoch if newest is not None else -1)
        yield LISTED.to_metric(self._is_listed)
        cause = self._outage.cause
        yield OUTAGE.by({(cause.field,): 1} if cause is not None else {})
        if newest is not None and newest.digest() != self._read and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._look(newest.digest(), newest.snapshot))

    async def _look(self, digest: str, snapshot: str) -> None:
        try:
            found = await self._market.snapshot(snapshot, keep=False)
        except NodewireError:  # a store that is down says nothing of this provider: the next scrape tries again
            return
        self._is_listed, self._read = found.node(self._public) is not None, digest


class Bench:
    """Workers that train. To be collected on the event loop.

    `outage` is theirs where this node sells nothing else: else `Stall` shows what keeps it from serving.
    """

    def __init__(self, free: asyncio.Queue[Worker], outage: Outage | None) -> None:
        self._free, self._outage = free, outage

    def collect(self) -> Iterator[Metric]:
        yield FREE.to_metric(self._free.qsize())
        if self._outage is not None:
            cause = self._outage.cause
            yield OUTAGE.by({(cause.field,): 1} if cause is not None else {})


def _kind(number: int) -> str:
    return str(number) if number else OTHER
