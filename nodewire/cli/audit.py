"""`nodewire audit EVENT`: follow a job's trail through the public record, and say line by line what holds.

A training's transcript is audited by `audit_training`, a generation's by `audit_generation`. Of a job

The plan is re-derived from what it cites; commitments, certificates, draws, verdicts, bonds and payments are
checked against one another; the customer's own ledger as well, if the configuration is its own.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.output import CUSTOMERS, Json, console, one_line, print_json
from nodewire.cli.roles import enter_market, event_id, naming
from nodewire.cli.training_results import TRANSCRIPT
from nodewire.config import DEFAULT_WALLET, AnyRole, OracleConfig, load_role
from nodewire.errors import BadConfig, BadInput, NodewireError, NotFound

if TYPE_CHECKING:
    from nodewire.customer.trail.line import Line
    from nodewire.market import Market
    from nodewire.nostr.pool import Pool
    from nodewire.pay.bond_holder import BondHolder
    from nodewire.protocol.job import Request
    from nodewire.protocol.manifest import Manifest


class Depth(StrEnum):
    none = "none"
    drawn = "drawn"
    all = "all"


def audit(
    event: Annotated[
        str, typer.Argument(help="Id of a job request (kind 8843), or a generation's or training's transcript.json.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="With a transcript: the file or folder that was trained on, for losses.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="With a transcript: what its recipe starts from.")] = None,
    segments: Annotated[
        Depth, typer.Option(help="With a transcript: which work is computed again, where there are keys for it.")
    ] = Depth.drawn,
    replay: Annotated[
        bool, typer.Option("--replay", help="With a generation's transcript: make its tokens again here, one by one.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a job from its plan to its payments, or a training's transcript; exit code 1 if anything contradicts."""
    if (file := Path(event)).is_dir():
        file /= TRANSCRIPT
    if file.suffix == ".json" or file.is_file():
        from nodewire.cli.audit_generation import audit_generation, is_generation
        from nodewire.cli.audit_training import audit_training

        if is_generation(file):
            audit_generation(file, config, replay=replay, as_json=json)
            return
        audit_training(file, config, data=data, start=start, segments=segments.value, as_json=json)
        return
    id_ = event_id(event)
    if config is None:
        raise BadInput("--config", "a job's trail is read from relays: name a role's TOML file")
    role = load_role(config)
    with naming(role.relays):
        found = asyncio.run(trail_of(role, id_))
    if json:
        print_json(found)
    else:
        for check, fault in found["checks"].items():
            console.print(f"{'[red]✗' if fault else '[green]✓'}[/] {check}{': ' + one_line(fault) if fault else ''}")
        for finding in found["findings"]:
            path, expected, found_ = (one_line(finding[name]) for name in ("path", "expected", "found"))
            console.print(f"[red]  {path}[/]: expected {expected}, found {found_}")
        for line in found["lines"]:
            mark = {"ok": "[green]✓", "missing": "[yellow]–", "wrong": "[red]✗"}[line["state"]]
            said = ": ".join(one_line(line[name]) for name in ("what", "reason") if line[name])
            console.print(f"{mark}[/] [bold]{line['step']}[/] {said}", soft_wrap=True)
        verdict = "[bold green]nothing contradicts the public record" if found["ok"] else "[bold red]it does not hold"
        early = [line["again_s"] for line in found["lines"] if line["again_s"]]
        missing = sum(line["state"] == "missing" for line in found["lines"]) - len(early)
        wait = f"; {len(early)} lines are not there yet, all of them in about {max(early)} s" if early else ""
        console.print(f"{verdict}[/]{wait}" + (f"; {missing} lines cannot be shown" if missing else ""), soft_wrap=True)
    if not found["ok"]:
        sys.exit(1)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(audit)


async def trail_of(role: AnyRole, id_: str) -> dict[str, Any]:
    """What the public record says of a job: checks of its plan, findings, and the trail's lines."""
    from nodewire.nostr.nip01 import Filter
    from nodewire.plan.audit import audit as rederive
    from nodewire.protocol import beacon, certificate, job
    from nodewire.protocol.snapshot import Snapshot

    checks: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        _, pool, market = await enter_market(stack, role)
        events = await pool.fetch([Filter(ids=frozenset({id_}))], timeout_s=10.0)
        if not events:
            raise NotFound("event", f"no relay has {id_}")
        findings: list[dict[str, str]] = []
        lines: list[dict[str, Any]] = []
        request = manifest = None
        try:
            request = job.parse(events[0])
            checks["the request is well-formed, signed, and its tags say what the plan says"] = ""
            manifest = await market.manifest(request.manifest_address, request.plan.manifest)
            cited = await market.certificate_event(request.certificate_event)
            proof = certificate.parse(cited)
            checks["the committee's quorum certificate is there"] = ""
            path = await market.fetch_blob(proof.body.snapshot, Snapshot.MAX_BYTES)
            blob = await asyncio.to_thread(path.read_bytes)
            checks["the certified snapshot is there and has its hash"] = ""
            busy = []
            if request.plan.busy:
                busy = await pool.fetch([Filter(ids=frozenset(request.plan.busy))], timeout_s=10.0)
            found = rederive(
                request.plan,
                customer=request.customer,
                manifest=manifest,
                committee=market.committee,
                certificate=proof,
                partials=[beacon.parse(partial) for partial in request.signed_partials()],
                snapshot_blob=blob,
                busy=busy,
            )
            findings = [{"path": f.path, "expected": f.expected, "found": f.found} for f in found]
            checks["assign/2 over certificate, beacon and snapshot gives this plan"] = (
                f"{len(findings)} fields differ" if findings else ""
            )
        except NodewireError as error:
            checks[error.code] = str(error)
            findings.append({"path": error.field, "expected": "", "found": error.reason or str(error)})
        if request is not None and manifest is not None:
            lines = [asdict(line) for line in await _trail(stack, role, request, manifest, market, pool)]
    holds = not any(checks.values()) and all(line["state"] != "wrong" for line in lines)
    return {"request": id_, "ok": holds, "checks": checks, "findings": findings, "lines": lines}


async def _trail(
    stack: AsyncExitStack,
    role: AnyRole,
    request: Request,
    manifest: Manifest,
    market: Market,
    pool: Pool,
) -> list[Line]:
    from nodewire.customer.trail import judged, money, record, work
    from nodewire.nostr.keys import Keys
    from nodewire.pay import registry
    from nodewire.pay.ledger import Ledger

    found = await record.read(request, manifest, market, pool)
    lines = list(work.lines(found))
    lines += (await judged.lines(found, market, _holder(stack, role)))[0]
    kind = role.wallet.kind if role.wallet is not None else DEFAULT_WALLET
    lines += money.lines(found, registry.wallet_class(kind).network)
    if (
        not isinstance(role, OracleConfig)
        and role.ledger.exists()
        and Keys.from_file(role.key).public == request.customer
    ):
        ledger = Ledger(role.ledger)
        stack.callback(ledger.close)
        lines += money.ledger(found, ledger.debts_of(request.id))
    return lines


def _holder(stack: AsyncExitStack, role: AnyRole) -> BondHolder | None:
    """The bonds' holder that the role's wallet reaches; None without a wallet."""
    from nodewire.pay import registry

    if role.wallet is None:
        return None
    try:
        wallet = registry.wallet_class(role.wallet.kind).from_file(role.wallet.url, role.wallet.token_file)
    except BadConfig:
        return None
    stack.push_async_callback(wallet.close)
    return registry.bond_holder(role.wallet.kind, wallet)
