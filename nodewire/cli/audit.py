"""`nodewire audit EVENT`: re-derive a job's plan from relays and blobs alone, and say what differs."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from nodewire.cli.output import CUSTOMERS, Json, console, one_line, print_json
from nodewire.cli.roles import event_id, naming
from nodewire.config import Role, load_role
from nodewire.errors import NodewireError, NotFound


def audit(
    event: Annotated[str, typer.Argument(help="Id of the job request (kind 8843).")],
    config: Annotated[Path, typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")],
    json: Json = False,
) -> None:
    """Re-derive the plan of a job; exit code 1 if it is not the one that the public record gives."""
    id_ = event_id(event)
    role = load_role(config)
    with naming(role.relays):
        found = asyncio.run(_audit(role, id_))
    if json:
        print_json(found)
    else:
        for check, fault in found["checks"].items():
            console.print(f"{'[red]✗' if fault else '[green]✓'}[/] {check}{': ' + one_line(fault) if fault else ''}")
        for finding in found["findings"]:
            path, expected, found_ = (one_line(finding[name]) for name in ("path", "expected", "found"))
            console.print(f"[red]  {path}[/]: expected {expected}, found {found_}")
        verdict = "[bold green]the plan follows from the public record" if found["ok"] else "[bold red]it does not"
        console.print(f"{verdict}[/]")
    if not found["ok"]:
        sys.exit(1)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(audit)


async def _audit(role: Role, id_: str) -> dict[str, Any]:
    from nodewire.market import open_market
    from nodewire.nostr.nip01 import Filter
    from nodewire.plan.audit import audit as rederive
    from nodewire.protocol import beacon, certificate, job
    from nodewire.protocol.snapshot import Snapshot

    checks: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        _, pool, market = await open_market(stack, role)
        events = await pool.fetch([Filter(ids=frozenset({id_}))], timeout_s=10.0)
        if not events:
            raise NotFound("event", f"no relay has {id_}")
        findings: list[dict[str, str]] = []
        try:
            request = job.parse(events[0])
            checks["the request is well-formed, signed, and its tags say what the plan says"] = ""
            manifest = await market.manifest(request.manifest_address, request.plan.manifest)
            cited = await pool.fetch([Filter(ids=frozenset({request.certificate_event}))], timeout_s=10.0)
            if not cited:
                raise NotFound("certificate", f"no relay has {request.certificate_event}")
            proof = certificate.parse(cited[0])
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
                partials=[beacon.parse(partial) for partial in request.partials],
                snapshot_blob=blob,
                busy=busy,
            )
            findings = [{"path": f.path, "expected": f.expected, "found": f.found} for f in found]
            checks["assign/1 over certificate, beacon and snapshot gives this plan"] = (
                f"{len(findings)} fields differ" if findings else ""
            )
        except NodewireError as error:
            checks[error.code] = str(error)
            findings.append({"path": error.field, "expected": "", "found": error.reason or str(error)})
    return {"request": id_, "ok": not any(checks.values()), "checks": checks, "findings": findings}
