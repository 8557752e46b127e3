"""`nodewire audit transcript.json`: whether a training's transcript holds, and with its keys comes out again."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodewire.cli.output import console, notes, one_line, print_json
from nodewire.config import AnyRole, CustomerConfig, load_role
from nodewire.errors import BadConfig, NotFound, TooLarge, Unsupported
from nodewire.kind import Limits, installed_training

if TYPE_CHECKING:
    from nodewire.training.verify.recomputation import Segments
    from nodewire.training.verify.transcript import TrainingAudit

_ROOM = 4
"""Times what a round of the recipe takes: theta of two rounds, and the updates of one."""


def audit_training(
    path: Path, config: Path | None, *, data: Path | None, start: Path | None, segments: str, as_json: bool
) -> None:
    """Check a transcript; exit code 1 if anything in it is wrong. Without --config, or keys, nothing is computed."""
    from nodewire.training.protocol.transcript import MAX_TRANSCRIPT_BYTES, Transcript
    from nodewire.training.verify.transcript import check

    try:
        if path.stat().st_size > MAX_TRANSCRIPT_BYTES:
            raise TooLarge(str(path), f"at most {MAX_TRANSCRIPT_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    reading, role = check(Transcript.parse(text)), load_role(config) if config is not None else None
    if data is not None and not data.exists():
        raise NotFound("--data", f"nothing at {data}")
    data, start = (path.resolve() if path is not None else None for path in (data, start))
    computed = 0
    may = role is not None and reading.transcript.opened is not None and not reading.faults
    if may and role is not None:
        computed = asyncio.run(_recomputed(reading, role, data, start, segments, show=not as_json))
    found = {
        "job": reading.transcript.job,
        "ok": not reading.faults,
        "held": reading.held,
        "computed": computed,
        "recomputed": may,
        "faults": [asdict(fault) for fault in reading.faults],
    }
    if as_json:
        print_json(found)
    else:
        _show(found, opened=reading.transcript.opened is not None, configured=role is not None)
    if reading.faults:
        sys.exit(1)


def _show(found: dict[str, Any], *, opened: bool, configured: bool) -> None:
    faults = found["faults"]
    wrong = {fault["step"] for fault in faults}
    for step, count in found["held"].items():
        console.print(f"{'[red]✗' if step in wrong else '[green]✓'}[/] {step}: {count}")
    for fault in faults:
        where = [f"round {fault['round']}"] if fault["round"] is not None else []
        where += [one_line(fault["provider"])[:8]] if fault["provider"] else []
        where += [f"segment {fault['segment']}"] if fault["segment"] is not None else []
        console.print(
            f"[red]✗[/] [bold]{fault['step']}[/] {', '.join(where)}: {one_line(fault['reason'])}", soft_wrap=True
        )
    if not faults and not found["recomputed"]:
        why = "it has no keys" if not opened else "name stores with --config" if not configured else ""
        notes.print(f"[yellow]nothing was computed again: {why}[/]")
    verdict = "[bold red]it does not hold" if faults else "[bold green]nothing in it contradicts itself"
    if not faults and found["recomputed"]:
        verdict = f"[bold green]it comes out again; work of {found['computed']} results was looked at"
    console.print(f"{verdict}[/]", soft_wrap=True)


async def _recomputed(
    reading: TrainingAudit,
    role: AnyRole,
    data: Path | None,
    start: Path | None,
    segments: Segments | str,
    *,
    show: bool,
) -> int:
    from nodewire.nostr.keys import Keys
    from nodewire.store.blobs import Blobs
    from nodewire.training.customer import files
    from nodewire.training.verify.recomputation import RoundRecomputation
    from nodewire.worker.client import LONG_CALL_S, WorkerProcess

    recipe = reading.recipe
    assert recipe is not None  # or there were faults
    number = next(iter(reading.requests.values())).kind
    if (kind := installed_training().get(number)) is None:
        raise Unsupported("kind", f"no installed package serves {number}")
    limits = Limits(_ROOM * recipe.memory_bytes() + 4 * reading.transcript.shards * recipe.state_bytes())
    if isinstance(role, CustomerConfig):
        limits = role.limits
    elif role.limits is not None:
        limits = replace(limits, sandbox=role.limits.sandbox, secrets=role.limits.secrets)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        blobs = await stack.enter_async_context(Blobs(role.blossom, role.blobs, keys=Keys.generate()))
        given = [path for path in (data, start) if path is not None]
        readable = [folder, *(one for path in given for one in files.readable(path))]
        worker = await WorkerProcess.start(kind.worker_entry, limits, readable=readable, call_timeout_s=LONG_CALL_S)
        stack.push_async_callback(worker.stop)
        (folder / "recipe").write_bytes(recipe.pack())
        one = RoundRecomputation(
            reading,
            worker,
            blobs,
            data=data,
            start=start,
            segments=segments,  # type: ignore[arg-type]  # the option's choices are these
        )
        await one.run(folder / "recipe", (lambda n: notes.print(f"[dim]round {n + 1}[/]")) if show else None)
        return one.computed
