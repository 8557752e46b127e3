"""Pays a job's chunks as their providers ask for them, within the plan and after the goods came."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from nodewire.customer.payments.rejected_frames import FrameRejection
from nodewire.errors import BadInput, NodewireError
from nodewire.pay.accounts.debts import Debt, JobBudget, Key
from nodewire.pay.accounts.dues import NO_CREDIT, CreditTerms
from nodewire.pay.accounts.payer import ZapTerms
from nodewire.pay.bond.settlement import share_msat
from nodewire.pay.lightning import lnurl
from nodewire.protocol.job.chunk import AHEAD, chunk_of
from nodewire.protocol.market.cached_price import WHOLE_PPM, due_msat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from nodewire.customer.payments.purse import Purse
    from nodewire.nostr.event import Event
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.pay.lightning.lnurl import Fetch
    from nodewire.protocol.job.feedback import Due, Feedback
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame

AHEAD_S = 15
"""How far the clock of a provider may be ahead."""
BEHIND_S = 600
"""How long before its request a claim may be dated, as this machine's clock may be ahead: complaints reach far back."""
_MOST_BYTES_PER_TOKEN = 8
"""A text has at most so many bytes for a token, on average. An id has as many, and counts as one."""
_SPECIAL_TOKENS = 16
_MOST_POSITIONS = 2**21
"""Of a session, where the manifest says nothing."""
log = logging.getLogger("nodewire.customer")


@dataclass(frozen=True, slots=True)
class ZapPayment:
    """One zap: the provider's claim, what is due by it, and the debt that it was."""

    claim: Feedback
    due: Due
    debt: Debt

    @property
    def provider(self) -> str:
        return self.claim.provider

    @property
    def is_named(self) -> bool:
        """Whether a zap request names this chunk, and its receipt the job: another may have settled it as well."""
        paid = [part for part in self.debt.parts if part.payment.state == "paid" and part.msat]
        return self.debt.state == "paid" and bool(paid) and paid[-1].bears_fee


def most_units(manifest: Manifest, inputs: Sequence[Frame[Array]]) -> int:
    """What chunk 0 may count at most: no more than a text has bytes (and a few special tokens); ids are counted."""
    return -(-most_positions(manifest, inputs) // manifest.chunk) if manifest.mode == "generate" else 1


def most_chunks(manifest: Manifest, inputs: Sequence[Frame[Array]]) -> int:
    """How many chunks a job has at most."""
    if manifest.mode == "generate":
        return 1 + chunk_of(manifest, manifest.context or _MOST_POSITIONS)
    return 1 + max((chunk_of(manifest, frame.seq) for frame in inputs), default=-1)


def most_positions(manifest: Manifest, inputs: Sequence[Frame[Array]], tokens: int = 0) -> int:
    """What a generation's prompt, and so many tokens after it, take at most."""
    size = _SPECIAL_TOKENS + tokens
    for frame in inputs:
        size += sum(math.prod(one.shape) if one.dtype == "int64" else one.nbytes for one in frame.tensors)
    return min(size, manifest.context or size)


def least_msat(plan: Plan, manifest: Manifest, inputs: Sequence[Frame[Array]]) -> int:
    """The least that chunk 0 costs, with its verification and without fees. A prompt is never counted too long."""
    units = 1
    if manifest.mode == "generate":
        least = sum(one.nbytes // _MOST_BYTES_PER_TOKEN for frame in inputs for one in frame.tensors)
        units = max(1, -(-min(least, manifest.context or least) // manifest.chunk))
    return units * (plan.chunk_msat + share_msat(plan))


class JobPayments:
    """One job's payments. Give it every `payment-required`; it pays each chunk once and remembers the rest."""

    def __init__(
        self,
        request: str,
        plan: Plan,
        manifest: Manifest,
        ads: Mapping[str, Ad],
        purse: Purse,
        *,
        most_units: int,
        requested_s: int,
    ) -> None:
        """`most_units`: what chunk 0 may count at most, from the size of the input. `requested_s`: when (unix)."""
        self.paid: dict[tuple[str, int], ZapPayment] = {}
        self.failed: list[NodewireError] = []
        self.on_charge: Callable[[str, int, int], None] | None = None
        """Told what a provider (public key) is owed for the job: up to this chunk, so many msat in all."""
        self._request = request
        self._plan = plan
        self._ads = ads
        self._purse = purse
        self._most_units = most_units
        self._requested_s = requested_s
        self._signed_units: dict[int, int] | None = {} if manifest.mode == "generate" else None
        """By chunk, the units that the driver's first close says; None where every call is one."""
        self._driver = plan.node_of(manifest.driver.name) if manifest.mode == "generate" else ""
        self._delivered = -1
        self._is_over = False
        """Whether the customer takes no more outputs: what its driver has closed until then is owed."""
        self._claims: dict[tuple[str, int], str] = {}
        """The claim that counts (a feedback's id), by provider and chunk."""
        self._units: dict[tuple[str, int], int] = {}
        """What that claim counts."""
        self._refused: set[tuple[str, int]] = set()
        """Claims that will not be paid."""
        self._changed = asyncio.Condition()

    def open_chunk(self) -> int:
        """The first chunk that the driver has not closed."""
        return max(self._signed_units, default=-1) + 1 if self._signed_units is not None else self._delivered + 1

    def count_owed(self) -> int:
        """How many chunks are owed, all that were before them included.

        Of a generation they are those that its driver closed, else those that have come.
        """
        closed = self._signed_units
        return next(n for n in count() if (n not in closed if closed is not None else not self._may_pay(n)))

    def may_owe(self) -> bool:
        """Whether anything can be owed when no more output is taken: of calls nothing that did not come."""
        return self._signed_units is not None or self._delivered >= 0

    def has_claimed(self, provider: str) -> bool:
        """Whether it has asked for a payment of this job's."""
        return any(claimed == provider for claimed, _ in self._claims)

    def may_be_used_up(self) -> bool:
        """Whether the budget may be too small for a chunk that is computed now."""
        first = self._signed_units.get(0, self._most_units) if self._signed_units is not None else 1
        most = first + max(self.open_chunk(), self._delivered + 1) + AHEAD
        return most * self._plan.chunk_msat > self._plan.terms.max_total_msat

    async def delivered(self, chunk: int) -> None:
        """Output of `chunk` has come: it may be paid, and so may those before it."""
        async with self._changed:
            self._delivered = max(self._delivered, chunk)
            self._changed.notify_all()

    async def close(self) -> None:
        """No more output is taken, whatever has come.

        Of a generation all that is closed may be paid (see `count_owed`).
        """
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def closed(self, chunk: int, units: int) -> None:
        """The driver has signed that `chunk` counts as `units`; against itself its first word stands.

        A close that cannot be true is ignored: nobody who is paid works further than `AHEAD` before what has come.
        """
        if chunk > self._delivered + AHEAD or not 0 < units <= self._most_of(chunk):
            log.warning("a close is ignored: %d units of chunk %d, and %d came last", units, chunk, self._delivered)
            return
        async with self._changed:
            if self._signed_units is not None:
                self._signed_units.setdefault(chunk, units)
            self._changed.notify_all()

    def expects(self, said: Feedback) -> bool:
        """Whether this `payment-required` is its provider's first for a chunk; further ones change nothing.

        Raises:
            BadInput: it is by nobody in this job, or the chunk cannot be done: work on it begins when the one `AHEAD`
                before it has been paid.

        """
        if said.provider not in self._plan.providers() or said.request != self._request:
            raise BadInput("payment-required", "not by a provider of this job")
        if said.created_at > time.time() + AHEAD_S:
            raise BadInput("created_at", "a claim of the future: when it must be committed to counts from there")
        if said.created_at < self._requested_s - BEHIND_S:
            raise BadInput("created_at", "a claim of before its request: nobody would hear a complaint about it")
        if said.due is None or said.due.chunk > self._delivered + AHEAD:
            raise BadInput("chunk", f"a payment is asked for before its time; {self._delivered} was the last to come")
        at = said.provider, said.due.chunk
        self._units.setdefault(at, said.due.units)
        return self._claims.setdefault(at, said.id) == said.id

    async def asked(self, said: Feedback) -> None:
        """Pay what a `payment-required` asks for, if the plan says so and the chunk has come.

        Raises:
            BadInput: the provider asks for what the plan does not say, or the driver for more units than anybody else;
                nothing is paid.
            FrameRejection: it is paid, for another count than the driver's first word.
            OverBudget, PaymentFailed, BadInvoice, BadZap, LinkLost, TimedOut: see `Payer.pay`.

        """
        try:
            await self._asked(said)
        except BadInput:
            await self._refuse(said)
            raise

    async def _zap(
        self, key: Key, amount_msat: int, *, budget: JobBudget | None = None, on_credit: bool = False
    ) -> Debt:
        """Pay for a chunk, or only enter it where its provider gives credit. Raises as `Payer.pay`."""
        ad = self._ads[key.payee]
        fetch = lnurl.over_lnurl(
            ad.lnurl,
            nostr_pubkey=key.payee,
            network=self._purse.network,
            allow_private=self._purse.private_endpoints,
        )
        return await self._purse.payer.pay(
            key,
            amount_msat,
            _blaming(key.payee, fetch),
            relays=self._purse.relays,
            lnurl=lnurl.encode(ad.lnurl),
            budget=budget,
            terms=ZapTerms(goes_ahead=True, credit=_credit(ad) if on_credit else None),
        )

    async def pay_tabs(self) -> None:
        """Pay what is owed to the job's providers, where that is more than may stand when a job is over."""
        if all(one.debt.state == "paid" for one in self.paid.values()):
            return
        owed = {key: one.debt for key, one in self.paid.items() if one.debt.state != "paid"}
        latest = {provider: debt for (provider, _), debt in sorted(owed.items())}
        due = [debt for provider, debt in latest.items() if self._purse.payer.is_due(provider)]
        zaps = (self._zap(debt.key, debt.amount_msat) for debt in due)
        for outcome in await asyncio.gather(*zaps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.warning("what is owed at the end of a job is not paid yet: %s", outcome)
        booked = {(debt.key.payee, debt.key.chunk): debt for debt in self._purse.payer.debts_of(self._request)}
        async with self._changed:
            self.paid = {key: replace(one, debt=booked.get(key, one.debt)) for key, one in self.paid.items()}
            self._changed.notify_all()

    async def _hear(self, due: Due) -> None:
        """Take note of the close that a claim rests on, which may have died with the driver. Raises BadSignature."""
        if due.close is not None and self._signed_units is not None:
            due.close.check(self._driver)
            await self.closed(due.chunk, due.units)

    async def _refuse(self, said: Feedback) -> None:
        async with self._changed:
            if said.due is not None:
                self._refused.add((said.provider, said.due.chunk))
            self._changed.notify_all()

    async def _asked(self, said: Feedback) -> None:
        due = said.due
        if due is None:
            raise BadInput("payment-required", "without a chunk")
        self._check(said.provider, due)
        await self._hear(due)
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_pay(due.chunk) and self._others_counted(said.provider, due))
        self._check_counted(said.provider, due)
        closed = self._signed_units[due.chunk] if self._signed_units is not None else due.units
        # A claim is measured by the close that it carries, the driver's own by its first word.
        by_close = due.close is not None and said.provider != self._driver
        # Two closes are the driver's fault. Without one either may lie.
        reason = f"the driver closed {due.chunk} with {closed}, {said.provider[:8]} asks for {due.units}"
        drivers = frozenset({self._driver}) & {*self._plan.providers()}
        differs = FrameRejection("units", reason, drivers, "" if by_close else said.provider)
        if due.units > closed and not by_close:
            raise differs
        key = Key(self._request, said.provider, due.chunk, due.attempt)
        budget = JobBudget(
            self._plan.terms.max_total_msat - self._owed_to_others(said.provider, due.units > closed),
            frozenset(self._plan.providers()),
        )
        debt = await self._zap(key, due.amount_msat, budget=budget, on_credit=True)
        paid = ZapPayment(said, due, debt)
        async with self._changed:
            self.paid[said.provider, due.chunk] = paid
            self._changed.notify_all()
        if self.on_charge is not None:
            taken = {chunk: one.due.amount_msat for (p, chunk), one in self.paid.items() if p == said.provider}
            self.on_charge(said.provider, max(taken), sum(taken.values()))
        if due.units != closed:  # it has been paid for its work, and nobody counts on with such a driver
            raise differs

    async def payable(self, chunk: int) -> None:
        """Return when `chunk` has come and, in a generation, has been closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_pay(chunk))

    def units(self, chunk: int) -> int:
        """The units of `chunk` by the driver's close, else by the providers' claims."""
        if self._signed_units is not None:
            return self._signed_units.get(chunk, 1)
        return max((units for (_, number), units in self._units.items() if number == chunk), default=1)

    async def settled(self, last_chunk: int) -> None:
        """Return when every provider that charges has been paid every chunk up to `last_chunk`, or a payment failed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._wanted(last_chunk) <= self.paid.keys() or self.failed)

    def _wanted(self, last_chunk: int) -> set[tuple[str, int]]:
        return {(p, n) for n in range(last_chunk + 1) for p in self._charging()} - self._refused

    def unclaimed(self, last_chunk: int) -> set[str]:
        """The providers that have not asked for all that they could be paid up to `last_chunk`."""
        return {provider for provider, _ in self._wanted(last_chunk) - self.paid.keys() - self._claims.keys()}

    def _charging(self) -> set[str]:
        return {p for p in self._plan.providers() if self._plan.price_msat(p)}

    async def claims_settled(self, gone: Collection[str]) -> None:
        """Return when every claim for a chunk that has come is paid, or a payment failed.

        Those of who is `gone` are not waited for.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.failed or not self._unpaid_claims(gone))

    def _unpaid_claims(self, gone: Collection[str]) -> set[tuple[str, int]]:
        here = {(p, chunk) for p, chunk in self._claims if p not in gone and self._may_pay(chunk)}
        return here - self.paid.keys() - self._refused

    def unpaid_msat(self) -> int:
        """The most that is still to be paid for what may be paid."""
        plan = self._plan
        chunks = self._signed_units if self._signed_units is not None else dict.fromkeys(range(self._delivered + 1), 1)
        owed = {(p, n) for n in chunks for p in plan.providers()} - self.paid.keys() - self._refused
        counts = {(p, n): max(chunks[n], self._units.get((p, n), 0)) for p, n in owed}
        return sum(plan.price_msat(p) * min(counts[p, n], self._most_of(n)) for p, n in owed)

    async def fail(self, error: NodewireError) -> None:
        async with self._changed:
            self.failed.append(error)
            self._changed.notify_all()

    def _may_pay(self, chunk: int) -> bool:
        if self._signed_units is None:
            return self._delivered >= chunk
        return chunk in self._signed_units and (self._delivered >= chunk or self._is_over)

    def _others(self, provider: str) -> set[str]:
        """Who else is in the job and paid for chunk 0, if it is `provider` that says what that counts: the driver."""
        if self._signed_units is None or self._plan.tasks[0].provider != provider:
            return set()
        return self._charging() - {provider}

    def _others_counted(self, provider: str, due: Due) -> bool:
        """Whether a driver's claim can be compared: a single unit need not be, and without others nothing can."""
        others = self._others(provider) if due.chunk == 0 and due.units > 1 else set()
        return not others or any((other, 0) in self._units for other in others)

    def _check_counted(self, provider: str, due: Due) -> None:
        """A driver counts the prompt itself, and so do all others; it is paid for no more than one of them says."""
        others = self._others(provider) if due.chunk == 0 and due.units > 1 else set()
        most = max((self._units[other, 0] for other in others if (other, 0) in self._units), default=due.units)
        if due.units > most:
            raise BadInput("units", f"the driver asks for {due.units} of chunk 0, nobody else for more than {most}")

    def _check(self, provider: str, due: Due) -> None:
        price = self._plan.price_msat(provider)
        cached_ppm = self._ads[provider].cached_ppm if due.cached else WHOLE_PPM
        if due.amount_msat != due_msat(price, due.units, due.cached, cached_ppm) or not price:
            raise BadInput("amount", f"{due.amount_msat} msat is not {due.units} times the plan's price")
        if due.attempt or not 0 < due.units <= self._most_of(due.chunk):
            raise BadInput("chunk", "more units, or another attempt, than this job can have")
        if due.units * self._plan.chunk_msat > self._plan.terms.max_total_msat:  # it would not have been computed
            raise BadInput("amount", f"{due.units} units are more than the job's budget")

    def _most_of(self, chunk: int) -> int:
        """The most units that a chunk can have."""
        return self._most_units if chunk == 0 else 1

    def _owed_to_others(self, provider: str, is_more: bool) -> int:
        """The budget that stays with others where a provider claims more than the driver's first close.

        It is in msat, the price by that close of all chunks that they have not been paid.
        """
        if not is_more or self._signed_units is None:
            return 0
        others = {(p, n) for n in self._signed_units for p in self._charging() - {provider}} - self.paid.keys()
        return sum(self._plan.price_msat(p) * self._signed_units[n] for p, n in others - self._refused)


def _blaming(provider: str, fetch: Fetch) -> Fetch:
    """The fetch of an invoice whose errors are the provider's: it is at its endpoint that they arise."""

    async def fetched(zap_request: Event, amount_msat: int) -> Invoice:
        try:
            return await fetch(zap_request, amount_msat)
        except NodewireError as error:
            error.by = provider
            raise

    return fetched


def _credit(ad: Ad) -> CreditTerms:
    """How much the provider says that it may be owed."""
    credit = ad.credit
    return CreditTerms(credit.first_msat, credit.most_msat, credit.unit_msat) if credit is not None else NO_CREDIT
