"""A registrar with a wallet of whole satoshis: lumps and statements come, verifiers and oracles are paid, each once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time

import pytest

import tests.pay.bond_market as bm
from nodewire.customer.payments.purse import Purse
from nodewire.customer.payments.share_account import ShareAccount
from nodewire.errors import BadInput, BadInvoice, BadSignature, LinkLost, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.bond.quorum import http
from nodewire.pay.bond.quorum.book import Book
from nodewire.pay.bond.quorum.client import QuorumBondHolder
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.bond.quorum.registrar import Registrar
from nodewire.pay.ecash.mint import Mint
from nodewire.pay.lightning import invoices, lnurl
from nodewire.pay.lightning.wallet import ABILITIES, WalletInfo
from nodewire.pay.treasurer.cashier import WalletCashier
from nodewire.protocol.job.share_statement import ShareStatement
from simnet.wallet import SimWallet
from tests.pay.simnet_process import run_simnet

SHARE_MSAT, NOBODY = 3, "http://127.0.0.1:1"
PRICE_MSAT = 2_000


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """All amounts are whole satoshis, and each payment costs one."""
    db = tmp_path_factory.mktemp("whole-sats") / "simnet.db"
    with run_simnet(db, "--unit-msat", "1000", base_fee_msat=1_000) as url:
        yield url


class Treasury:
    """A registrar and the wallet of its treasury; bonds play no part, so its mint is nowhere."""

    def __init__(self, wallet, folder):
        self.wallet, self.folder, self.receipts = wallet, folder, []
        self._stack = contextlib.AsyncExitStack()

    async def open(self, wallet=None):
        async def publish(event, relays):
            self.receipts.append(event)

        wallet = wallet or self.wallet
        self.book = Book(self.folder / "book.db")
        self.cashier = await WalletCashier.open(bm.HOLDER, wallet, self.folder / "ledger.db", publish)
        custody = EcashCustody(Mint(NOBODY))
        self._stack.push_async_callback(custody.close)
        self.registrar = Registrar(bm.HOLDER, bm.COMMITTEE, custody, self.book, cashier=self.cashier)
        self._runner, self.url = await http.start(self.registrar, "127.0.0.1", 0)
        self._running = asyncio.create_task(self.cashier.run())

    async def kill(self):
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._runner.cleanup()
        self.book.close()
        self.cashier.close()

    def client(self, wallet):
        holder = QuorumBondHolder(self.url, EcashCustody(Mint(NOBODY)), wallet=wallet)
        self._stack.push_async_callback(holder.close)
        return holder

    async def close(self):
        await self.kill()
        await self._stack.aclose()

    async def has_all(self, ahead_msat=0):
        """The wallet has what the book owes, and what customers have paid ahead, to the msat."""
        assert await self.wallet.balance_msat() == self.book.treasury.owed_msat() + ahead_msat

    def due_msat(self, keys):
        return self.registrar.treasury.due_msat(keys.public)


@pytest.fixture
async def open_wallet(network):
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(msat=0, cls=SimWallet):
            wallet, _ = await cls.open_account(network, "somebody", msat)
            stack.push_async_callback(wallet.close)
            return wallet

        yield open_one


@pytest.fixture
async def treasury(open_wallet, tmp_path):
    one = Treasury(await open_wallet(), tmp_path)
    await one.open()
    yield one
    await one.close()


class Customer:
    def __init__(self, treasury, wallet):
        self.keys, self.wallet, self.ledger = Keys.generate(), wallet, Ledger(":memory:")
        self.payer, self.holder = Payer(self.keys, wallet, self.ledger), treasury.client(wallet)
        self.account = ShareAccount(self.keys, Purse(self.payer, bm.RELAYS, "bcrt", True), self.holder)

    async def shares(self, job, chunks, msat=SHARE_MSAT):
        for chunk in chunks:
            await self.account.pay(job.id, chunk, msat)
        await self.account.handed_over(20)
        assert self.ledger.unstated(bm.HOLDER.public) == []

    def said(self, job, chunk, *shares, keys=None, holder=bm.HOLDER):
        return ShareStatement.sign(
            keys or self.keys, request=job.id, holder=holder.public, chunk=chunk, shares=shares or (SHARE_MSAT,)
        )


@pytest.fixture
async def customer(treasury, open_wallet):
    one = Customer(treasury, await open_wallet(10_000_000))
    yield one
    await one.account.close()
    one.ledger.close()


def next_draw():
    """The epoch after the one that is next, and the milliseconds before which a share must come."""
    return bm.COMMITTEE.epoch_at(int(time.time() * 1000)) + 2


async def passed(treasury, customer, verifier):
    """A job of which three of four chunks were drawn, judged, and claimed by a verifier; what it is due in msat."""
    job = bm.request(customer.keys, price_msat=PRICE_MSAT)
    await customer.shares(job, range(4), PRICE_MSAT)
    due_msat, client = 0, treasury.client(None)
    for chunk in range(3):
        said = bm.verdict_of(job, chunk=chunk, epoch=next_draw(), verifiers=((verifier.public, True),))
        settled = await client.present(bm.certificate(said), job)
        claimed_msat = await client.claim(verifier, settled.case)
        assert claimed_msat == settled.due[verifier.public] > 0
        assert await client.claim(verifier, settled.case) == claimed_msat  # again gives nothing more
        assert verifier.public not in (await client.case(settled.case)).due
        due_msat += claimed_msat
    return due_msat


async def test_five_hundred_shares_come_in_two_payments_and_oracles_see_each_before_the_draw(treasury, customer):
    job = bm.request(customer.keys)
    await customer.shares(job, range(500))
    tab = customer.payer.tab(bm.HOLDER.public)
    assert (tab.paid_msat, tab.ahead_msat) == (2_000, 500)
    assert await customer.wallet.balance_msat() == 10_000_000 - 2 * 2_000  # with the routes
    assert (await customer.holder.treasury(job.id))[0] == 1_350
    late_ms = int(time.time() * 1000) + 5_000
    for chunk in (0, 333, 334, 499):
        assert await customer.holder.share_msat(job.id, customer.keys.public, chunk, late_ms) == SHARE_MSAT
        assert await customer.holder.share_msat(job.id, customer.keys.public, chunk, 0) == 0
    await treasury.has_all(ahead_msat=500)
    async with asyncio.timeout(20):
        while len(treasury.receipts) < 2:
            await asyncio.sleep(0.01)
    assert {one.tag("P") for one in treasury.receipts} == {customer.keys.public}


async def test_verifiers_and_oracles_are_paid_in_whole_satoshis_and_each_msat_is_in_the_book(
    treasury, customer, open_wallet
):
    verifier, oracle, own = Keys.generate(), bm.ORACLES[0], await open_wallet()
    client = treasury.client(own)
    assert await client.collect(verifier) is None
    due_msat = await passed(treasury, customer, verifier)
    paid = await client.collect(verifier)
    assert paid is not None and paid.is_paid
    assert paid.amount_msat % 1_000 == 0 and due_msat - paid.amount_msat <= 3_000  # the route's part, and the rest
    assert await own.balance_msat() == paid.amount_msat
    assert treasury.due_msat(verifier) == due_msat - paid.amount_msat - 1_000  # it bore what the route cost
    assert await client.collect(verifier) is None
    ahead_msat = customer.payer.tab(bm.HOLDER.public).ahead_msat
    await treasury.has_all(ahead_msat)
    more = bm.request(customer.keys, price_msat=100 * PRICE_MSAT, salt="for fees")
    await customer.shares(more, range(4), 50_000)
    fee = await client.collect(oracle)
    assert fee is not None and fee.is_paid
    await treasury.has_all(customer.payer.tab(bm.HOLDER.public).ahead_msat)


async def test_statements_that_are_false_book_nothing(treasury, customer):
    job, other = bm.request(customer.keys), bm.request(customer.keys, salt="other")
    await customer.shares(job, range(2))
    book = customer.holder.book_shares
    assert await book(customer.said(job, 0, SHARE_MSAT, SHARE_MSAT)) == 1_000 - 2 * SHARE_MSAT  # replayed
    for msat in (SHARE_MSAT - 1, SHARE_MSAT + 1):
        with pytest.raises(NotAllowed, match="was stated with"):
            await book(customer.said(job, 1, msat, 1))
    with pytest.raises(NotAllowed, match="another"):
        await book(customer.said(job, 2, holder=bm.OTHER))
    with pytest.raises(BadSignature):
        changed = {**customer.said(job, 2).document(), "request": other.id}
        await book(ShareStatement.from_document(changed))
    with pytest.raises(PaymentFailed, match="0 msat are paid ahead"):
        await book(customer.said(job, 2, keys=bm.STRANGER))
    with pytest.raises(PaymentFailed, match="994 msat are paid ahead, and 995 msat"):
        await book(customer.said(other, 0, 995))
    assert (await customer.holder.treasury(job.id))[0] + (await customer.holder.treasury(other.id))[0] == 2 * SHARE_MSAT
    await treasury.has_all(ahead_msat=994)


async def test_of_racing_statements_of_one_balance_one_is_booked_also_through_restarts(treasury, customer):
    await customer.shares(bm.request(customer.keys, salt="first"), range(1))
    jobs = [bm.request(customer.keys, salt=f"{n}") for n in range(6)]
    said = [customer.said(job, 0, 997) for job in jobs]
    found = await asyncio.gather(*(customer.holder.book_shares(one) for one in said), return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["PaymentFailed"] * 5 + ["int"]
    await treasury.kill()
    await treasury.open()
    holder, booked = treasury.client(None), found.index(0)
    assert await holder.book_shares(said[booked]) == 0  # its answer was lost
    with pytest.raises(PaymentFailed):
        await holder.book_shares(said[booked - 1])
    await treasury.has_all()


async def test_a_share_after_the_draw_covers_nothing(treasury, customer):
    job, verifier = bm.request(customer.keys, price_msat=PRICE_MSAT), Keys.generate()
    await customer.shares(job, range(1), PRICE_MSAT)
    drawn = bm.COMMITTEE.epoch_at(int(time.time() * 1000)) - 2
    said = bm.verdict_of(job, epoch=drawn, verifiers=((verifier.public, True),))
    settled = await customer.holder.present(bm.certificate(said), job)
    assert settled.due == {}
    with pytest.raises(PaymentFailed, match="covers"):
        await customer.holder.claim(verifier, settled.case)
    with pytest.raises(NotFound):
        await customer.holder.claim(verifier, "00" * 32)


async def test_one_invoice_is_paid_once_however_often_it_is_brought_and_to_one_payee(treasury, customer, open_wallet):
    verifier, own = Keys.generate(), await open_wallet()
    due_msat = await passed(treasury, customer, verifier)
    client = treasury.client(own)
    bolt11 = (await own.invoice(1_000, description="x", expiry_s=600)).bolt11
    ask = {"bolt11": bolt11}
    found = await asyncio.gather(*(client._ask("POST", "/v1/payouts", ask, verifier) for _ in range(5)))
    assert {one["is_paid"] for one in found} == {True} and await own.balance_msat() == 1_000
    assert treasury.due_msat(verifier) == due_msat - 2_000
    for key in (Keys.generate(), bm.ORACLES[1]):
        with pytest.raises(NotAllowed, match="another payout"):
            await client._ask("POST", "/v1/payouts", ask, key)
    with pytest.raises(PaymentFailed):
        dear = (await own.invoice(due_msat // 1_000 * 1_000, description="x", expiry_s=600)).bolt11
        await client._ask("POST", "/v1/payouts", {"bolt11": dear}, verifier)
    await treasury.has_all(customer.payer.tab(bm.HOLDER.public).ahead_msat)


async def test_a_payment_that_fails_gives_back_what_was_bound_to_it(treasury, customer, open_wallet):
    verifier, own = Keys.generate(), await open_wallet()
    due_msat = await passed(treasury, customer, verifier)
    client = treasury.client(own)
    nowhere = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=1_000,
        payment_hash="cd" * 32,
        created_at_s=int(time.time()),
        expiry_s=600,
        description="no node has it",
    )
    ask = {"bolt11": nowhere.bolt11}
    assert not (await client._ask("POST", "/v1/payouts", ask, verifier))["is_paid"]
    assert treasury.due_msat(verifier) == due_msat
    with pytest.raises(NotAllowed, match="failed before"):
        await client._ask("POST", "/v1/payouts", ask, verifier)
    assert (await client.collect(verifier)).is_paid
    old = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=1_000,
        payment_hash="ce" * 32,
        created_at_s=int(time.time()) - 700,
        expiry_s=600,
        description="x",
    )
    with pytest.raises(BadInvoice, match="expired"):
        await client._ask("POST", "/v1/payouts", {"bolt11": old.bolt11}, verifier)


class DyingWallet(SimWallet):
    """The registrar's process dies when its wallet is told to pay: before the wallet hears of it, or after."""

    dies = ""

    async def pay(self, bolt11, **options):
        if self.dies == "after":
            await super().pay(bolt11, **options)
        if self.dies:
            raise LinkLost("wallet", "dead")
        return await super().pay(bolt11, **options)

    async def lookup(self, payment_hash, direction):
        if self.dies and direction == "out":
            raise LinkLost("wallet", "dead")
        return await super().lookup(payment_hash, direction)


@pytest.mark.parametrize("died", ["before", "after"])
async def test_a_registrar_that_dies_while_it_pays_pays_once_when_it_is_back(
    died, treasury, customer, open_wallet, network
):
    verifier, own = Keys.generate(), await open_wallet()
    due_msat = await passed(treasury, customer, verifier)
    dying = DyingWallet(network, treasury.wallet._token)
    await treasury.kill()
    await treasury.open(dying)
    dying.dies = died
    client = treasury.client(own)
    first = await client.collect(verifier)
    assert first is not None and not first.is_paid
    assert await treasury.client(own).collect(verifier) is None  # what is bound is not due
    await treasury.kill()
    await dying.close()
    await treasury.open()
    for _ in range(2):
        await treasury.registrar.treasury.sweep()
    assert await own.balance_msat() == first.amount_msat
    assert treasury.due_msat(verifier) == due_msat - first.amount_msat - 1_000
    await treasury.has_all(customer.payer.tab(bm.HOLDER.public).ahead_msat)


async def test_a_registrar_without_a_wallet_refuses_a_committee_with_a_share_and_says_what_to_add(tmp_path):
    book, custody = Book(tmp_path / "book.db"), EcashCustody(Mint(NOBODY))
    with pytest.raises(BadInput, match="--treasury"):
        Registrar(bm.HOLDER, bm.COMMITTEE, custody, book)
    without, _ = bm.committee(verify_share_ppm=0)
    runner, url = await http.start(Registrar(bm.HOLDER, without, custody, book), "127.0.0.1", 0)
    holder = QuorumBondHolder(url, custody)
    assert await holder.collect(Keys.generate()) is None
    assert (await holder.holder()).lnurl == ""
    with pytest.raises(NotFound, match="treasury"):
        await holder.book_shares(bm.statement(0))
    await holder.close()
    await runner.cleanup()
    book.close()


async def test_a_treasury_refuses_a_wallet_without_preimages_whose_lumps_it_could_not_count(tmp_path):
    class Custodial:
        async def info(self):
            return WalletInfo("w", "bcrt", 1, 1, 10**9, ABILITIES, has_preimages=False)

    with pytest.raises(NotAllowed, match=r"^wallet: a treasury needs one that gives preimages"):
        await WalletCashier.open(bm.HOLDER, Custodial(), tmp_path / "ledger.db", None)


async def test_the_command_serves_a_treasury_whose_wallet_a_file_names(open_wallet, network, tmp_path):
    wallet = await open_wallet()
    (tmp_path / "committee.json").write_text(bm.COMMITTEE.to_json())
    for name, secret in (("holder.nsec", bm.HOLDER.nsec), ("wallet.token", wallet._token)):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    account = f'[wallet]\nurl = "{network}"\ntoken_file = "wallet.token"\n'
    (tmp_path / "treasury.toml").write_text(f'relays = ["ws://127.0.0.1:1"]\n{account}')
    command = [sys.executable, "-m", "nodewire.cli", "registrar", "--json", "--port", "0", "--mint", NOBODY]
    command += ["--key", "holder.nsec", "--committee", "committee.json"]
    refused = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True)
    assert refused.returncode == 1 and b"--treasury" in refused.stdout + refused.stderr
    command += ["--treasury", "treasury.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            ready = json.loads(await asyncio.to_thread(process.stdout.readline))
            offer = await lnurl.fetch_offer(ready["lnurl"], allow_private=True)
            assert (offer.zapper(), offer.least_msat) == (bm.HOLDER.public, 1_000)
            holder = QuorumBondHolder(ready["url"], EcashCustody(Mint(NOBODY)))
            said = await holder.holder()
            assert (said.lnurl, said.unit_msat, said.public) == (ready["lnurl"], 1_000, bm.HOLDER.public)
            await holder.close()
        finally:
            process.terminate()
