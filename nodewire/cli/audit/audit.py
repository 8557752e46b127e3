"""`nodewire audit EVENT`: follow a job's trail through the public record, and say line by line what holds.

A training's transcript is audited by `audit_training`, a generation's by `audit_generation`. Of a job
(`job_trail`) the plan is re-derived from what it cites; commitments, certificates, draws, verdicts, bonds and payments
are checked against one another; the customer's own ledger as well, if the configuration is its own.
"""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nodewire.cli.audit.job_trail import trail_of
from nodewire.cli.common.roles import event_id, name_relays
from nodewire.cli.common.training_results import TRANSCRIPT
from nodewire.cli.output import CUSTOMERS, Json, console, one_line, print_json
from nodewire.config import load_role
from nodewire.errors import BadInput


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
        Path | None,
        typer.Option(help="The file or folder that was trained on, to measure losses again (with a transcript)."),
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="The model that the recipe starts from (with a transcript).")
    ] = None,
    segments: Annotated[
        Depth, typer.Option(help="The work to compute again, as far as a transcript has its keys.")
    ] = Depth.drawn,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Make the tokens again on this machine, one by one (with a generation's transcript)."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Check a job from its plan to its payments, or a training's transcript; exit code 1 if anything contradicts."""
    if (file := Path(event)).is_dir():
        file /= TRANSCRIPT
    if file.suffix == ".json" or file.is_file():
        from nodewire.cli.audit.generation import audit_generation, is_generation
        from nodewire.cli.audit.training import audit_training

        if is_generation(file):
            audit_generation(file, config, replay=replay, as_json=json)
            return
        audit_training(file, config, data=data, start=start, segments=segments.value, as_json=json)
        return
    id_ = event_id(event)
    if config is None:
        raise BadInput("--config", "a job's trail is read from relays: name a role's TOML file")
    role = load_role(config)
    with name_relays(role.relays):
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
