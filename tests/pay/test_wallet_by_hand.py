"""`nodewire wallet pay`, `receive` and `history`: paid once whatever dies, and told what became of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

import pytest
from aiohttp import web
from typer.testing import CliRunner

from nodewire.cli.market import wallet
from nodewire.errors import BadInput, BadInvoice, LinkLost, NotAllowed, PaymentFailed, TimedOut
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.own_transfers import OwnTransfer
from nodewire.pay.by_hand import statement
from nodewire.pay.by_hand.own_payer import OwnPayer
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Transfer
from tests.pay.conftest import BASE_FEE_MSAT, FEE_PPM

ROLE = """
key = "key.nsec"
state = "state"
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
committee = "38841:{author}:c"
private_endpoints = true
[wallet]
url = "{url}"
token_file = "wallet.token"
"""


@pytest.fixture
async def payer(open_wallet, simnet_url, tmp_path):
    """A wallet with 50 sat and a role's file whose it is."""
    made = await open_wallet(50_000)
    (tmp_path / "wallet.token").write_text(made._token)
    made.role = tmp_path / "role.toml"
    made.role.write_text(ROLE.format(author="ab" * 32, url=simnet_url))
    (tmp_path / "state").mkdir()
    return made


@pytest.fixture
async def payee(open_wallet):
    return await open_wallet()


@pytest.fixture
async def endpoint(payee):
    """An LNURL-pay endpoint of `payee` that knows no zaps, and the invoices that it made."""
    made: list[str] = []

    async def offer(request):
        said = {"tag": "payRequest", "callback": f"http://{request.host}/cb", "minSendable": 1_000}
        text = json.dumps([["text/plain", "ada's [bold]shop"], ["text/identifier", "ada@shop.example"]])
        return web.json_response({**said, "maxSendable": 20_000, "metadata": text})

    async def callback(request):
        invoice = await payee.invoice(int(request.query["amount"]), description="x", expiry_s=600)
        made.append(invoice.bolt11)
        return web.json_response({"pr": invoice.bolt11, "routes": []})

    app = web.Application()
    app.add_routes([web.get("/pay", offer), web.get("/cb", callback)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/pay", made
    await runner.cleanup()


async def run(payer, command, *arguments, typed=""):
    told = [command, *arguments, "--config", str(payer.role)]
    return await asyncio.to_thread(lambda: CliRunner().invoke(wallet.app, told, input=typed))


async def transfers(payer):
    done = await run(payer, "history", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)["transfers"]


def book(payer):
    return Ledger(payer.role.parent / "state" / "ledger.db")


async def test_an_invoice_is_paid_after_a_question_and_never_again(payer, payee):
    invoice = await payee.invoice(5_000, description="x", expiry_s=600)
    done = await run(payer, "pay", invoice.bolt11, typed="n\n")
    assert isinstance(done.exception, NotAllowed) and "5.000 sat" in done.output and "at most" in done.output
    assert await payee.balance_msat() == 0 and await transfers(payer) == []
    done = await run(payer, "pay", invoice.bolt11.upper(), "--yes", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    fee_msat = BASE_FEE_MSAT + 5_000 * FEE_PPM // 1_000_000
    told = json.loads(done.stdout)
    assert (told["state"], told["amount_msat"], told["fee_msat"]) == ("settled", 5_000, fee_msat)
    again = await run(payer, "pay", invoice.bolt11, "--yes")
    assert isinstance(again.exception, NotAllowed) and "nothing is paid twice" in str(again.exception)
    assert (await payee.balance_msat(), await payer.balance_msat()) == (5_000, 45_000 - fee_msat)
    (one,) = await transfers(payer)
    assert (one["direction"], one["state"], one["fee_msat"]) == ("out", "settled", fee_msat)
    assert "preimage" not in one


async def test_an_address_is_paid_the_amount_that_was_agreed_to(payer, payee, endpoint):
    url, made = endpoint
    done = await run(payer, "pay", url, "3sat", typed="n\n")
    assert "3.000 sat to" in done.output and "[bold]shop" in done.output
    assert not made  # nothing is asked of the endpoint before it is agreed to
    done = await run(payer, "pay", url, "3sat", "--yes", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    done = await run(payer, "pay", url, "3sat", "--yes", "--json")  # another one, after the first has settled
    assert done.exit_code == 0 and await payee.balance_msat() == 6_000
    assert {one["what"] for one in await transfers(payer)} == {url}


@pytest.mark.parametrize(
    ("what", "kind", "field"),
    [
        (("{url}",), BadInput, "AMOUNT"),
        (("{url}", "21sat"), NotAllowed, "amount"),
        (("{url}", "500msat"), NotAllowed, "amount"),
        (("nobody", "3sat"), BadInput, "PAYEE"),
        (("ada@shop@example", "3sat"), BadInput, "url"),
        (("lnbcrt1nonsense",), BadInvoice, "amount"),
        (("{url}", "3"), BadInput, "amount"),
    ],
)
async def test_what_cannot_be_paid_is_told_by_the_field(payer, endpoint, what, kind, field):
    done = await run(payer, "pay", *(part.format(url=endpoint[0]) for part in what), "--yes")
    assert isinstance(done.exception, kind) and done.exception.field == field, done.exception
    assert await transfers(payer) == []


async def test_json_pays_nothing_unasked(payer, payee):
    invoice = await payee.invoice(5_000, description="x", expiry_s=600)
    assert isinstance((await run(payer, "pay", invoice.bolt11, "--json")).exception, NotAllowed)


async def test_an_invoice_of_another_amount_network_or_time_is_not_paid(payer, payee):
    invoice = await payee.invoice(5_000, description="x", expiry_s=3)
    done = await run(payer, "pay", invoice.bolt11, "4sat", "--yes")
    assert isinstance(done.exception, BadInput) and done.exception.field == "AMOUNT"
    other = invoices.issue(
        b"\x01" * 32,
        network="bc",
        amount_msat=5_000,
        payment_hash="ab" * 32,
        created_at_s=int(time.time()),
        expiry_s=600,
        description="x",
    )
    done = await run(payer, "pay", other.bolt11, "--yes")
    assert isinstance(done.exception, BadInvoice) and done.exception.field == "network"
    await asyncio.sleep(invoice.expires_at_s + 0.1 - time.time())
    done = await run(payer, "pay", invoice.bolt11, "--yes")
    assert isinstance(done.exception, BadInvoice) and done.exception.field == "expiry"
    assert await transfers(payer) == []


async def test_a_payment_that_the_wallet_has_failed_is_told_and_another_invoice_is_asked_for(payer, payee):
    invoice = await payee.invoice(50_000, description="x", expiry_s=600)  # all that there is: nothing for the way
    done = await run(payer, "pay", invoice.bolt11, "--yes")
    assert isinstance(done.exception, PaymentFailed) and "nothing was paid" in str(done.exception)
    assert (await transfers(payer))[0]["state"] == "failed"
    done = await run(payer, "pay", invoice.bolt11, "--yes")
    assert isinstance(done.exception, NotAllowed) and "another invoice" in str(done.exception)


async def test_what_the_wallet_lacks_is_told_before_and_the_same_invoice_is_paid_when_it_is_there(payer, payee):
    invoice = await payee.invoice(60_000, description="x", expiry_s=600)
    done = await run(payer, "pay", invoice.bolt11, "--yes")
    assert isinstance(done.exception, PaymentFailed) and "60000 msat are needed" in str(done.exception)
    assert await transfers(payer) == []
    more = await payer.invoice(90_000, description="x", expiry_s=600)
    rich, _ = await payer.open_account(payer._url, "rich", 200_000)
    try:
        assert (await rich.pay(more.bolt11, max_fee_msat=5_000)).state == "settled"
    finally:
        await rich.close()
    done = await run(payer, "pay", invoice.bolt11, "--yes")
    assert done.exit_code == 0, done.exception


async def test_an_invoice_that_a_script_waits_for_is_shown_at_once_and_in_the_history_until_it_is_paid(payer, payee):
    waiting = asyncio.create_task(run(payer, "receive", "5sat", "--json"))
    ledger = book(payer)
    try:
        while not (made := ledger.own.newest(1)):
            await asyncio.sleep(0.05)
        (open_,) = statement.read(ledger, 10, {})
    finally:
        ledger.close()
    assert open_.bolt11 == made[0].bolt11
    rich, _ = await payer.open_account(payer._url, "rich", 200_000)
    try:
        await rich.pay(open_.bolt11, max_fee_msat=5_000)
    finally:
        await rich.close()
    done = await waiting
    assert open_.bolt11 in done.stderr
    assert json.loads(done.stdout)["state"] == "settled"
    assert (await transfers(payer))[0]["bolt11"] == ""


async def test_nobody_who_answers_is_no_yes(payer, payee):
    invoice = await payee.invoice(5_000, description="x", expiry_s=600)
    done = await run(payer, "pay", invoice.bolt11)
    assert isinstance(done.exception, NotAllowed) and "--yes" in str(done.exception)
    assert await transfers(payer) == []


class Deaf:
    """A wallet whose answers are lost from its first payment on; `pays`: what it was told arrived."""

    def __init__(self, inner, *, pays):
        self._inner, self._pays, self._dead = inner, pays, False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def pay(self, bolt11, **options):
        if self._pays:
            await self._inner.pay(bolt11, **options)
        self._dead = True
        raise LinkLost("wallet", "gone")

    async def lookup(self, *asked):
        if self._dead:
            raise LinkLost("wallet", "gone")
        return await self._inner.lookup(*asked)


@pytest.mark.parametrize("arrived", [True, False])
async def test_after_a_lost_answer_the_same_command_pays_once(payer, payee, endpoint, arrived):
    url, made = endpoint
    ledger = book(payer)
    deaf = OwnPayer(Deaf(payer, pays=arrived), await payer.info(), ledger.own)
    invoice = await payee.invoice(3_000, description="x", expiry_s=600)
    with pytest.raises(LinkLost):
        await deaf.pay(invoice, url)
    assert ledger.own.paying(url) is not None
    ledger.close()
    done = await run(payer, "pay", url, "3sat", "--yes")
    assert isinstance(done.exception, NotAllowed) and "has arrived: nothing more is paid" in str(done.exception)
    assert not made and await payee.balance_msat() == 3_000
    done = await run(payer, "pay", url, "3sat", "--yes")
    assert done.exit_code == 0 and await payee.balance_msat() == 6_000


async def test_a_command_that_is_killed_while_its_payment_is_on_the_way_has_paid_once(payer, payee):
    preimage = "5a" * 32
    held = await payee.hold_invoice(4_000, payment_hash=invoices.hash_of(preimage), description="x", expiry_s=600)
    command = [sys.executable, "-m", "nodewire.cli", "wallet", "pay", held.bolt11, "--yes"]
    process = await asyncio.create_subprocess_exec(*command, "--config", str(payer.role))
    async with asyncio.timeout(60):
        while (await payee.lookup(held.payment_hash, "in")).state != "pending":
            await asyncio.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    (one,) = await transfers(payer)
    assert one["state"] == "pending"
    await payee.settle_hold(preimage)
    (one,) = await transfers(payer)
    assert one["state"] == "settled"
    done = await run(payer, "pay", held.bolt11, "--yes")
    assert isinstance(done.exception, NotAllowed)
    assert await payee.balance_msat() == 4_000


async def test_while_one_is_on_the_way_no_second_goes_to_the_same(payer, payee, endpoint):
    url, made = endpoint
    preimage = "5b" * 32
    held = await payee.hold_invoice(4_000, payment_hash=invoices.hash_of(preimage), description="x", expiry_s=600)
    ledger = book(payer)
    own = OwnPayer(payer, await payer.info(), ledger.own)
    assert (await own.pay(held, url, timeout_s=0.1)).state == "pending"
    done = await run(payer, "pay", url, "3sat", "--yes")
    assert isinstance(done.exception, TimedOut) and "nothing else is paid" in str(done.exception)
    with pytest.raises(NotAllowed, match="pending"):  # nor where two commands race
        await own.pay(await payee.invoice(3_000, description="x", expiry_s=600), url)
    await payee.cancel_hold(held.payment_hash)
    done = await run(payer, "pay", url, "3sat", "--yes")
    assert done.exit_code == 0, (done.output, done.exception)
    assert len(made) == 1 and await payee.balance_msat() == 3_000
    ledger.close()


async def test_a_preimage_that_proves_nothing_settles_nothing(payer, payee):
    ledger = book(payer)
    invoice = await payee.invoice(3_000, description="x", expiry_s=600)
    ledger.own.begin(OwnTransfer(invoice.payment_hash, "out", "t", invoice.bolt11, 3_000, "w", 1, "pending"))
    with pytest.raises(BadInput, match="look the payment up"):
        ledger.own.enter(Transfer(invoice.payment_hash, "out", "settled", 3_000, 0, "00" * 32, 1))
    assert ledger.own.paying("t").state == "pending"
    ledger.own.enter(Transfer(invoice.payment_hash, "out", "failed", 3_000, 0, None, 1, "no route"))
    after = ledger.own.enter(Transfer(invoice.payment_hash, "out", "pending", 3_000, 0, None, 1))
    assert (after.state, after.reason) == ("failed", "no route")  # what has ended stays as it is
    ledger.close()


async def test_of_another_wallet_nothing_is_learnt(payer, payee, open_wallet):
    ledger = book(payer)
    invoice = await payee.invoice(3_000, description="x", expiry_s=600)
    other = await open_wallet(10_000)
    one = await OwnPayer(other, await other.info(), ledger.own).pay(invoice, "t")
    ledger.close()
    assert one.state == "settled"
    own = book(payer)
    held = await payee.hold_invoice(4_000, payment_hash="ab" * 32, description="x", expiry_s=600)
    theirs = OwnPayer(other, await other.info(), own.own)
    pending = await theirs.pay(held, "u", timeout_s=0.1)
    with pytest.raises(NotAllowed, match="put that wallet back"):
        await OwnPayer(payer, await payer.info(), own.own).look(pending)
    own.close()
    assert [one["state"] for one in await transfers(payer)] == ["pending", "settled"]


async def test_an_invoice_is_waited_for_and_told_when_it_is_paid(payer, payee, open_wallet):
    other = await open_wallet(50_000)
    waiting = asyncio.create_task(run(payer, "receive", "7sat", "--description", "a loan", "--json"))
    ledger = book(payer)
    async with asyncio.timeout(60):
        while not (made := ledger.own.under_way()):
            await asyncio.sleep(0.05)
    ledger.close()
    await other.pay(made[0].bolt11, max_fee_msat=1_000)
    done = await waiting
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert (told["state"], told["amount_msat"], told["bolt11"]) == ("settled", 7_000, made[0].bolt11)
    (one,) = await transfers(payer)
    assert (one["direction"], one["state"], one["what"]) == ("in", "settled", "for a loan")
    assert await payer.balance_msat() == 57_000


async def test_an_invoice_that_is_not_waited_for_is_told_by_the_history(payer, open_wallet):
    done = await run(payer, "receive", "7sat", "--no-wait")
    bolt11 = done.stdout.strip()
    assert done.exit_code == 0 and (await transfers(payer))[0]["state"] == "open"
    await (await open_wallet(50_000)).pay(bolt11, max_fee_msat=1_000)
    assert (await transfers(payer))[0]["state"] == "settled"
    shown = (await run(payer, "history")).stdout
    assert "+7.000 sat" in shown and "settled" in shown


async def test_the_history_stands_without_the_wallet(payer, payee):
    done = await run(payer, "receive", "7sat", "--no-wait")
    assert done.exit_code == 0
    payer.role.write_text(payer.role.read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1?"))
    done = await run(payer, "history", "--json")
    told = json.loads(done.stdout)
    assert told["transfers"][0]["state"] == "open" and told["wallet_error"]
