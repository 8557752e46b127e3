"""`nodewire audit transcript.json` of a generation: whether it holds, what the public record says, and a replay."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodewire.cli.audit.job_trail import trail_of
from nodewire.cli.common.roles import enter_market, name_relays
from nodewire.cli.output import console, notes, one_line, print_json
from nodewire.config import AnyRole, CustomerConfig, load_role
from nodewire.errors import BadConfig, BadInput, TooLarge, Unsupported
from nodewire.kind import Limits, installed

if TYPE_CHECKING:
    from nodewire.market import Market
    from nodewire.verify.generation import GenerationAudit

_HEAD_BYTES = 4_096
_SPARE = 1.25
"""What a worker may take beside what the manifest says that its tasks do."""


def is_generation(path: Path) -> bool:
    """Whether a file begins as a generation's transcript does, in whatever order its keys stand; no training's does."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        return b'"chain"' in head or b'"model"' in head
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error


def audit_generation(path: Path, config: Path | None, *, replay: bool, as_json: bool) -> None:
    """Check a transcript; exit code 1 if anything in it is wrong. With --config the jobs' trails are followed, too."""
    from nodewire.protocol.job.transcript import GenerationTranscript
    from nodewire.verify.generation import check

    if replay and config is None:
        raise BadInput("--config", "a replay fetches the model: name a role's TOML file")
    if path.stat().st_size > GenerationTranscript.MAX_BYTES:
        raise TooLarge(str(path), f"at most {GenerationTranscript.MAX_BYTES} bytes")
    reading = check(GenerationTranscript.parse(path.read_bytes()))
    trails: list[dict[str, Any]] = []
    replayed = False
    if config is not None:
        role = load_role(config)
        with name_relays(role.relays):
            replayed = asyncio.run(_beyond(role, reading, trails, replay=replay, show=not as_json))
    found = {
        "customer": reading.transcript.customer,
        "model": reading.transcript.model,
        "tokens": len(reading.transcript.ids),
        "chain": reading.transcript.chain,
        "ok": not reading.faults and all(trail["ok"] for trail in trails),
        "held": reading.held,
        "missing_roots": reading.missing,
        "hardware": {provider: list(said) for provider, said in reading.hardware.items()},
        "spent_msat": sum(part.paid_msat + part.fees_msat + part.share_msat for part in reading.transcript.jobs),
        "replayed": replayed,
        "faults": [asdict(fault) for fault in reading.faults],
        "trails": trails,
    }
    if as_json:
        print_json(found)
    else:
        _show(found)
    if not found["ok"]:
        sys.exit(1)


def _show(found: dict[str, Any]) -> None:
    wrong = {fault["step"] for fault in found["faults"]}
    for step, count in found["held"].items():
        console.print(f"{'[red]✗' if step in wrong else '[green]✓'}[/] {step}: {count}")
    if found["missing_roots"]:
        console.print(f"[yellow]–[/] root: {found['missing_roots']} are not there")
    for provider, (hardware, region) in found["hardware"].items():
        console.print(f"  {provider[:8]}: {one_line(hardware) or 'no hardware said'}, {one_line(region) or 'nowhere'}")
    for fault in found["faults"]:
        where = f" of job {fault['job']}" if fault["job"] is not None else ""
        console.print(f"[red]✗[/] [bold]{fault['step']}[/]{where}: {one_line(fault['reason'])}", soft_wrap=True)
    for trail in found["trails"]:
        mark, said = ("[green]✓", "holds") if trail["ok"] else ("[red]✗", "does not hold: see `nodewire audit` of it")
        console.print(f"{mark}[/] the public record of {trail['request'][:16]} {said}")
    verdict = "[bold green]it holds" if found["ok"] else "[bold red]it does not hold"
    again = ", and a replay gives the same tokens" if found["replayed"] and "token" not in wrong else ""
    console.print(f"{verdict}{again}[/]: {found['tokens']} tokens for {found['spent_msat'] / 1000:g} sat")


async def _beyond(
    role: AnyRole, reading: GenerationAudit, trails: list[dict[str, Any]], *, replay: bool, show: bool
) -> bool:
    """Follow the jobs on relays, and make the tokens again if that is wished; whether they were."""
    from nodewire.verify.generation import compare

    for request in filter(None, reading.requests):
        trails += [await trail_of(role, request.id)]
    if not replay or reading.faults:
        return False
    async with AsyncExitStack() as stack:
        _, _, market = await enter_market(stack, role)
        compare(reading, await _replayed(stack, role, market, reading, show=show))
    return True


async def _replayed(
    stack: AsyncExitStack, role: AnyRole, market: Market, reading: GenerationAudit, *, show: bool
) -> list[int]:
    from rich.progress import Progress

    from nodewire.verify.generation import replay
    from nodewire.worker.client import WorkerProcess

    manifest = reading.manifest
    assert manifest is not None  # or there were faults
    if (kind := installed().get(manifest.kind)) is None:
        raise Unsupported("kind", f"no installed package serves {manifest.kind}")
    limits = Limits(round(_SPARE * sum(task.memory_bytes for task in manifest.tasks)))
    if isinstance(role, CustomerConfig):
        limits = role.limits
    elif role.limits is not None:
        limits = replace(limits, sandbox=role.limits.sandbox, secrets=role.limits.secrets)
    worker = await WorkerProcess.start(kind.worker_entry, limits, readable=[role.blobs])
    stack.push_async_callback(worker.stop)
    for task in manifest.tasks:
        program = await market.fetch_blob(task.program.sha256, task.program.bytes)
        weights = [await market.fetch_blob(blob.sha256, blob.bytes) for blob in task.weights]
        await worker.load(task.name, task.engine, program, weights)
    with Progress(console=notes, transient=True, disable=not show) as progress:
        bar = progress.add_task("replaying", total=len(reading.transcript.ids))
        return await replay(reading, kind, worker, lambda n: progress.update(bar, completed=n))
