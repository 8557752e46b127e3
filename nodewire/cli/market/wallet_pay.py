"""`nodewire wallet pay`, `receive` and `history`: a role's wallet by hand, by the book of its ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from nodewire.cli.common.roles import wallet_of
from nodewire.cli.market.role_wallet import opened
from nodewire.cli.output import Json, console, end, notes, one_line, print_json, sats
from nodewire.config import AnyRole, CustomerConfig, OracleConfig, load_role, parse_msat
from nodewire.errors import (
    BadConfig,
    BadInput,
    LinkLost,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
)

if TYPE_CHECKING:
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.accounts.own_transfers import OwnTransfer
    from nodewire.pay.by_hand.own_payer import OwnPayer
    from nodewire.pay.by_hand.statement import Entry
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.pay.lightning.lnurl import Offer
    from nodewire.pay.lightning.wallet import Wallet, WalletInfo

Config = Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")]


def pay(
    payee: Annotated[str, typer.Argument(help="An invoice (lnbc...), a lightning address, an lnurl1... or its URL.")],
    config: Config,
    amount: Annotated[str, typer.Argument(help="The amount, such as 500sat; an invoice has its own.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pay without asking.")] = False,
    json: Json = False,
) -> None:
    """Pay somebody from a role's wallet, once. The amount and the most fee are shown first.

    The payment is in the ledger before the wallet hears of it. The same command again, after a crash, asks the wallet
    first what became of it, and pays nothing twice.
    """
    role = _with_ledger(load_role(config), config)
    if json and not yes:
        raise NotAllowed("pay", "--json does not ask: --yes pays")
    amount_msat = parse_msat(amount) if amount else None
    done = asyncio.run(_pay(role, payee.strip(), amount_msat, _Question(yes)))
    if json:
        print_json(_document(done))
        return
    console.print(f"[bold green]paid[/] {sats(done.amount_msat)} and {sats(done.fee_msat)} of fees", soft_wrap=True)
    console.print(f"[dim]payment hash {done.payment_hash}[/]", soft_wrap=True)


def receive(
    amount: Annotated[str, typer.Argument(help="The amount, such as 500sat.")],
    config: Config,
    description: Annotated[str, typer.Option(help="What it is for; the ledger keeps it.")] = "nodewire",
    hours: Annotated[int, typer.Option(min=1, max=8_760, help="Hours that the invoice can be paid for.")] = 1,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is paid.")] = True,
    json: Json = False,
) -> None:
    """Make an invoice that pays into a role's wallet, and wait until it is paid."""
    role = _with_ledger(load_role(config), config)
    done = asyncio.run(_receive(role, parse_msat(amount), description, hours * 3_600, wait=wait, show=not json))
    if json:
        print_json(_document(done) | {"bolt11": done.bolt11})
    elif done.state == "settled":
        console.print(f"[bold green]came[/] {sats(done.amount_msat)}")
    if wait and done.state != "settled":
        raise typer.Exit(1)


def history(
    config: Config,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="The most entries.")] = 50,
    json: Json = False,
) -> None:
    """List what a role has paid and received, newest first: what it was for, fees, and what became of it.

    It is read from the ledger. Of what is not settled there the wallet's own record is asked. No money moves by it.
    """
    role = _with_ledger(load_role(config), config)
    found, unasked = asyncio.run(_history(role, most))
    if json:
        print_json({"transfers": [one.document() for one in found], "wallet_error": unasked})
        return
    if unasked:
        notes.print(f"[yellow]the wallet was not asked[/]: {one_line(unasked)}", soft_wrap=True)
    _show(found)


def add_to(app: typer.Typer) -> None:
    app.command()(pay)
    app.command()(receive)
    app.command()(history)


@dataclass(frozen=True, slots=True)
class _Question:
    """The question before money goes; `yes` answers it."""

    yes: bool

    def ask(self, said: str) -> None:
        """Raises NotAllowed: the answer is no."""
        notes.print(said, soft_wrap=True)
        if self.yes:
            return
        try:
            is_agreed = typer.confirm("Pay?", err=True)
        except typer.Abort:
            raise NotAllowed("pay", "nobody answered, and nothing was paid: --yes pays without asking") from None
        if not is_agreed:
            raise NotAllowed("pay", "not agreed to: nothing was paid")


@dataclass(frozen=True, slots=True)
class _WalletAtHand:
    """A role's wallet and book, open."""

    wallet: Wallet
    info: WalletInfo
    ledger: Ledger
    payer: OwnPayer


@asynccontextmanager
async def _purse(role: AnyRole) -> AsyncIterator[_WalletAtHand]:
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.by_hand.own_payer import OwnPayer

    assert not isinstance(role, OracleConfig)
    role.state.mkdir(parents=True, exist_ok=True)
    async with opened(wallet_of(role)) as (wallet, info):
        ledger = Ledger(role.ledger)
        try:
            yield _WalletAtHand(wallet, info, ledger, OwnPayer(wallet, info, ledger.own))
        finally:
            ledger.close()


async def _pay(role: AnyRole, payee: str, amount_msat: int | None, question: _Question) -> OwnTransfer:
    from nodewire.pay.lightning import invoices

    async with _purse(role) as purse:
        _needs(purse.info, "pay")
        if payee.lower().startswith(("lnbc", "lntb", "lnbcrt", "lightning:")):
            invoice = invoices.decode(payee.lower().removeprefix("lightning:"), network=purse.info.network)
            target = f"invoice {invoice.payment_hash}"
            if amount_msat not in (None, invoice.amount_msat):
                raise BadInput("AMOUNT", f"the invoice is of {invoice.amount_msat} msat: leave the amount out")
            if (known := purse.ledger.own.find(invoice.payment_hash, "out")) is None:
                invoices.check(invoice, amount_msat=invoice.amount_msat, now_s=time.time())
            elif known.state == "settled":
                raise NotAllowed("invoice", f"it was paid on {_moment(known.at_s)}: nothing is paid twice")
            if known is None:
                await purse.payer.check_balance(invoice.amount_msat)
            question.ask(_said(purse, invoice.amount_msat, invoice.description or f"node {invoice.payee[:16]}"))
        else:
            target, invoice = await _by_lnurl(role, purse, payee, amount_msat, question)
        return _told(await purse.payer.pay(invoice, target))


async def _by_lnurl(
    role: AnyRole, purse: _WalletAtHand, payee: str, amount_msat: int | None, question: _Question
) -> tuple[str, Invoice]:
    """The endpoint's URL, and an invoice that its owner's wallet is to pay. Raises as `lnurl.fetch_invoice`."""
    from nodewire.pay.lightning import lnurl

    if "@" not in payee and not payee.lower().startswith(("lnurl1", "http://", "https://")):
        raise BadInput("PAYEE", f"{payee[:60]!r} is no invoice, lightning address (name@host), lnurl1... or URL")
    if amount_msat is None:
        raise BadInput("AMOUNT", "is needed: a lightning address has none. Add it, such as 500sat")
    url = lnurl.pay_url(payee)
    private = isinstance(role, CustomerConfig) and role.private_endpoints
    await _settle_before(purse, url)
    offer = await lnurl.fetch_offer(url, allow_private=private)
    offer.callback_for(amount_msat)
    await purse.payer.check_balance(amount_msat)
    question.ask(_said(purse, amount_msat, _whom(payee, offer)))
    network = purse.info.network
    return url, await lnurl.fetch_plain_invoice(offer, amount_msat, network=network, allow_private=private)


async def _settle_before(purse: _WalletAtHand, target: str) -> None:
    """Find out what became of an earlier payment to the same, which a crash or a lost answer left.

    Raises:
        NotAllowed: it has arrived after all, or is another wallet's. Whoever wants another one asks again.
        TimedOut: it is on its way, or may yet be.

    """
    one = purse.ledger.own.paying(target)
    if one is None:
        return
    try:
        one = await purse.payer.look(one)
    except NotFound:
        # The wallet never heard of it: the same invoice again is the one request that cannot pay twice.
        notes.print(f"an earlier payment of {sats(one.amount_msat)} to the same was not sent: it is sent now")
        from nodewire.pay.lightning import invoices

        one = await purse.payer.pay(invoices.decode(one.bolt11), target)
    what = f"an earlier payment of {one.amount_msat} msat to the same, of {_moment(one.at_s)},"
    if one.state == "settled":
        raise NotAllowed("pay", f"{what} has arrived: nothing more is paid. Give the command again for another one")
    if one.is_under_way:
        raise TimedOut("pay", f"{what} is on its way: nothing else is paid. `nodewire wallet history` asks after it")


def _told(one: OwnTransfer) -> OwnTransfer:
    """A payment that has settled. Raises PaymentFailed; TimedOut: it is on its way."""
    if one.state == "failed":
        raise PaymentFailed("payment", f"{one.reason or 'the wallet says no reason'}: nothing was paid")
    if one.is_under_way:
        raise TimedOut("payment", "on its way. `nodewire wallet history` asks what became of it; do not pay otherwise")
    return one


async def _receive(
    role: AnyRole, amount_msat: int, description: str, expiry_s: int, *, wait: bool, show: bool
) -> OwnTransfer:
    async with _purse(role) as purse:
        _needs(purse.info, "invoice")
        if wait:
            _needs(purse.info, "lookup-in")
        if amount_msat % purse.info.unit_msat or not purse.info.least_msat <= amount_msat <= purse.info.most_msat:
            least, most, unit = purse.info.least_msat, purse.info.most_msat, purse.info.unit_msat
            takes = f"the wallet takes {least} msat to {most} msat, in steps of {unit} msat"
            raise BadInput("AMOUNT", f"{amount_msat} msat: {takes}")
        one = await purse.payer.receive(amount_msat, description, expiry_s)
        if show:
            console.print(one.bolt11, soft_wrap=True, markup=False)
        if not wait:
            return one
        if not show:  # standard output has the one document, at the end
            notes.print(one.bolt11, soft_wrap=True, markup=False)
        if show:
            notes.print(f"[dim]waits for {sats(amount_msat)}; Ctrl-C ends this, and the invoice stays good[/]")
        try:
            one = await purse.payer.arrived(one)
        except asyncio.CancelledError:
            end.is_told = True
            notes.print("it may still be paid: `nodewire wallet history` asks the wallet")
            raise
        if one.state != "settled":
            notes.print("it was not paid in its time")
        return one


async def _history(role: AnyRole, most: int) -> tuple[list[Entry], str]:
    """The entries, and why the wallet was not asked."""
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.by_hand import statement

    assert not isinstance(role, OracleConfig)
    unasked = ""
    role.state.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(role.ledger)
    try:
        if ledger.own.under_way() or ledger.under_way():
            try:
                async with _purse(role) as purse:
                    for one in purse.ledger.own.under_way():
                        try:
                            await purse.payer.look(one)
                        except (NotFound, NotAllowed, BadInput):
                            continue  # as the ledger has it
                    said = await statement.by_wallet(purse.wallet, purse.info, ledger)
            except (LinkLost, TimedOut, NotAllowed, BadConfig) as error:
                unasked, said = str(error), {}
        else:
            said = {}
        return statement.read(ledger, most, said), unasked
    finally:
        ledger.close()


def _show(found: list[Entry]) -> None:
    from rich.table import Table

    if not found:
        console.print("nothing was paid, and nothing came")
        return
    table = Table("when (UTC)", "amount", "fee", "state", "what for", box=None, header_style="bold dim")
    for one in found:
        amount = f"{'-' if one.direction == 'out' else '+'}{sats(one.amount_msat)}"
        fee = sats(one.fee_msat) if one.fee_msat else ""
        state = one.state + (f" ({one.reason})" if one.reason else "")
        table.add_row(_moment(one.at_s) if one.at_s else "-", amount, fee, one_line(state), one_line(one.what))
    console.print(table)


def _with_ledger(role: AnyRole, config: Path) -> AnyRole:
    """Raises BadConfig: an oracle's file, which has neither wallet nor ledger of its own."""
    if isinstance(role, OracleConfig):
        raise BadConfig(str(config), "an oracle keeps no ledger: a customer's or provider's file is needed here")
    return role


def _needs(info: WalletInfo, ability: Any) -> None:
    """Raises NotAllowed."""
    from nodewire.pay.lightning.probe import MEANING

    if ability not in info.abilities:
        raise NotAllowed(ability, f"the wallet lacks it: {MEANING[ability]}. `nodewire wallet test` tells all of them")


def _said(purse: _WalletAtHand, amount_msat: int, whom: str) -> str:
    fee = purse.payer.most_fee_msat(amount_msat)
    most = f"fees of {sats(fee)} at most" if "fee-cap" in purse.info.abilities else "fees as the wallet bounds them"
    return f"[bold]{sats(amount_msat)}[/] to {one_line(whom[:200])}, and {most}, from {escape(purse.info.id[:40])}"


def _whom(payee: str, offer: Offer) -> str:
    says = f", which says {offer.description!r}" if offer.description else ""
    return f"{payee if '@' in payee else offer.callback.host}{says}"


def _moment(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")


def _document(one: OwnTransfer) -> dict[str, Any]:
    return {
        "payment_hash": one.payment_hash,
        "amount_msat": one.amount_msat,
        "fee_msat": one.fee_msat,
        "state": one.state,
        "what": one.target,
        "at_s": one.at_s,
    }
