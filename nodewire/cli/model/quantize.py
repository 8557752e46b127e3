"""`nodewire quantize`: a decoder's folder with its weights in 8 or 4 bits."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from nodewire.cli.common.local import check_model
from nodewire.cli.output import DEVELOPERS, Json, console, notes, one_line, print_json


class Scheme(StrEnum):
    INT8 = "int8"
    INT4 = "int4"
    W8A8 = "w8a8"
    W4A8 = "w4a8"


def quantize(
    folder: Annotated[Path, typer.Argument(help="A decoder's Hugging Face folder, or its GGUF file.")],
    out: Annotated[Path, typer.Argument(help="The folder to make; it must not exist, or be empty.")],
    to: Annotated[
        Scheme,
        typer.Option(
            help="Weights of 8 or 4 bits; or such, multiplied with activations that are rounded to 8 as they come."
        ),
    ],
    json: Json = False,
) -> None:
    """Write a model's folder anew with its layers' weights in 8 or 4 bits, for `register` and `generate`."""
    check_model(folder)
    from nodewire.llm.quant import checkpoint_writer  # torch is imported here, not before

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True, disable=json) as progress:
        bar = progress.add_task(f"quantizing {one_line(folder.name)}", total=None)
        made = checkpoint_writer.quantize(
            folder, out, to.value, lambda done, of: progress.update(bar, completed=done, total=of)
        )
    if json:
        print_json({"folder": str(out), "scheme": to.value, **asdict(made)})
        return
    part = f"{100 * made.bytes / made.read_bytes:.0f} %"
    console.print(f"[bold green]{to.value}[/] {escape(str(out))}", soft_wrap=True)
    console.print(f"  {made.bytes / 1e6:,.1f} MB of weights, {part} of {made.read_bytes / 1e6:,.1f} MB")
    kept = f", {made.plain} kept as they are: 32 does not divide their rows" if made.plain else ""
    console.print(f"  {made.matrices} matrices in blocks{kept}")
    console.print(f"[dim]nodewire register {escape(str(out))} puts it on the market[/]", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(quantize)
