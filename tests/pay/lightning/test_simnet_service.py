"""The network's process: it expires what is due, survives being killed between any two steps, and guards accounts."""

from __future__ import annotations

import json
import os

import aiohttp
import pytest

from nodewire.errors import BadConfig, BadInput, NotAllowed, NotFound, PaymentFailed
from nodewire.pay.lightning import invoices
from simnet.conditions import Conditions
from simnet.journal import Journal
from simnet.service import HOLD_S, Fees, Simnet
from simnet.wallet import SimWallet
from tests.pay.simnet_process import run_simnet

HASH = "ab" * 32


class Time:
    def __init__(self):
        self.now_s = 1_700_000_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "simnet.db"


@pytest.fixture
def simnet(path, clock):
    net = Simnet(path, Fees(10, 1_000), 1_000_000, clock)
    yield net
    net.close()


def accounts(simnet):
    return simnet.open_account("payee", 0)[0], simnet.open_account("payer", 1_000_000)[0]


def total(state):
    return sum(state.balances.values()) + state.held_msat()


def test_the_fee_is_base_plus_millionths_and_goes_to_routing(simnet):
    payee, payer = accounts(simnet)
    invoice = simnet.make_invoice(payee, 100_000, 600, description_hash=HASH)
    paid = simnet.pay(payer, invoice.bolt11, 110)
    assert paid.fee_msat == 10 + 100
    assert simnet.state.balances["routing"] == 110
    assert simnet.balance_msat(payer) == 1_000_000 - 100_110


def test_an_unpaid_invoice_expires(simnet, clock):
    payee, payer = accounts(simnet)
    invoice = simnet.make_invoice(payee, 100_000, 600, description_hash=HASH)
    clock.now_s += 600
    assert simnet.transfer(payee, invoice.payment_hash).phase == "expired"
    with pytest.raises(NotFound):
        simnet.transfer(payer, invoice.payment_hash)


def test_a_held_payment_goes_back_when_the_hold_is_over(simnet, clock):
    payee, payer = accounts(simnet)
    preimage = os.urandom(32).hex()
    invoice = simnet.make_invoice(payee, 100_000, 600, description_hash=HASH, payment_hash=invoices.hash_of(preimage))
    simnet.pay(payer, invoice.bolt11, 1_000)
    clock.now_s += HOLD_S - 1
    assert simnet.transfer(payer, invoice.payment_hash).phase == "held"
    clock.now_s += 1
    assert simnet.balance_msat(payer) == 1_000_000
    with pytest.raises(NotAllowed):
        simnet.settle(payee, preimage)


def test_the_faucet_has_a_cap(simnet):
    with pytest.raises(NotAllowed, match="faucet"):
        simnet.open_account("greedy", 1_000_001)


def test_others_invoices_do_not_exist(simnet):
    payee, payer = accounts(simnet)
    invoice = simnet.make_invoice(payee, 100_000, 600, description_hash=HASH)
    with pytest.raises(NotFound):
        simnet.cancel(payer, invoice.payment_hash)
    simnet.pay(payer, invoice.bolt11, 1_000)
    with pytest.raises(NotAllowed):
        simnet.cancel(payer, invoice.payment_hash)


def test_everything_is_there_after_a_restart(path, clock):
    simnet = Simnet(path, faucet_msat=1_000_000, now_s=clock)
    payee, token = simnet.open_account("payee", 0)
    payer, _ = simnet.open_account("payer", 1_000_000)
    invoice = simnet.make_invoice(payee, 100_000, 600, description_hash=HASH)
    simnet.pay(payer, invoice.bolt11, 0)
    before = simnet.state
    simnet.close()
    again = Simnet(path, now_s=clock)
    assert (dict(again.state.balances), dict(again.state.invoices)) == (dict(before.balances), dict(before.invoices))
    assert again.account_of(token) == payee
    assert again.make_invoice(payee, 5, 600, description="x").amount_msat == 5
    again.close()


@pytest.mark.parametrize("survived", range(7))
def test_a_crash_between_any_two_steps_loses_no_msat_and_pays_once(path, clock, monkeypatch, survived):
    """The process dies at its n-th write: once with that write lost, once with it on disk and its answer lost."""
    for on_disk in (False, True):
        path.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            _die_at_write(path, clock, survived, on_disk)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        # The log is whole, and going on ends where an undisturbed run ends.
        simnet = Simnet(path, faucet_msat=1_000_000, now_s=clock)
        assert total(simnet.state) == simnet.state.issued_msat
        plain = [i for i in simnet.state.invoices.values() if i.hold_s == 0]
        assert all(invoice.phase != "held" for invoice in plain)
        for invoice in plain:
            payer = next(n for n in simnet.state.balances if n not in (invoice.payee, "routing"))
            assert simnet.pay(payer, invoice.bolt11, 0).phase == "settled"
            assert simnet.balance_msat(invoice.payee) == 1_000
        simnet.close()


def _die_at_write(path, clock, survived, on_disk):
    insert, writes = Journal._insert, iter(range(100))

    def dying(self, *arguments):
        if next(writes) == survived and not on_disk:
            os._exit(9)
        seq = insert(self, *arguments)
        if next(written) == survived:
            if self._db.in_transaction:
                self._db.execute("COMMIT")
            os._exit(9)
        return seq

    written = iter(range(100))
    Journal._insert = dying
    simnet = Simnet(path, faucet_msat=1_000_000, now_s=clock)
    payee, payer = accounts(simnet)
    plain = simnet.make_invoice(payee, 1_000, 600, description_hash=HASH)
    simnet.pay(payer, plain.bolt11, 0)
    preimage = "11" * 32
    hold = simnet.make_invoice(payee, 2_000, 600, description_hash=HASH, payment_hash=invoices.hash_of(preimage))
    simnet.pay(payer, hold.bolt11, 0)
    simnet.settle(payee, preimage)
    os._exit(9 if survived >= 8 else 1)


def test_two_processes_cannot_write_one_journal(path, simnet):
    with pytest.raises(BadConfig):
        Simnet(path)


async def test_the_service_is_one_process_that_answers_and_ends_when_told(path):
    service = run_simnet(path)
    with service as url:
        wallet, token = await SimWallet.open_account(url, "a", 5_000)
        assert await wallet.balance_msat() == 5_000
    assert service.process.returncode == 0
    with run_simnet(path) as url:
        wallet = SimWallet(url, token)
        assert await wallet.balance_msat() == 5_000
        await wallet.close()


async def test_a_listener_misses_nothing_while_the_service_restarts(path, unused_tcp_port):
    service = run_simnet(path)
    service._command[service._command.index("--port") + 1] = str(unused_tcp_port)
    with service as url:
        payee, _ = await SimWallet.open_account(url, "payee")
        payer, _ = await SimWallet.open_account(url, "payer", 5_000)
        stream = payee.settled()
        paid = [await _pay_new(payee, payer)]
        seen = [(await anext(stream)).payment_hash]
        paid.append(await _pay_new(payee, payer))
    with service:
        paid.append(await _pay_new(payee, payer))
        seen += [(await anext(stream)).payment_hash for _ in range(2)]
    assert seen == paid
    await stream.aclose()
    await payee.close()
    await payer.close()


async def _pay_new(payee, payer):
    invoice = await payee.invoice(1_000, description="x", expiry_s=600)
    await payer.pay(invoice.bolt11, max_fee_msat=0)
    return invoice.payment_hash


async def test_a_wrong_token_opens_nothing(simnet_url):
    wallet = SimWallet(simnet_url, "guess")
    with pytest.raises(NotAllowed, match="token"):
        await wallet.balance_msat()
    await wallet.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/accounts", b"{", 400),
        ("/v1/accounts", b"[]", 400),
        ("/v1/accounts", b'{"name": "x", "opening_msat": -1}', 400),
        ("/v1/accounts", b'{"name": "x", "opening_msat": 1.5}', 400),
        ("/v1/accounts", b'{"name": "x", "opening_msat": true}', 400),
        ("/v1/accounts", b'{"name": "x", "opening_msat": 90000000000000}', 409),
        ("/v1/accounts", b"x" * 20_000, 413),
        ("/v1/payments", b'{"bolt11": "x", "max_fee_msat": 0}', 401),
    ],
)
async def test_bad_requests_get_an_error_that_names_the_field(simnet_url, path, body, status):
    async with aiohttp.ClientSession() as session, session.post(simnet_url + path, data=body) as response:
        assert response.status == status
        if status != 413:
            assert {"code", "field", "reason"} <= set(json.loads(await response.read()))


async def test_money_in_the_shared_network_adds_up(simnet_url):
    async with aiohttp.ClientSession() as session, session.get(simnet_url + "/v1/totals") as response:
        totals = await response.json()
    assert totals["issued_msat"] == totals["balances_msat"] + totals["held_msat"]


async def test_own_invoices_are_listed_page_by_page(simnet_url):
    wallet, token = await SimWallet.open_account(simnet_url, "a", 0)
    made = [(await wallet.invoice(n, description="x", expiry_s=60)).bolt11 for n in range(1, 6)]
    await wallet.close()
    listed, after = [], 0
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        while True:
            async with session.get(f"{simnet_url}/v1/invoices?limit=2&after={after}") as response:
                page = (await response.json())["invoices"]
            if not page:
                break
            listed += [invoice["bolt11"] for invoice in page]
            after = page[-1]["cursor"]
        for query in ("after=-1", "after=x", "limit=501", "after=9999999999999999999999"):
            async with session.get(f"{simnet_url}/v1/invoices?{query}") as response:
                assert response.status == 400
    assert listed == made


def test_a_payment_is_under_way_for_its_time_and_goes_on_after_a_restart(path, clock):
    for restarts in (False, True):
        path.unlink(missing_ok=True)
        simnet = Simnet(path, Fees(10, 0), 1_000_000, clock, conditions=Conditions(payment_s=3.0))
        payee, payer = accounts(simnet)
        invoice = simnet.make_invoice(payee, 1_000, 2, description_hash=HASH)  # it expires meanwhile
        assert simnet.attempt(payer, invoice.bolt11, 10).phase == "held"
        assert simnet.attempt(payer, invoice.bolt11, 10).phase == "held"
        assert simnet.next_deadline_s() <= clock.now_s + 3.0
        clock.now_s += 2.9
        assert simnet.record(payer, invoice.payment_hash, "out").phase == "held"
        assert total(simnet.state) == simnet.state.issued_msat
        if restarts:
            simnet.close()
            simnet = Simnet(path, Fees(10, 0), 1_000_000, clock, conditions=Conditions(payment_s=3.0))
        clock.now_s += 0.1
        assert simnet.record(payer, invoice.payment_hash, "out").phase == "settled"
        assert simnet.balance_msat(payee) == 1_000
        simnet.close()


@pytest.mark.parametrize("payment_s", [0.0, 1.0])
def test_a_payment_without_a_route_goes_back_and_is_on_record_as_failed(path, clock, payment_s):
    conditions = Conditions(payment_s=payment_s, failing_ppm=1_000_000)
    simnet = Simnet(path, Fees(10, 0), 1_000_000, clock, conditions=conditions)
    payee, payer = accounts(simnet)
    invoice = simnet.make_invoice(payee, 1_000, 600, description_hash=HASH)
    simnet.attempt(payer, invoice.bolt11, 10)
    clock.now_s += payment_s
    found = simnet.record(payer, invoice.payment_hash, "out")
    assert "no route" in found.reason
    assert simnet.attempt(payer, invoice.bolt11, 10) == found
    with pytest.raises(PaymentFailed, match="no route"):
        simnet.pay(payer, invoice.bolt11, 10)
    assert (simnet.balance_msat(payer), simnet.balance_msat(payee)) == (1_000_000, 0)
    simnet.close()
    again = Simnet(path, now_s=clock)
    assert again.record(payer, invoice.payment_hash, "out") == found
    clock.now_s += 601
    again.sweep()
    assert again.state.invoice(invoice.payment_hash).phase == "expired"
    again.close()


def test_stuck_payments_are_held_longer_and_half_of_them_go_back():
    conditions = Conditions(1.0, 3.0, failing_ppm=100_000, stuck_ppm=200_000, stuck_s=60.0)
    fates = [conditions.fate(invoices.hash_of(f"{n:064x}")) for n in range(4_000)]
    stuck = [fate for fate in fates if fate.is_stuck]
    failed = [fate for fate in fates if not fate.arrives and not fate.is_stuck]
    assert 600 < len(stuck) < 1_000
    assert 0.4 < sum(fate.arrives for fate in stuck) / len(stuck) < 0.6
    assert 300 < len(failed) < 500
    assert all(61.0 <= fate.after_s <= 63.0 for fate in stuck)
    assert all(1.0 <= fate.after_s <= 3.0 for fate in fates if not fate.is_stuck)
    assert Conditions().fate("ff" * 32).arrives


async def test_the_service_has_payments_take_time_and_amounts_of_whole_units(path):
    with run_simnet(path, "--payment-s", "0.4", "--unit-msat", "1000") as url:
        payee, _ = await SimWallet.open_account(url, "a", 0)
        payer, _ = await SimWallet.open_account(url, "b", 5_000)
        info = await payer.info()
        assert (info.unit_msat, info.least_msat) == (1_000, 1_000)
        with pytest.raises(BadInput, match="1000"):
            await payee.invoice(1_500, description="x", expiry_s=60)
        invoice = await payee.invoice(2_000, description="x", expiry_s=60)
        assert (await payer.pay(invoice.bolt11, max_fee_msat=10, timeout_s=0.0)).state == "pending"
        assert (await payer.lookup(invoice.payment_hash, "out")).state == "pending"
        assert (await payer.pay(invoice.bolt11, max_fee_msat=10)).state == "settled"
        await payee.close()
        await payer.close()
