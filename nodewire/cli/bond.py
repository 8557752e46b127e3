"""`nodewire bond`: lock a provider's bond, look at it, ask for it back; claim what verdicts and the treasury owe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.output import Json, console, one_line, print_json, sats
from nodewire.config import load_role, parse_msat
from nodewire.errors import BadConfig, BadInput, NotFound
from nodewire.nostr.keys import Keys, from_npub

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.pay.bond_holder import BondHolder, HeldBond, Paid

app = typer.Typer(help="Bonds: what a provider stakes, and what verdicts pay out.", no_args_is_help=True)
Config = Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")]
_FETCH_S = 10.0


@app.command()
def lock(
    amount: Annotated[str, typer.Argument(help="How much in all, such as 100000sat.")],
    config: Config,
    days: Annotated[int, typer.Option(help="At least until so many days from now.", min=1, max=1_800)] = 90,
    json: Json = False,
) -> None:
    """Lock a bond out of the role's wallet, or raise the one that is there."""
    from nodewire.pay.bond_holder import ensure_bond

    amount_msat, until_s = parse_msat(amount), int(time.time()) + days * 86_400

    async def run() -> dict[str, Any]:
        async with _asking(config) as (keys, holder):
            statement = await ensure_bond(holder, keys, amount_msat, until_s)
            return {**asdict(await holder.bond(keys.public)), "statement": statement.as_dict()}

    _tell(asyncio.run(run()), json)


@app.command()
def show(
    config: Config,
    provider: Annotated[str, typer.Option(help="Another provider's npub or hex key; the role's own if empty.")] = "",
    json: Json = False,
) -> None:
    """What the holder says about a bond."""

    async def run() -> HeldBond:
        async with _asking(config) as (keys, holder):
            return await holder.bond(from_npub(provider) if provider else keys.public)

    _tell(asdict(asyncio.run(run())), json)


@app.command()
def release(config: Config, json: Json = False) -> None:
    """Ask for the bond back: it is free when every verdict on work done under it has had its time."""

    async def run() -> HeldBond:
        async with _asking(config) as (keys, holder):
            return await holder.release(keys)

    _tell(asdict(asyncio.run(run())), json)


@app.command()
def claim(
    config: Config,
    certificates: Annotated[
        list[str] | None, typer.Argument(help="Ids of verdict certificates (kind 8852) on the role's relays.")
    ] = None,
    fees: Annotated[bool, typer.Option("--fees", help="An oracle's part of the committee's fees.")] = False,
    json: Json = False,
) -> None:
    """Present verdicts to the holder, and pull what they owe to the role's key into its wallet."""
    if not certificates and not fees:
        raise BadInput("CERTIFICATES", "name a verdict's certificate, or --fees")

    async def run() -> list[dict[str, Any]]:
        async with _asking(config) as (keys, holder):
            done = [await _claim_fees(holder, keys)] if fees else []
            for certificate, request in await _evidence(config, certificates or []):
                done.append(await _claim(holder, keys, certificate, request))
            return done

    found = asyncio.run(run())
    if json:
        print_json({"claims": found})
        return
    for one in found:
        refused = f"; refused: {one_line(one['refused'])}" if one.get("refused") else ""
        console.print(f"{one['what'][:16]}  [bold]{sats(one['amount_msat'])}[/] {one['state']}{refused}")


async def _claim_fees(holder: BondHolder, keys: Keys) -> dict[str, Any]:
    return {"what": "fees", **_paid(await holder.claim_fee(keys))}


async def _claim(holder: BondHolder, keys: Keys, certificate: Event, request: Event) -> dict[str, Any]:
    settled = await holder.present(certificate, request)
    mine = keys.public in settled.due
    paid = await holder.claim(keys, settled.case) if mine else None
    return {"what": settled.case, "outcome": settled.outcome, "refused": settled.refused, **_paid(paid)}


def _paid(paid: Paid | None) -> dict[str, Any]:
    if paid is None:
        return {"amount_msat": 0, "state": "nothing due", "payment_hash": None}
    state = "paid" if paid.is_paid else "held"
    return {"amount_msat": paid.amount_msat, "state": state, "payment_hash": paid.payment_hash}


async def _evidence(config: Path, certificates: list[str]) -> list[tuple[Event, Event]]:
    """Each certificate with the request that its verdict is about, from the role's relays. Raises NotFound."""
    from nodewire.nostr.nip01 import Filter
    from nodewire.nostr.pool import Pool
    from nodewire.protocol import verdict

    if not certificates:
        return []
    async with Pool(load_role(config).relays) as pool:

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
async def _asking(config: Path) -> AsyncIterator[tuple[Keys, BondHolder]]:
    """The role's keys, and the holder that its wallet's service is."""
    from nodewire.pay.sim_bond_holder import SimBondHolder
    from nodewire.pay.sim_wallet import SimWallet

    role = load_role(config)
    if not role.key.exists():
        raise BadConfig(str(role.key), "does not exist; `nodewire keys new` makes one")
    wallet = SimWallet.from_file(role.wallet.url, role.wallet.token_file)
    try:
        yield Keys.from_file(role.key), SimBondHolder(wallet)
    finally:
        await wallet.close()


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
