"""What `nodewire register --dry-run` shows: the tasks that would be made, what limits them, and what would be sent."""

from __future__ import annotations

from rich.table import Table

from nodewire.cli.model.cut import steps
from nodewire.cli.output import console, counted, notes, one_line
from nodewire.kind import Registration, TaskSize
from nodewire.protocol.encoding.byte_sizes import in_units
from nodewire.protocol.model.manifest import CUSTOMER, Edge

_MOST_EDGES = 3
"""Shown of a task that sends to many, such as a router to its experts."""


def show(made: Registration) -> None:
    manifest, at = made.manifest, steps(made.manifest)
    in_table = tuple(f"{name}: " for name, piece in made.pieces.items() if piece.most_at)
    about = [line for line in made.report if not line.startswith(in_table)]
    size = f"{counted(len(manifest.tasks), 'task')} in {counted(1 + max(at.values()), 'step')}"
    console.print(f"[bold]{one_line(manifest.name)}[/]  {manifest.mode}, {size}, nothing published", soft_wrap=True)
    table = Table(box=None, header_style="bold dim")
    for title in ("task", "step", "weights", "memory", "MFLOP"):
        table.add_column(title, justify="left" if title == "task" else "right", no_wrap=True)
    for task in manifest.tasks:
        table.add_row(
            one_line(task.name),
            str(at[task.name]),
            in_units(sum(blob.bytes for blob in task.weights)),
            in_units(task.memory_bytes),
            f"{task.flops / 1e6:,.1f}",
        )
    console.print(table)
    for task in manifest.tasks:
        said = [*_limits(made.pieces.get(task.name)), _sent(manifest.outputs(task.name))]
        console.print(f"[bold]{one_line(task.name)}[/] {one_line('; '.join(said))}", soft_wrap=True)
    for line in about:
        console.print(one_line(line), soft_wrap=True)
    for name, piece in made.pieces.items():
        if piece.holds and piece.operators:  # a decoder's lines say it
            console.print(f"{one_line(name)} holds {one_line('; '.join(piece.holds))}", soft_wrap=True)
    largest = max(manifest.tasks, key=lambda task: task.memory_bytes)
    console.print(
        f"memory is the predicted peak with {counted(largest.slots, 'session')}, at most"
        f" {in_units(largest.memory_bytes)} in {one_line(largest.name)}; MFLOP are of one position",
        soft_wrap=True,
    )
    if made.fits:
        _show_fits(made)
    console.print(
        f"[bold]{in_units(made.upload_bytes)}[/] to upload, in {counted(len(made.cited) + 1, 'blob')}", soft_wrap=True
    )
    if made.lacks:
        notes.print(
            f"[yellow]to register it the folder lacks[/] {', '.join(map(one_line, made.lacks))}: what stands there"
            " follows from the configuration alone",
            soft_wrap=True,
        )


def _show_fits(made: Registration) -> None:
    """The pieces that other targets give, and the change that would help where a piece is too large."""
    sessions = counted(made.manifest.driver.slots, "session")
    console.print(f"at other targets, with {sessions} of {made.manifest.context} positions:")
    table = Table(box=None, header_style="bold dim")
    for title in ("--target-vram", "tasks", "room for", ""):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for fit in made.fits:
        size = in_units(fit.target_bytes).replace(" ", "")
        if fit.tasks:
            table.add_row(size, str(fit.tasks), f"{fit.sessions} x {fit.context}", "")
        else:
            said = f"{fit.change} would fit {size}" if fit.change else "no change of context or sessions would fit"
            table.add_row(size, "-", "-", said)
    console.print(table)


def _limits(piece: TaskSize | None) -> list[str]:
    """Where a task takes the most, and what it has no room for, as far as that is known."""
    if piece is None:
        return []
    at = [f"takes most at {piece.most_at}"] if piece.most_at else []
    return [*at, f"has no room for {piece.no_room_for}"] if piece.no_room_for else at


def _sent(edges: tuple[Edge, ...]) -> str:
    """What leaves a task on each edge: its tensors, and what a position adds to them."""
    shown = [_edge(edge) for edge in edges[:_MOST_EDGES]]
    more = [f"and {len(edges) - _MOST_EDGES} more"] if len(edges) > _MOST_EDGES else []
    return "sends " + ", ".join([*shown, *more])


def _edge(edge: Edge) -> str:
    tensors = ", ".join(f"{one.dtype} [{', '.join(map(str, one.shape))}]" for one in edge.tensors)
    target = "the customer" if edge.target == CUSTOMER else edge.target
    return f"{tensors} to {target} ({in_units(edge.bytes_per_position)} a position)"
