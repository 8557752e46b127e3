"""Shares of a few msat on a network of whole satoshis: few payments, each msat in both books, payees in whole units."""

from __future__ import annotations

import asyncio
import time

import pytest

import tests.pay.bond_market as bm
from nodewire.customer.payments.purse import Purse
from nodewire.customer.payments.share_account import ShareAccount
from nodewire.errors import LinkLost, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from simnet.bond_holder import SimBondHolder
from simnet.wallet import SimWallet
from tests.pay.simnet_process import run_simnet

SHARE_MSAT = 3


def whole_sats(folder):
    """A network with a holder, whose state is in the folder."""
    (folder / "committee.json").write_text(bm.COMMITTEE.to_json())
    (folder / "holder.nsec").write_text(bm.HOLDER.nsec)
    (folder / "holder.nsec").chmod(0o600)
    options = ["--key", str(folder / "holder.nsec"), "--committee", str(folder / "committee.json")]
    return run_simnet(folder / "simnet.db", "--unit-msat", "1000", *options)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with whole_sats(tmp_path_factory.mktemp("whole-sats")) as url:
        yield url


class CountedWallet(SimWallet):
    def __init__(self, *account):
        super().__init__(*account)
        self.paid = []

    async def pay(self, bolt11, **options):
        done = await super().pay(bolt11, **options)
        self.paid.append(done.amount_msat)
        return done


class Customer:
    """With a wallet and a ledger of its own; `open()` is what each of its processes does."""

    def __init__(self, wallet, path, port=SimBondHolder):
        self.keys, self.wallet, self.path, self.port = Keys.generate(), wallet, path, port
        self.job = bm.request(self.keys)
        self.open()

    def open(self):
        self.ledger = Ledger(self.path)
        self.payer = Payer(self.keys, self.wallet, self.ledger)
        self.holder = self.port(self.wallet)
        self.account = ShareAccount(self.keys, Purse(self.payer, bm.RELAYS, "bcrt", True), self.holder)

    async def kill(self):
        if (sending := self.account._sending) is not None:
            sending.cancel()
        self.ledger.close()

    async def shares(self, chunks, msat=SHARE_MSAT, job=None):
        for chunk in chunks:
            await self.account.pay((job or self.job).id, chunk, msat)

    async def agrees(self, stated_msat):
        """Both books have each msat, and the holder has heard of all."""
        await self.account.handed_over(10)
        said = await self.wallet.ask("GET", f"/v1/ahead/{self.keys.public}")
        tab = self.payer.tab(bm.HOLDER.public)
        assert (tab.ahead_msat, tab.owed_msat) == (said["ahead_msat"], 0)
        assert tab.paid_msat == sum(self.wallet.paid) == tab.ahead_msat + stated_msat
        assert self.ledger.unstated(bm.HOLDER.public) == []


@pytest.fixture
async def wallet(url):
    wallet, _ = await CountedWallet.open_account(url, "customer", 1_000_000)
    yield wallet
    await wallet.close()


@pytest.fixture
async def customer(wallet, tmp_path):
    one = Customer(wallet, tmp_path / "ledger.db")
    yield one
    await one.account.close()
    one.ledger.close()


async def test_five_hundred_shares_are_two_payments_and_every_one_is_booked_at_the_holder(customer):
    await customer.shares(range(500))
    await customer.agrees(500 * SHARE_MSAT)
    assert customer.wallet.paid == [1_000, 1_000]
    late_ms = int(time.time() * 1000) + 5_000
    for chunk in (0, 1, 333, 334, 499):
        assert await customer.holder.share_msat(customer.job.id, customer.keys.public, chunk, late_ms) == SHARE_MSAT
    assert (await customer.holder.treasury(customer.job.id))[0] == 1_350  # a tenth is the committee's


async def test_lumps_grow_with_what_was_paid_so_that_payments_do_not(customer):
    await customer.shares(range(120), 1_000)
    await customer.agrees(120_000)
    assert len(customer.wallet.paid) < 40
    assert max(customer.wallet.paid) <= sum(customer.wallet.paid) / 10  # so much is the holder trusted with


async def test_what_was_paid_and_not_stated_when_the_process_died_the_next_one_states(wallet, tmp_path):
    class Away(SimBondHolder):
        async def book_shares(self, said):
            raise LinkLost("holder", "away")

    customer = Customer(wallet, tmp_path / "ledger.db", Away)
    await customer.shares(range(7))
    await customer.kill()
    customer.port = SimBondHolder
    customer.open()
    await customer.shares(range(9))  # the same again, and two more
    await customer.agrees(9 * SHARE_MSAT)
    assert wallet.paid == [1_000]
    await customer.kill()


async def test_a_statement_whose_answer_was_lost_is_booked_once(wallet, tmp_path):
    class Mute(SimBondHolder):
        answers = iter([False, False])

        async def book_shares(self, said):
            left_msat = await super().book_shares(said)
            if not next(self.answers, True):
                raise LinkLost("holder", "no answer")
            return left_msat

    customer = Customer(wallet, tmp_path / "ledger.db", Mute)
    await customer.shares(range(3))
    await customer.agrees(3 * SHARE_MSAT)
    await customer.kill()


async def test_a_holder_that_is_killed_between_booking_and_answer_has_each_share_once(tmp_path):
    class Killed(SimBondHolder):
        async def book_shares(self, said):
            await super().book_shares(said)
            raise LinkLost("holder", "it was killed before its answer")

    service = whole_sats(tmp_path)
    with service as url:
        wallet, _ = await CountedWallet.open_account(url, "customer", 1_000_000)
        customer = Customer(wallet, tmp_path / "ledger.db", Killed)
        await customer.shares(range(3))
        async with asyncio.timeout(30):
            while await customer.holder.treasury(customer.job.id) == (0, 0):
                await asyncio.sleep(0.01)
        await customer.kill()
        service.process.kill()
    with service as url:
        wallet._url, customer.port = url, SimBondHolder
        customer.open()
        await customer.shares(range(3))
        await customer.agrees(3 * SHARE_MSAT)
        assert wallet.paid == [1_000]
        assert (await customer.holder.treasury(customer.job.id))[0] == 9
        await customer.kill()
        await wallet.close()


async def test_a_holder_that_has_not_seen_the_payment_is_told_again(customer):
    class Slow(SimBondHolder):
        refusals = 2

        async def book_shares(self, said):
            if self.refusals:
                self.refusals -= 1
                raise PaymentFailed("balance", "0 msat are paid ahead")
            return await super().book_shares(said)

    customer.account._port = Slow(customer.wallet)
    await customer.shares(range(2))
    await customer.agrees(2 * SHARE_MSAT)


async def test_a_verifier_is_paid_when_what_is_due_makes_a_whole_satoshi(url, wallet, customer):
    now_epoch = bm.COMMITTEE.epoch_at(int(time.time() * 1000)) + 2
    job = bm.request(customer.keys, price_msat=300, salt="small")
    await customer.shares(range(8), 300, job)
    await customer.account.handed_over(10)
    own, _ = await SimWallet.open_account(url, "verifier")
    holder, keys = SimBondHolder(own), Keys.generate()
    got_msat = 0
    for chunk in range(5):
        said = bm.verdict_of(job, chunk=chunk, epoch=now_epoch, verifiers=((keys.public, True),))
        settled = await holder.present(bm.certificate(said), job)
        got_msat += await holder.claim(keys, settled.case)
        paid = await holder.collect(keys)
        assert (paid is not None) == (got_msat // 1_000 > (got_msat - settled.due[keys.public]) // 1_000)
    assert got_msat > 1_500 and await own.balance_msat() == got_msat // 1_000 * 1_000
    assert (await own.ask("GET", f"/v1/dues/{keys.public}"))["due_msat"] == got_msat % 1_000
    await own.close()
