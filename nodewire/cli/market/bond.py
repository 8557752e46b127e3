"""`nodewire bond`: lock a provider's bond, look at it, ask for it back; claim what verdicts and the treasury owe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.common.roles import enter_market, event_id, name_relays, wallet_of
from nodewire.cli.output import OPERATORS, Json, console, one_line, print_json, sats
from nodewire.config import AnyRole, ProviderConfig, load_role, parse_msat
from nodewire.errors import BadConfig, BadInput, NotAllowed, NotFound
from nodewire.nostr.keys import Keys, from_npub

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.pay.bond.bond_holder import BondHolder, ClaimPayment, HeldBond
    from nodewire.pay.bond.claimable import Claimable

app = typer.Typer(help="Bonds: stakes of providers, and payouts of verdicts.", no_args_is_help=True)
Config = Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")]
_FETCH_S = 10.0
_RUNNING = "a provider runs with this bond, and is bonded no more once it is asked back"
_IDS = "`nodewire bond claim` without one lists what can be claimed, `nodewire audit` shows a job's"


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="bond", rich_help_panel=OPERATORS)


@app.command()
def lock(
    amount: Annotated[str, typer.Argument(help="The amount in all, such as 100000sat.")],
    config: Config,
    days: Annotated[int, typer.Option(help="At least until so many days from now.", min=1, max=1_800)] = 90,
    json: Json = False,
) -> None:
    """Lock a bond out of the role's wallet, or raise the one that is there.

    A bond is never lowered: `nodewire bond release` asks for all of it back.
    """
    from nodewire.pay.bond.bond_holder import ensure_bond

    amount_msat, until_s = parse_msat(amount), int(time.time()) + days * 86_400

    async def run() -> dict[str, Any]:
        async with _asking(config, new_key=True) as (keys, holder):
            await _check_raised(holder, keys, amount_msat)
            statement = await ensure_bond(holder, keys, amount_msat, until_s)
            return {**asdict(await holder.bond(keys.public)), "statement": statement.as_dict()}

    _tell(asyncio.run(run()), json)


@app.command()
def show(
    config: Config,
    provider: Annotated[str, typer.Option(help="Another provider's npub or hex key; the role's own if empty.")] = "",
    json: Json = False,
) -> None:
    """Show the holder's statement of a bond."""

    async def run() -> HeldBond:
        async with _asking(config) as (keys, holder):
            return await holder.bond(from_npub(provider) if provider else keys.public)

    _tell(asdict(asyncio.run(run())), json)


@app.command()
def release(
    config: Config,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also while a provider runs with it.")] = False,
    json: Json = False,
) -> None:
    """Ask for the bond back: it is free when every verdict on work done under it has had its time.

    Asks first while a provider runs with it: that one loses its place on the market.
    """
    if not yes and _is_running(load_role(config)):
        if json:
            raise BadInput("--yes", f"{_RUNNING}; --yes releases its bond all the same")
        if not typer.confirm(f"{_RUNNING[0].upper()}{_RUNNING[1:]}. Release its bond?"):
            raise typer.Exit(1)

    async def run() -> HeldBond:
        async with _asking(config) as (keys, holder):
            return await holder.release(keys)

    _tell(asdict(asyncio.run(run())), json)


@app.command()
def claim(
    config: Config,
    certificates: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of verdict certificates (kind 8852) on the role's relays; none: list them."),
    ] = None,
    fees: Annotated[
        bool, typer.Option("--fees", help="Pull what is due already, and an oracle's part of the fees.")
    ] = False,
    json: Json = False,
) -> None:
    """Present verdicts to the holder, and pull what they give the role's key into its wallet, in whole units.

    Without an id: list the verdicts that can be claimed.
    """
    role = load_role(config)
    if not certificates and not fees:
        with name_relays(role.relays):
            _list(asyncio.run(_claimable(role)), config, json)
        return
    ids = [event_id(one, "CERTIFICATES", _IDS) for one in certificates or ()]

    async def run() -> list[dict[str, Any]]:
        async with _asking(config) as (keys, holder):
            done = []
            for certificate, request in await _evidence(role, ids):
                done.append(await _claim(holder, keys, certificate, request))
            return [*done, {"what": "payout", **_paid(await holder.collect(keys))}]

    with name_relays(role.relays):
        found = asyncio.run(run())
    if json:
        print_json({"claims": found})
        return
    for one in found:
        refused = f"; refused: {one_line(one['refused'])}" if one.get("refused") else ""
        console.print(f"{one['what'][:16]}  [bold]{sats(one['amount_msat'])}[/] {one['state']}{refused}")


def _is_running(role: AnyRole) -> bool:
    from nodewire.store.state_lock import is_held

    return isinstance(role, ProviderConfig) and is_held(role.state)


async def _claim(holder: BondHolder, keys: Keys, certificate: Event, request: Event) -> dict[str, Any]:
    settled = await holder.present(certificate, request)
    amount_msat = await holder.claim(keys, settled.case) if keys.public in settled.due else 0
    said = {"what": settled.case, "outcome": settled.outcome, "refused": settled.refused}
    return {**said, "amount_msat": amount_msat, "state": "claimed" if amount_msat else "nothing due"}


def _paid(paid: ClaimPayment | None) -> dict[str, Any]:
    if paid is None:
        return {"amount_msat": 0, "state": "nothing due", "payment_hash": None}
    state = "paid" if paid.is_paid else "on its way"
    return {"amount_msat": paid.amount_msat, "state": state, "payment_hash": paid.payment_hash}


async def _claimable(role: AnyRole) -> list[Claimable]:
    from nodewire.pay.bond import claimable

    async with AsyncExitStack() as stack:
        keys, pool, market = await enter_market(stack, role)
        holder = await _holder(stack, role)
        return await claimable.find(pool, market.committee, holder, keys.public)


def _list(found: list[Claimable], config: Path, as_json: bool) -> None:
    if as_json:
        print_json({"claimable": [asdict(one) for one in found]})
        return
    for one in found:
        amount = sats(one.amount_msat) if one.is_presented else "not presented yet"
        what = f"{one.outcome} of {one.task}, chunk {one.chunk} of job {one.request[:8]}"
        console.print(f"{one.certificate}  [bold]{amount}[/]  {what}", soft_wrap=True)
    if found:
        how = f"nodewire bond claim CERTIFICATE_ID ... --config {one_line(str(config))}"
        console.print(f"[dim]`{how}` pulls it into the wallet[/]", soft_wrap=True)
    else:
        console.print("no verdict that relays have owes this key anything")


async def _check_raised(holder: BondHolder, keys: Keys, amount_msat: int) -> None:
    """Raises NotAllowed: there is a bond of more."""
    try:
        bond = await holder.bond(keys.public)
    except NotFound:
        return
    if bond.state == "locked" and bond.remainder_msat > amount_msat:
        raise NotAllowed(
            "bond",
            f"{bond.remainder_msat} msat are locked, and a bond is only raised: `nodewire bond release` asks for all"
            " of it back",
        )


async def _evidence(role: AnyRole, certificates: list[str]) -> list[tuple[Event, Event]]:
    """Each certificate with the request that its verdict is about, from the role's relays. Raises NotFound."""
    from nodewire.nostr.nips.nip01 import Filter
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.verification import verdict

    if not certificates:
        return []
    async with Pool(role.relays) as pool:

        async def fetch(ids: list[str]) -> list[Event]:
            found = await pool.fetch([Filter(ids=frozenset(ids))], timeout_s=_FETCH_S)
            by_id = {event.id: event for event in found}
            for id_ in ids:
                if id_ not in by_id:
                    raise NotFound(id_[:64], "no relay has this event")
            return [by_id[id_] for id_ in ids]

        events = await fetch(certificates)
        requests = await fetch([verdict.parse(event).verdict.request for event in events])
        return list(zip(events, requests, strict=True))


@asynccontextmanager
async def _asking(config: Path, *, new_key: bool = False) -> AsyncIterator[tuple[Keys, BondHolder]]:
    """The role's keys, and the holder that its wallet's service is. A key that is missing is made if `new_key`."""
    role = load_role(config)
    if not new_key and not role.key.exists():
        raise BadConfig(str(role.key), f"does not exist; `nodewire keys new {role.key}` makes one")
    async with AsyncExitStack() as stack:
        yield Keys.from_file(role.key), await _holder(stack, role)


async def _holder(stack: AsyncExitStack, role: AnyRole) -> BondHolder:
    from nodewire.pay import registry

    account = wallet_of(role)
    wallet = registry.wallet_class(account.kind).from_file(account.url, account.token_file)
    stack.push_async_callback(wallet.close)
    holder = registry.bond_holder(account.kind, wallet, role.holder)
    stack.push_async_callback(holder.close)
    return holder


def _tell(bond: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(bond)
        return
    console.print(f"[bold]{bond['state']}[/]  {sats(bond['remainder_msat'])} of {sats(bond['amount_msat'])}")
    console.print(f"until {_date(bond['until_s'])}, stated until {_date(bond['stated_until_s'])}")
    if bond["frees_at_s"]:
        console.print(f"free on {_date(bond['frees_at_s'])}")
    if bond["cases"]:
        console.print(f"verdicts: {one_line(' '.join(bond['cases']))}")


def _date(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at_s else "never"
