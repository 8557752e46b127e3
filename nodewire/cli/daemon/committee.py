"""`nodewire committee`: found a committee of oracles."""

from __future__ import annotations

import asyncio
import json as jsonlib
import time
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from nodewire.cli.output import DEVELOPERS, Json, console, print_json
from nodewire.errors import BadInput
from nodewire.protocol.committee.committee import STAKE

app = typer.Typer(help="Committees of oracles.", no_args_is_help=True)


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="committee", rich_help_panel=DEVELOPERS)


@app.callback()
def _committee() -> None:
    """Committees of oracles."""


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(help="The folder for the committee's files.")],
    relay: Annotated[list[str], typer.Option("--relay", help="Relay of the committee (may be repeated).")],
    blossom: Annotated[list[str], typer.Option("--blossom", help="Blob store for snapshots (may be repeated).")],
    oracles: Annotated[int, typer.Option(help="The number of oracles: 1, 4, 7, 10 ... (3f+1).", min=1, max=31)] = 4,
    name: Annotated[str, typer.Option(help="The committee's name.")] = "main",
    epoch_ms: Annotated[int, typer.Option(help="Milliseconds of an epoch.")] = 10_000,
    skew_ms: Annotated[int, typer.Option(help="The most milliseconds that clocks and relays may lag.")] = 2_000,
    beat_ms: Annotated[int, typer.Option(help="Milliseconds between a node's beats.")] = 3_000,
    bond_holder: Annotated[
        list[str] | None, typer.Option(help="npub or hex key of a bond holder (may be repeated).")
    ] = None,
    fee_ppm: Annotated[int, typer.Option(help="The committee's part of the verification shares, per million.")] = 0,
    verify_rate: Annotated[
        str, typer.Option(help="The share of a sampled job's chunks that are computed again.")
    ] = "5%",
    verify_share: Annotated[str, typer.Option(help="The share of a job's price that pays for that.")] = "15%",
    stake: Annotated[
        int, typer.Option(help="The multiple of a slot's price that a bond must be for each slot that it counts for.")
    ] = STAKE,
    json: Json = False,
) -> None:
    """Found a committee: keys, beacon shares, one configuration per oracle, and the public document."""
    from nodewire.nostr.keys import Keys, from_npub
    from nodewire.nostr.pool import Pool
    from nodewire.oracle.setup import create_committee
    from nodewire.protocol.committee import committee as codec

    if oracles % 3 != 1:
        raise BadInput("--oracles", f"{oracles} is not 3f+1; use 1, 4, 7, 10 ...")
    founded = create_committee(
        directory,
        name=name,
        f=(oracles - 1) // 3,
        genesis_s=int(time.time()),
        epoch_ms=epoch_ms,
        skew_ms=skew_ms,
        beat_ms=beat_ms,
        relays=relay,
        blobs=blossom,
        bond_holders=[from_npub(holder) for holder in bond_holder or ()],
        fee_ppm=fee_ppm,
        verify_rate_ppm=_ppm("--verify-rate", verify_rate),
        verify_share_ppm=_ppm("--verify-share", verify_share),
        stake=stake,
    )
    for i in range(1, oracles + 1):
        (directory / f"oracle-{i}" / "oracle.toml").write_text(
            'seat = "."\ncommittee = "../committee.json"\nstate = "state"\n'
            f"relays = {jsonlib.dumps(relay)}\nblossom = {jsonlib.dumps(blossom)}\n"
            "\n# Computes disputed chunks of jobs again, capped; without it this oracle only joins those that do.\n"
            '[worker]\nmemory = "2GB"\nthreads = 1\ndevice = "cpu"\n'
            "\n# Presents certified verdicts to the bonds' holder; with an account there, collects what they give.\n"
            '# [bonds]\n# url = "http://..."\n# token_file = "bonds.token"\n'
        )
    keys = Keys.from_file(directory / "founder.nsec")

    async def publish() -> None:
        async with Pool(relay, keys=keys) as pool:
            await pool.publish(codec.build(keys, founded, created_at=int(time.time())), timeout_s=30.0)

    asyncio.run(publish())
    address = f"{codec.KIND}:{keys.public}:{name}"
    if json:
        print_json({"address": address, "digest": founded.digest(), "oracles": [o.pubkey for o in founded.oracles]})
    else:
        console.print(f"[bold green]founded[/] {address}\n[dim]digest {founded.digest()}[/]", soft_wrap=True)
        first = escape(str(directory / "oracle-1" / "oracle.toml"))
        console.print(f"Start each oracle:  nodewire oracle --config {first}   (to {oracles})", soft_wrap=True)


def _ppm(option: str, text: str) -> int:
    """Millionths: "5%" is 50,000."""
    try:
        share = Decimal(text.removesuffix("%")) * (10_000 if text.endswith("%") else 1_000_000)
    except ArithmeticError as error:
        raise BadInput(option, f"{text!r} is not a share such as 5%") from error
    if not share.is_finite() or not 0 <= share <= 1_000_000:
        raise BadInput(option, "not from 0 to 100 %")
    return int(share)
