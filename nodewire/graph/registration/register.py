"""Registers any model: traced, cut into tasks under a memory target, and written as a manifest of mode "run".

made = nodewire.register(model, [{"x": torch.zeros(1, 64)}, {"x": torch.zeros(8, 64)}],
                         target_vram="2GB", out="blobs", name="mymodel")

`nodewire register blobs` then puts it on the market.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, BadTask, NotFound, OverMemory
from nodewire.graph.cut.carve import DERIVED
from nodewire.graph.cut.decomposition import decompose
from nodewire.graph.cut.experts import mixtures
from nodewire.graph.cut.writer import Parts, write_run
from nodewire.graph.program.normalization import normalize
from nodewire.graph.program.whitelist import OPS
from nodewire.graph.registration import parity
from nodewire.graph.trace.diagnosis import unlisted
from nodewire.graph.trace.examples import BATCH, Axes, Signature, several, signature, tensors_of
from nodewire.graph.trace.places import Place
from nodewire.graph.trace.trace import trace
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.schema import Label, Name, Schema
from nodewire.weights.blob_folder import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from nodewire.graph.program.format import Program
    from nodewire.graph.trace.reader import TracedModel
    from nodewire.kind import Registration, Say

SMALLER = "smaller calls need less"
_UNCUT = "give it an input's size before another branch takes it, by a mean, a slice or a reshape"


class _Labels(Schema):
    """What a manifest says in its author's words, checked before anything is traced."""

    name: Name
    license: Label


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What is asked of a model's tasks beside their size."""

    slots: int = 4
    """Calls that a task may have at a time."""
    license: str = ""
    expert_groups: int = 1
    """The experts of a mixture are cut into so many tasks, or into as many as the target asks, if those are more."""


USUAL = TaskOptions()


def register(
    model: torch.nn.Module,
    examples: Any,
    *,
    target_vram: int | str,
    out: Path | str | None = None,
    name: str,
    axes: Axes | None = None,
    most: Mapping[str, int] | None = None,
    outputs: Sequence[str] | None = None,
    slots: int = 4,
    license: str = "",
    expert_groups: int = 1,
    dry_run: bool = False,
) -> Registration:
    """Split `model` into tasks of at most `target_vram` (bytes, or "12GB") each; write manifest and blobs into `out`.

    `nodewire register OUT` publishes them. `examples` is what the model is called with: a tensor, a tuple, keywords as
    a mapping, (args, kwargs), or an iterator or list of several. Sizes that differ between them vary in calls, up to
    the largest shown; every example is a call that the tasks admit. `axes` names sizes that vary where the examples do
    not show it ({"ids": ("batch", "length")}), `most` admits larger ones ({"length": 512}), as far as the target
    allows. `outputs` picks from what the model returns, by path. The model must be in evaluation mode; its weights may
    lie anywhere, and the whole of them is never copied. `slots`, `license` and `expert_groups` are a `TaskOptions`'s.
    The registration's report says what bounded each cut.

    The tasks are then run beside the model, on the largest example and on another call made of it.

    With `dry_run` nothing is written, run or read of weights, so the model may lie on the meta device: what is returned
    says what would be made, without blobs and without the hashes of weights.

    Raises:
        BadInput, Unsupported: the examples do not go together, or the model with them; there are no experts to group;
            it is not said where to write to.
        BadTask: the model cannot be exported, or uses what no task may; names the module and what to change. Or the
            tasks do not put out what the model does.
        OverMemory: an operator alone needs more than the target; names it, and the target that would do.

    """
    try:
        target_bytes = parse_size(target_vram)
    except ValueError as error:
        raise BadInput("target_vram", str(error)) from error
    _Labels.from_document({"name": name, "license": license})
    if out is None and not dry_run:
        raise BadInput("out", "the folder that gets manifest and blobs; only a dry run does without")
    shown = several(examples)
    said = signature(model, shown, axes, most)
    traced = trace(model, said, volume(said), outputs=outputs)
    made = split(
        traced,
        said,
        None if dry_run else held(model, traced),
        target_bytes,
        None if dry_run or out is None else Path(out),
        name=name,
        options=TaskOptions(slots, license, expert_groups),
    )
    if dry_run or out is None:
        return made
    itself = parity.eager(model, said, outputs)
    tried = list(parity.others(said, [tensors_of(model, one) for one in shown]))
    parity.check_again(itself, tried[0])
    made = replace(made, report=(*made.report, parity.compare(made, itself, tried)))
    (Path(out) / MANIFEST).write_bytes(made.manifest.pack())
    return made


def split(
    traced: TracedModel,
    said: Signature,
    parts: Parts | None,
    target_bytes: int,
    out: Path | None,
    *,
    name: str,
    options: TaskOptions,
    say: Say = lambda _: None,
) -> Registration:
    """A traced model as a manifest of mode "run" and its blobs; without `out` and `parts` as `write_run` has it.

    Raises as `register`.
    """
    whole, expert_groups = normalized(traced, options.slots), options.expert_groups
    if expert_groups < 1:
        raise BadInput("expert_groups", f"{expert_groups}, at least 1")
    if expert_groups > 1 and not mixtures(whole, traced.shapes):
        raise BadInput("expert_groups", f"{name} has no mixture of experts of a known form")
    try:
        done = decompose(whole, traced.shapes, target_bytes, said.least, expert_groups=expert_groups)
    except BadTask as error:
        if error.reason != DERIVED:
            raise
        place = traced.places.get(error.field, Place())
        raise BadTask(place.path or error.field, f"{DERIVED}: {_UNCUT}{place}") from None
    except OverMemory as error:
        where = traced.paths.get(error.field)
        item = {dim: most for dim, most in said.dims.items() if dim not in (BATCH, "images")}
        one = ""
        if item and prod(item.values()) == said.least:
            one = f" ({' x '.join(f'{dim} {most}' for dim, most in item.items())})"
        sizes = f"calls of {said.least} position{'s' * (said.least != 1)}{one}"
        raise OverMemory(
            f"{where} ({error.field})" if where else error.field,
            f"{error.reason}, for {sizes}{f': {SMALLER}' if said.least > 1 else ''}",
        ) from None
    return write_run(done, parts, target_bytes, out, name=name, license=options.license, modules=traced.paths, say=say)


def normalized(traced: TracedModel, slots: int = 1) -> Program:
    """The plain form of a traced program. Raises BadTask: it has an operator that no task may; names the module."""
    whole = normalize(replace(traced.program, slots=slots))
    for node in whole.nodes:
        if node.op not in OPS:
            place = traced.places.get(node.name, Place())
            raise BadTask(place.path or "model", unlisted(node.op, place))
    return whole


def held(model: torch.nn.Module, traced: TracedModel) -> Parts:
    """Weights that a module holds."""
    tensors = dict((*model.named_parameters(), *model.named_buffers()))

    def parts(weight: str) -> tuple[torch.Tensor, ...]:
        tensor = traced.constants[weight] if weight in traced.constants else tensors[traced.sources[weight]]
        if tensor.is_meta:
            raise NotFound(weight, "lies on the meta device, without a value")
        return (tensor,)

    return parts


def volume(said: Signature) -> int:
    """The product of all dims at their largest."""
    return prod(said.dims.values())
