"""What earlier jobs left unpaid is paid beside the next purchase: once, in a stated time, and it is told."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from contextlib import asynccontextmanager

import pytest

from nodewire.customer.payments import debt_collector, debts
from nodewire.customer.payments.debt_collector import Settler
from nodewire.errors import LinkLost, NotFound
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.accounts.zaps import build_request, description_hash
from nodewire.pay.lightning import invoices, lnurl
from nodewire.pay.lightning.invoices import hash_of
from nodewire.pay.lightning.wallet import ABILITIES, Transfer, WalletInfo
from nodewire.protocol.job import feedback
from nodewire.protocol.job.feedback import Due
from nodewire.protocol.market import ad
from tests.customer.paid_job import REQUEST, closed, job
from tests.customer.public_record import CUSTOMER, PRICE_MSAT, PROVIDERS, PublicRecord

NETWORK = "bcrt"


class Wallet:
    """Pays every invoice once, for a fee of 7 msat, and counts."""

    def __init__(self):
        self.paid: dict[str, Transfer] = {}
        self.preimages: dict[str, str] = {}

    async def info(self):
        return WalletInfo("w", NETWORK, 1, 1, 10**9, ABILITIES)

    async def pay(self, bolt11, *, max_fee_msat, timeout_s=60.0):
        await asyncio.sleep(0)
        invoice = invoices.decode(bolt11)
        preimage = self.preimages[invoice.payment_hash]
        paid = Transfer(invoice.payment_hash, "out", "settled", invoice.amount_msat, 7, preimage, int(time.time()))
        return self.paid.setdefault(bolt11, paid)

    async def lookup(self, payment_hash, direction):
        raise NotFound("payment", "unknown")

    @property
    def spent_msat(self):
        return sum(one.amount_msat + one.fee_msat for one in self.paid.values())


class Relays(PublicRecord):
    """As a pool, with a subscription in which comes what a test puts into `told` and its filters match."""

    def __post_init__(self):
        super().__post_init__()
        self.told = asyncio.Queue()
        self.asked = 0

    @asynccontextmanager
    async def subscribe(self, filters):
        async def live():
            while True:
                event = await self.told.get()
                if any(one.matches(event) for one in filters):
                    yield event

        yield live()

    async def fetch(self, filters, timeout_s=1.0, *, max_events=0):
        self.asked += 1
        return await super().fetch(filters, timeout_s, max_events=max_events)


@pytest.fixture
def wallet(monkeypatch):
    """The customer's; every provider's endpoint makes invoices that it can pay."""
    wallet = Wallet()

    def over_lnurl(url, *, nostr_pubkey, network, allow_private=False, timeout_s=10.0):
        async def fetch(request, amount_msat):
            if "hole" in url:
                await asyncio.sleep(3_600)
            if "down" in url:
                raise LinkLost(url, "refused")
            await asyncio.sleep(0.01)
            preimage = hashlib.sha256(f"{request.id}/{len(wallet.preimages)}".encode()).hexdigest()
            wallet.preimages[hash_of(preimage)] = preimage
            return invoices.issue(
                b"\x09" * 32,
                network=network,
                amount_msat=amount_msat,
                payment_hash=hash_of(preimage),
                created_at_s=int(time.time()),
                expiry_s=600,
                description_hash=description_hash(request.to_json()),
            )

        return fetch

    monkeypatch.setattr(lnurl, "over_lnurl", over_lnurl)
    return wallet


@pytest.fixture
def book(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


@pytest.fixture
async def relays():
    record = Relays()
    for i, keys in enumerate(PROVIDERS):
        offer = ad.ManifestOffer(
            manifest="ab" * 32, slots=1, tasks=(ad.TaskOffer(task="t", price_msat=1, us_per_position=1),)
        )
        one = ad.Ad(name=f"p{i}", manifests=(offer,), lnurl=f"https://p{i}.example/pay")
        record.events.append(ad.build(keys, one, created_at=record.began_s))
    return record


@contextlib.asynccontextmanager
async def settling(relays, payer):
    one = Settler(relays, payer, CUSTOMER.public, relays=("ws://r",), network=NETWORK, private_endpoints=False)
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def owe(book, record, number, chunk, where="p"):
    key = Key(record.request.id, PROVIDERS[number].public, chunk)
    book.plan(key, PRICE_MSAT, lnurl=lnurl.encode(f"https://{where}{number}.example/pay"))


async def test_debts_of_the_ledger_and_claims_of_chunks_that_came_are_paid_when_a_purchase_begins(
    relays, book, wallet, caplog
):
    """Provider 0 was not paid for chunk 1; 1 and 2 claimed it when the customer's process was ending."""
    relays.pay(book, 0, 0)
    owe(book, relays, 0, 1)
    relays.claimed(1, 1)
    relays.claimed(2, 1)
    payer = Payer(CUSTOMER, wallet, book)
    payer.end(relays.request.id, count_owed=2)
    async with settling(relays, payer) as one:
        await asyncio.sleep(0.05)
        assert wallet.paid == {}  # who only looks, as `wallet settle` before its question, pays nothing
        one.begin()
        await one.caught_up()
        old = one.take_old()
        assert old == {
            "chunks": 3,
            "paid_msat": 3 * PRICE_MSAT,
            "fees_msat": 21,
            "unpaid_chunks": 0,
            "unpaid_msat": 0,
        }
        assert wallet.spent_msat == old["paid_msat"] + old["fees_msat"]
        assert one.take_old()["paid_msat"] == 0
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["debts of earlier jobs: 3.000 sat paid for 3 chunks"]
    async with settling(relays, payer) as again:  # the next purchase finds nothing
        again.begin()
        await again.caught_up()
    assert len(wallet.paid) == 3
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_two_processes_of_one_customer_pay_a_debt_once(relays, book, wallet, tmp_path):
    owe(book, relays, 0, 0)
    relays.claimed(1, 0)
    other = Ledger(tmp_path / "ledger.db")
    async with (
        settling(relays, Payer(CUSTOMER, wallet, book)) as one,
        settling(relays, Payer(CUSTOMER, wallet, other)) as two,
    ):
        one.begin()
        two.begin()
        await asyncio.gather(one.caught_up(), two.caught_up())
    other.close()
    assert sorted(p.amount_msat for p in wallet.paid.values()) == [PRICE_MSAT, PRICE_MSAT]
    assert book.unpaid() == []


async def test_who_cannot_be_reached_holds_up_nobody_and_nothing_longer_than_a_round(
    relays, book, wallet, monkeypatch, caplog
):
    monkeypatch.setattr(debt_collector, "ROUND_S", 0.3)
    owe(book, relays, 0, 0, "hole")
    owe(book, relays, 1, 0, "down")
    owe(book, relays, 2, 0)
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.begin()
        began = time.monotonic()
        await one.caught_up()
        assert time.monotonic() - began < 10 * debt_collector.ROUND_S
        owed = {PROVIDERS[number].public for number in range(3)}
        assert await one.still_owed(owed) == {PROVIDERS[0].public, PROVIDERS[1].public}
        assert await one.still_owed(owed) == owed  # it still refuses: then it is avoided
        assert one.take_old()["unpaid_msat"] == 2 * PRICE_MSAT
    assert "2.000 sat still owed for 2 chunks (`nodewire wallet settle` tells why)" in caplog.text


async def test_who_refuses_for_a_debt_of_this_process_is_paid_it_and_asked_again_once(relays, book, wallet):
    """It was over time for its own job's payments, as on a slow machine, so the ledger alone knows it."""
    payments, _ = job()
    owed = {PROVIDERS[0].public}
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.begin()
        one.requests(relays.request.id)
        await one.caught_up()
        owe(book, relays, 0, 0)
        assert await one.still_owed(owed) == owed  # its job is under way
        one.end_job(relays.request.id, payments)
        assert await one.still_owed(owed) == set()
        assert [paid.amount_msat for paid in wallet.paid.values()] == [PRICE_MSAT]
        assert await one.still_owed(owed) == owed
        assert one.take_old()["chunks"] == 0


async def test_a_debt_that_could_not_be_paid_lately_keeps_no_job_waiting(relays, book, wallet):
    """Its payee's endpoint may hang, and it may refuse each job."""
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.begin()
        await one.caught_up()
        owe(book, relays, 0, 0)
        (owed,) = one._in_ledger()
        one._again[owed.key] = (time.monotonic() + 3_600, 60.0)
        assert await one.still_owed({PROVIDERS[0].public}) == {PROVIDERS[0].public}
    assert wallet.paid == {}


async def test_a_job_under_way_is_left_to_its_own_payments(relays, book, wallet):
    owe(book, relays, 0, 0)
    relays.claimed(1, 0)
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.requests(relays.request.id)
        one.begin()
        await one.caught_up()
        assert wallet.paid == {}


@pytest.mark.parametrize(
    ("number", "claim", "booked", "ended", "evident"),
    [
        (1, {"chunk": 0}, [0], True, True),
        (1, {"chunk": 1}, [0], True, False),  # it never came
        (1, {"chunk": 2}, [0], False, True),  # the process died: so far work goes ahead
        (1, {"chunk": 3}, [0], False, False),
        (1, {"chunk": 0}, [], False, False),  # the ledger knows nothing of the job
        (1, {"chunk": 0, "units": 3, "amount_msat": 3_000}, [0], True, False),  # others were paid for one
        (1, {"chunk": 0, "amount_msat": 999}, [0], True, False),
        (1, {"chunk": 0, "attempt": 1}, [0], True, False),
    ],
)
def test_a_claim_is_paid_unasked_if_plan_and_ledger_say_that_it_is_owed(
    relays, book, number, claim, booked, ended, evident
):
    for chunk in booked:
        relays.pay(book, 0, chunk)
    said = feedback.parse(relays.claimed(number, claim.pop("chunk"), **claim))
    found = debts.is_evident(said, relays.request, book.debts_of(relays.request.id), ended=ended)
    assert found is evident


async def test_claims_that_only_a_person_can_judge_are_told_and_not_paid(relays, book, wallet, caplog):
    relays.claimed(1, 0)
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.begin()
        await one.caught_up()
        assert wallet.paid == {}
    assert "1.000 sat still owed for 1 chunks" in caplog.text


async def test_what_its_provider_has_published_a_receipt_for_is_not_owed_though_the_ledger_was_lost(
    relays, book, wallet
):
    """A receipt that another signs in its place counts for nothing, and neither does one for another chunk."""
    payer = Payer(CUSTOMER, wallet, book)
    for number in (1, 2):
        for chunk in (0, 1):
            relays.claimed(number, chunk)
    first = {one.key: one for one in await debts.on_relays(relays, payer, CUSTOMER.public)}
    assert len(first) == 4

    def receipt(key, by):
        zap = build_request(CUSTOMER, key, PRICE_MSAT, relays=("ws://r",), lnurl=None, created_at=relays.began_s)
        relays.events.append(
            nip57.build_receipt(by, zap.to_json(), bolt11="lnbcrt1", paid_at_s=relays.began_s, preimage="ab" * 32)
        )

    for key in first:
        if key.payee == PROVIDERS[1].public and key.chunk == 0:
            receipt(key, PROVIDERS[1])
        else:
            receipt(key, PROVIDERS[0])
    left = {(one.key.payee, one.key.chunk) for one in await debts.on_relays(relays, payer, CUSTOMER.public)}
    assert left == {(PROVIDERS[1].public, 1), (PROVIDERS[2].public, 0), (PROVIDERS[2].public, 1)}


async def test_a_brief_look_reads_no_more_receipts_than_one_answer_holds(relays, book, wallet, monkeypatch):
    """A payee with one claim may publish as many as a relay takes."""
    asked = []
    reading = relays.fetch

    async def fetch(filters, timeout_s=1.0, *, max_events=0):
        asked.extend((kind, max_events) for one in filters for kind in one.kinds or ())
        return await reading(filters, timeout_s)

    monkeypatch.setattr(relays, "fetch", fetch)
    relays.claimed(1, 0)
    assert await debts.on_relays(relays, Payer(CUSTOMER, wallet, book), CUSTOMER.public, briefly=True)
    assert (nip57.RECEIPT, debts.MAX_BRIEFLY) in asked


async def test_claims_cannot_exceed_their_jobs_budget(relays, book, wallet):
    """Each of them alone is within it."""
    for chunk in range(40):
        for number in range(3):
            relays.claimed(number, chunk)
    payer = Payer(CUSTOMER, wallet, book)
    owed = await debts.on_relays(relays, payer, CUSTOMER.public)
    assert len(owed) == 120
    done = await debts.settle(payer, owed, relays=("ws://r",), network=NETWORK, private_endpoints=False)
    refused = [one.error.code for one in done if one.error is not None]
    assert set(refused) == {"over-budget"}
    plan = relays.request.plan
    assert sum(one.paid is not None for one in done) * PRICE_MSAT <= plan.terms.max_total_msat


async def test_what_turns_out_to_have_been_paid_is_told_with_what_is_paid_for_earlier_jobs(relays, book, wallet):
    payer = Payer(CUSTOMER, wallet, book)
    relays.pay(book, 0, 0)
    (paid,) = payer.debts_of(relays.request.id)
    async with settling(relays, payer) as one:
        one.recovered([paid])
        one.begin()
        await one.caught_up()
        told = one.take_old()
        assert (told["chunks"], told["paid_msat"], told["fees_msat"]) == (1, paid.amount_msat, paid.fee_msat)
        one.requests(relays.request.id)  # a job of this process: its own summary has it
        one.recovered([paid])
        assert one.take_old()["chunks"] == 0


async def test_what_broke_off_before_it_came_is_shown_as_such_and_not_told_as_owed(relays, book, wallet, caplog):
    for chunk in (0, 1):
        relays.claimed(1, chunk)
    payer = Payer(CUSTOMER, wallet, book)
    payer.end(relays.request.id, count_owed=1)
    owed = await debts.on_relays(relays, payer, CUSTOMER.public)
    assert {one.key.chunk: (one.is_broken, one.is_evident) for one in owed} == {0: (False, False), 1: (True, False)}
    relays.pay(book, 0, 0)
    async with settling(relays, payer) as one:
        one.begin()
        await one.caught_up()
        old = one.take_old()
    assert (old["chunks"], old["unpaid_chunks"], len(wallet.paid)) == (1, 0, 1)
    assert "still owed" not in caplog.text


async def test_a_chunk_that_is_asked_for_by_another_attempt_is_paid_once_whoever_says_yes(relays, book, wallet):
    """A provider that was paid asks once more, by other attempts; one asks twice for what was not paid."""
    relays.pay(book, 0, 0)
    for number, attempt in ((0, 1), (0, 7), (1, 3), (1, 0), (1, 2)):
        relays.claimed(number, 0, attempt=attempt)
    payer = Payer(CUSTOMER, wallet, book)
    owed = await debts.on_relays(relays, payer, CUSTOMER.public)
    assert [(one.key.payee, one.key.attempt) for one in owed] == [(PROVIDERS[1].public, 0)]
    await debts.settle(payer, owed, relays=("ws://r",), network=NETWORK, private_endpoints=False)
    assert await debts.on_relays(relays, payer, CUSTOMER.public) == []
    assert len(wallet.paid) == 1


async def test_who_died_amid_a_job_is_owed_each_chunk_that_came_and_is_paid_once(relays, book, wallet):
    """It had asked for the chunk amid which it died, too; the job was begun anew by others, whose debts are theirs."""
    for chunk in (0, 1, 2):
        relays.claimed(1, chunk)
    relays.pay(book, 1, 0)
    for chunk in (0, 1):
        relays.pay(book, 2, chunk)
    payer = Payer(CUSTOMER, wallet, book)
    payer.end(relays.request.id, count_owed=2)
    async with settling(relays, payer) as one:
        one.begin()
        await one.caught_up()
        old = one.take_old()
    assert (old["chunks"], old["paid_msat"], old["unpaid_chunks"], len(wallet.paid)) == (1, PRICE_MSAT, 0, 1)
    booked = [debt for debt in payer.debts_of(relays.request.id) if debt.key.payee == PROVIDERS[1].public]
    assert [(debt.key.chunk, debt.state) for debt in booked] == [(0, "paid"), (1, "paid")]
    (left,) = await debts.on_relays(relays, payer, CUSTOMER.public)
    assert (left.key.payee, left.key.chunk, left.is_broken) == (PROVIDERS[1].public, 2, True)


@pytest.mark.parametrize("attempt", [1, 7])
async def test_a_claim_of_another_attempt_is_of_no_plan(relays, book, wallet, attempt):
    relays.pay(book, 0, 0)
    relays.claimed(1, 0, attempt=attempt)
    assert await debts.on_relays(relays, Payer(CUSTOMER, wallet, book), CUSTOMER.public) == []


# Claims that come when their job is over


def late_claim(number, chunk):
    due = Due(chunk, 0, 1, PRICE_MSAT, "ab" * 32)
    return feedback.build(
        PROVIDERS[number], REQUEST, CUSTOMER.public, "payment-required", created_at=int(time.time()), due=due
    )


@pytest.fixture
async def over(relays, book, wallet, monkeypatch):
    """A settler to which a job is left whose chunk 0 was closed and came, and what pays for that."""
    monkeypatch.setattr(debt_collector, "LATE_S", 3_600.0)
    payments, payer = job()
    await closed(payments, 0)
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.end_job(REQUEST, payments)
        yield one, payer


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_nobody_waits_for_the_late_claims_of_another_that_cannot_be_paid(relays, over):
    _, payer = over
    for chunk in (1, 2):  # nobody closed them
        relays.told.put_nowait(late_claim(1, chunk))
    relays.told.put_nowait(late_claim(2, 0))
    await until(lambda: PROVIDERS[2].public in payer.paid_msat)
    assert payer.paid_msat == {PROVIDERS[2].public: PRICE_MSAT}


async def test_of_the_late_claims_of_one_provider_so_many_wait_at_a_time(relays, over, monkeypatch, caplog):
    monkeypatch.setattr(debt_collector, "MAX_LATE", 1)
    _, payer = over
    for number, chunk in ((1, 1), (1, 0), (2, 0)):
        relays.told.put_nowait(late_claim(number, chunk))
    await until(lambda: PROVIDERS[2].public in payer.paid_msat)
    assert payer.paid_msat == {PROVIDERS[2].public: PRICE_MSAT}
    assert f"a late claim by {PROVIDERS[1].public[:8]} is dropped" in caplog.text


async def test_a_late_claim_that_cannot_be_right_keeps_no_other_from_being_paid(relays, over):
    _, payer = over
    relays.told.put_nowait(late_claim(1, 9))
    relays.told.put_nowait(late_claim(1, 0))
    await until(lambda: payer.paid_msat == {PROVIDERS[1].public: PRICE_MSAT})


@pytest.mark.parametrize("whose", ["of an earlier process", "of this one, and forgotten"])
async def test_a_claim_that_is_told_again_is_paid_though_its_job_is_not_remembered(
    relays, book, wallet, monkeypatch, whose
):
    """The event is the same, so it is older than this process. It has no relay yet: its provider had lost them all."""
    monkeypatch.setattr(debt_collector, "MAX_REMEMBERED", 0)
    relays.pay(book, 0, 0)
    payer = Payer(CUSTOMER, wallet, book)
    async with settling(relays, payer) as one:
        one.begin()
        await one.caught_up()
        if whose == "of an earlier process":
            payer.end(relays.request.id, count_owed=1)
        else:
            payments, _ = job()
            await closed(payments, 0)
            one.requests(relays.request.id)
            one.end_job(relays.request.id, payments)
        for chunk in (0, 1):  # of which the second never came
            relays.told.put_nowait(relays.claimed(1, chunk))
        await until(lambda: wallet.paid)
        await until(lambda: not one._told)
    assert [paid.amount_msat for paid in wallet.paid.values()] == [PRICE_MSAT]
    assert payer.has(Key(relays.request.id, PROVIDERS[1].public, 0))


async def test_a_claim_of_a_job_under_way_or_that_the_ledger_does_not_know_asks_no_relay(relays, book, wallet):
    payer = Payer(CUSTOMER, wallet, book)
    async with settling(relays, payer) as one:
        one.begin()
        await one.caught_up()
        asked = relays.asked
        relays.told.put_nowait(relays.claimed(1, 0))  # unknown
        await until(relays.told.empty)
        relays.pay(book, 0, 0)
        one.requests(relays.request.id)
        relays.told.put_nowait(relays.claimed(2, 0))  # under way
        await until(relays.told.empty)
        await one._judge_told()
        assert (relays.asked, wallet.paid) == (asked, {})


async def test_claims_of_jobs_that_are_not_remembered_wait_within_bounds(relays, book, wallet, monkeypatch, caplog):
    monkeypatch.setattr(debt_collector, "MAX_LATE", 2)
    monkeypatch.setattr(debt_collector, "MAX_TOLD", 4)
    relays.pay(book, 0, 0)
    payer = Payer(CUSTOMER, wallet, book)
    payer.end(relays.request.id, count_owed=1)
    async with settling(relays, payer) as one:
        # Only the first is known to be in the job.
        for number, chunk in ((1, 0), (1, 1), (1, 2), (2, 0), (0, 1), (0, 2)):
            relays.told.put_nowait(relays.claimed(number, chunk))
        await until(lambda: caplog.text.count("is dropped") == 2)
        await until(relays.told.empty)
        waiting = [(said.provider, said.due.chunk) for said in one._told.values()]
    first, second = PROVIDERS[0].public, PROVIDERS[1].public
    assert waiting == [(second, 0), (second, 1), (first, 1), (first, 2)]


async def test_of_a_job_whose_end_nobody_saw_no_chunk_after_the_other_is_owed(relays, book, wallet):
    """What is evident of such a job grows with what is booked of it: judged again and again it would be the budget."""
    relays.pay(book, 0, 0)
    async with settling(relays, Payer(CUSTOMER, wallet, book)) as one:
        one.begin()
        await one.caught_up()
        for chunk in (1, 2, 3, 4):
            relays.told.put_nowait(relays.claimed(1, chunk))
        await until(relays.told.empty)
        await one._judge_told()
        assert wallet.paid == {} and not one._told
