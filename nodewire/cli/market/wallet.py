"""`nodewire wallet`: open an account with a wallet service, connect one, and look into a role's wallet."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from nodewire.cli.common.roles import load_customer, name_relays, wallet_of
from nodewire.cli.market import role_wallet, tabs, wallet_pay
from nodewire.cli.market.wallet_connect import connect
from nodewire.cli.output import CUSTOMERS, Json, console, counted, notes, one_line, print_json, sats
from nodewire.config import DEFAULT_WALLET, CustomerConfig, OracleConfig, load_role, parse_msat
from nodewire.errors import BadConfig, BadInput, NotAllowed

if TYPE_CHECKING:
    from nodewire.customer.payments.debts import ChunkDebt, DebtOutcome
    from nodewire.pay.accounts.splits import ShareOutcome
    from nodewire.pay.lightning.wallet import WalletInfo

app = typer.Typer(help="Lightning wallets.", no_args_is_help=True)
_PREFIX = re.compile(r"[0-9a-f]{1,64}")
_TIPS = 5
"""The newest that are shown, with what their senders say."""
_NOT_AGREED = NotAllowed("pay", "not agreed to")
app.command(context_settings={"allow_extra_args": True})(connect)
wallet_pay.add_to(app)
tabs.add_to(app)


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="wallet", rich_help_panel=CUSTOMERS)


@app.command("open")
def open_(
    url: Annotated[str, typer.Argument(help="URL of the wallet service, such as the simulated network's.")],
    out: Annotated[Path, typer.Option(help="The file for the account's token (mode 0600).")],
    balance: Annotated[
        str, typer.Option(help="Ask the service's faucet for this much play money, such as 100000sat.")
    ] = "0sat",
    kind: Annotated[str, typer.Option(help="The kind of wallet, as `kind` in a role's file.")] = DEFAULT_WALLET,
    json: Json = False,
) -> None:
    """Open an account with a wallet service, such as the simulated Lightning network."""
    from nodewire.pay import registry

    wallets = registry.wallet_class(kind, "--kind")
    if out.exists():
        raise BadConfig(str(out), "exists; a token is never overwritten")
    out.parent.mkdir(parents=True, exist_ok=True)  # before the account is opened: its token cannot be asked for again

    async def opened() -> str:
        wallet, token = await wallets.open_account(url, out.stem, parse_msat(balance))
        await wallet.close()
        return token

    token = asyncio.run(opened())
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    if json:
        print_json({"token_file": str(out), "url": url})
    else:
        console.print(f"the account's token is in {escape(str(out))}; who has it has the money")


@app.command()
def settle(
    config: Annotated[Path, typer.Option("--config", "-c", help="The customer's TOML file.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pay without asking.")] = False,
    broken: Annotated[
        list[str] | None,
        typer.Option(help="Pay this provider (the beginning of its public key) also for jobs that broke off."),
    ] = None,
    json: Json = False,
) -> None:
    """Find what a customer still owes to providers, in its ledger and on relays, and pay it.

    Claims of jobs that broke off before the work came are shown, and are not owed.
    """
    import uvloop

    for prefix in broken or ():
        if not _PREFIX.fullmatch(prefix):
            raise BadInput("--broken", f"{prefix[:70]!r} is no beginning of a public key in lowercase hex")
    role = load_customer(config)
    with name_relays(role.relays):
        done = uvloop.run(_settle(role, lambda: yes or (not json and typer.confirm("Pay?")), tuple(broken or ())))
    if json:
        print_json({"debts": [_owed(one) for one in done]})
        return
    told = [one for one in done if one.error is not _NOT_AGREED]
    if len(told) < len(done):
        console.print("nothing was paid")
    for one in told:
        what = f"{sats(one.owed.amount_msat)} to {one.owed.key.payee[:8]}"
        fees = f" (fees {sats(one.paid.fee_msat)})" if one.paid is not None else ""
        console.print(
            f"paid {what}{fees}" if one.error is None else f"not paid: {what}: {one_line(str(one.error))}",
            soft_wrap=True,
        )
    if not done:
        console.print("nothing is owed")


async def _settle(role: CustomerConfig, agreed: Callable[[], bool], broken: tuple[str, ...]) -> list[DebtOutcome]:
    """`broken`: to whom (beginnings of public keys) what is not owed is paid, too."""
    from nodewire.customer.api import Customer
    from nodewire.customer.payments import debts

    async with Customer.open(role, is_buyer=False) as customer:
        session = customer.session
        owed = debts.in_ledger(session.payer)
        owed += await debts.on_relays(session.pool, session.payer, session.keys.public)
        for one in owed:
            notes.print(_said(one), soft_wrap=True)
        to_pay = [one for one in owed if not one.is_broken or one.key.payee.startswith(broken)]
        left = [one for one in owed if one not in to_pay]
        unpaid = [debts.DebtOutcome(one, None, NotAllowed("pay", "not owed; --broken pays it")) for one in left]
        if to_pay:
            total, payees = sum(one.amount_msat for one in to_pay), {one.key.payee for one in to_pay}
            notes.print(f"{sats(total)} in all, to {counted(len(payees), 'provider')}; routing fees come on top")
        if not to_pay or not agreed():
            return unpaid + [debts.DebtOutcome(one, None, _NOT_AGREED) for one in to_pay]
        return unpaid + await debts.settle(
            session.payer,
            to_pay,
            relays=session.relays,
            network=session.network,
            private_endpoints=session.private_endpoints,
        )


def _said(one: ChunkDebt) -> str:
    amount, payee, chunk = sats(one.amount_msat), one.key.payee[:8], f"chunk {one.key.chunk} of job {one.key.job[:8]}"
    if not one.is_broken:
        by_its_word = f"{payee} says that you owe it {amount} for {chunk}"
        return f"you owe {amount} to {payee} for {chunk}" if one.is_evident else by_its_word
    return f"{payee} asks {amount} for {chunk}, which broke off before it came: it need not be paid, yet may be"


def _owed(one: DebtOutcome) -> dict[str, Any]:
    key = one.owed.key
    return {
        "request": key.job,
        "provider": key.payee,
        "chunk": key.chunk,
        "attempt": key.attempt,
        "amount_msat": one.owed.amount_msat,
        "fee_msat": one.paid.fee_msat if one.paid is not None else 0,
        "owed": not one.owed.is_broken,
        "paid": one.error is None,
        "error": str(one.error) if one.error is not None else "",
    }


@app.command()
def zap(
    to: Annotated[str, typer.Argument(help="A public key (npub or hex), or an event (note, nevent, naddr).")],
    amount: Annotated[str, typer.Argument(help="The whole amount, such as 1000sat.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The customer's TOML file.")],
    comment: Annotated[str, typer.Option(help="Words to those who are zapped.")] = "",
    again: Annotated[str, typer.Option(help="Pay what is left of an earlier zap, by the name that it was given.")] = "",
    json: Json = False,
) -> None:
    """Zap a provider, anybody else, or an event. An event's zap goes to those that its `zap` tags name, by weight.

    A provider that you have bought from keeps it as your deposit. Routing fees come on top.
    """
    import uvloop

    role, amount_msat = load_customer(config), parse_msat(amount)
    with name_relays(role.relays):
        name, done = uvloop.run(_zap(role, to, amount_msat, comment, again))
    if json:
        print_json({"zap": name, "shares": [_share(one) for one in done]})
    else:
        for one in done:
            what = f"{sats(one.share.amount_msat)} to {one.share.pubkey[:8]}"
            fees = f" (fees {sats(one.paid.fee_msat)})" if one.paid is not None else ""
            said = f"paid {what}{fees}" if one.error is None else f"not paid: {what}: {one_line(str(one.error))}"
            console.print(escape(said), soft_wrap=True)
    if any(one.error is not None for one in done):
        rest = f"nodewire wallet zap {to} {amount} --again {name} --config {config}"
        notes.print(f"what is left: {escape(rest)}", soft_wrap=True)
        raise typer.Exit(1)


async def _zap(
    role: CustomerConfig, to: str, amount_msat: int, comment: str, again: str
) -> tuple[str, list[ShareOutcome]]:
    """The zap's name, and what became of each share."""
    from nodewire.customer.api import Customer
    from nodewire.customer.payments import zap
    from nodewire.nostr.keys import from_npub
    from nodewire.pay.accounts import splits

    async with Customer.open(role, is_buyer=False) as customer:
        session, pool = customer.session, customer.session.pool
        if zap.names_event(to):
            one = await zap.of_event(pool, to, amount_msat, session.relays, comment=comment, name=again)
        else:
            one = zap.of_key(from_npub(to), amount_msat, session.relays, comment=comment, name=again)
        done = await splits.pay(
            session.payer,
            one,
            lambda pubkey: zap.endpoint_of(pool, pubkey),
            network=session.network,
            allow_private=session.private_endpoints,
        )
        return one.name, done


def _share(one: ShareOutcome) -> dict[str, Any]:
    return {
        "to": one.share.pubkey,
        "amount_msat": one.share.amount_msat,
        "fee_msat": one.paid.fee_msat if one.paid is not None else 0,
        "paid": one.error is None,
        "error": str(one.error) if one.error is not None else "",
    }


@app.command("test")
def try_(
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")],
    json: Json = False,
) -> None:
    """Try what a role's wallet says that it can do, without paying anything, and say what follows where it cannot."""
    from nodewire.pay.lightning import probe

    account = wallet_of(load_role(config))

    async def tried() -> tuple[WalletInfo, list[probe.Finding]]:
        async with role_wallet.opened(account) as (wallet, _):
            return await probe.probe(wallet)

    info, found = asyncio.run(tried())
    if json:
        print_json(role_wallet.document(info, found))
    else:
        role_wallet.show(info, found)
    if any(one.state == "fails" for one in found):
        raise typer.Exit(1)


@app.command()
def balance(
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")],
    json: Json = False,
) -> None:
    """Show the balance of a role's wallet, and the expenses and earnings in its ledger."""
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.accounts.unbilled_payments import Tip

    role = load_role(config)
    account = wallet_of(role)

    async def held() -> int:
        async with role_wallet.opened(account) as (wallet, info):
            if "balance" not in info.abilities:
                raise NotAllowed("balance", "the wallet does not tell it: allow get_balance in the wallet itself")
            return await wallet.balance_msat()

    found, tips = {"balance_msat": asyncio.run(held())}, list[Tip]()
    if not isinstance(role, OracleConfig):  # which keeps no ledger: it buys and sells nothing
        role.state.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(role.ledger)
        spent = ledger.spent()
        found |= {
            "spent_msat": spent.paid_msat + spent.fees_msat,
            "fees_msat": spent.fees_msat,
            "received_msat": ledger.earned_msat(),
            "deposits_msat": ledger.unbilled.deposits_msat(),
            "tips_msat": ledger.unbilled.tips_msat(),
        }
        tips = ledger.unbilled.tips(_TIPS)
        ledger.close()
    if json:
        print_json(found)
    else:
        for name, msat in found.items():
            console.print(f"{name.removesuffix('_msat'):>9}  {sats(msat)}")
        for tip in tips:
            said = f": {one_line(tip.comment)}" if tip.comment else ""
            console.print(f"{'tip':>9}  {sats(tip.amount_msat)} by {escape((tip.sender[:8] or 'nobody named') + said)}")
