"""A Hugging Face directory as tasks: any architecture of `families.table`, as a manifest of mode "run".

Of its safetensors files only headers are read before the cut is made; then their bytes are copied, tensor by tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.graph.families import encoder_directory
from nodewire.graph.families.builder import BuiltModel, build
from nodewire.graph.families.checkpoint import Checkpoint
from nodewire.graph.families.inputs import LARGEST, Largest
from nodewire.graph.registration import parity
from nodewire.graph.registration.register import USUAL, TaskOptions, split, volume
from nodewire.graph.registration.streamed_weights import StreamedWeights
from nodewire.graph.trace.trace import trace
from nodewire.weights.directory import SINGLE, stored_if_any, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from nodewire.graph.cut.writer import Parts
    from nodewire.graph.trace.reader import TracedModel
    from nodewire.kind import Registration, Say
    from nodewire.weights.tensorfile import StoredTensor


def split_directory(
    directory: Path,
    target_bytes: int,
    out: Path | None,
    *,
    name: str,
    options: TaskOptions = USUAL,
    largest: Largest = LARGEST,
    most: Mapping[str, int] | None = None,
    say: Say = lambda _: None,
) -> Registration:
    """Split the model in `directory` into tasks of at most `target_bytes` each, and write their blobs into `out`.

    Without `out` it is a dry run, which needs of the directory no more than config.json.

    The license is the directory's, whatever the options say; `most` by size, as in {"batch": 8}, is what one call may
    hold together.

    Raises:
        NotFound, BadInput, Unsupported, BadConfig: the directory does not hold a model of a known architecture, or
            `transformers` is not installed; there are no experts to group.
        BadTask: the model uses what no task may; names the module.
        OverMemory: an operator alone needs more than the target; names it and the target that would do.

    """
    config = encoder_directory.config_of(directory)
    stored = stored_if_any(directory) if out is None else stored_tensors(directory)
    say("building it, without weights")
    built = build(config, largest, most)
    say("tracing it")
    traced = trace_built(built)
    parts = parts_of(built, traced, stored) if stored is not None else None
    say("cutting it")
    made = split(
        traced,
        built.called,
        parts,
        target_bytes,
        out,
        name=name,
        options=replace(options, license=encoder_directory.license_of(directory)),
        say=say,
    )
    if out is None or parts is None:
        return replace(made, lacks=(SINGLE,) if stored is None else ())
    say("running it beside the model itself")
    return replace(made, report=(*made.report, compared(made, built, traced, parts)))


def compared(made: Registration, built: BuiltModel, traced: TracedModel, parts: Parts) -> str:
    """The tasks beside the module, which reads a weight at a time from the directory. Raises BadTask as `compare`."""
    mode = StreamedWeights(built.module, parts, traced.tied, {**built.buffers, **traced.constants})
    itself = parity.eager(built.module, built.called, built.family.outputs or None, mode)
    return parity.compare(made, itself, [parity.drawn(made, built.called)])


def trace_built(built: BuiltModel) -> TracedModel:
    """Raises BadTask as `trace`."""
    return trace(
        built.module,
        built.called,
        volume(built.called),
        buffers=built.buffers,
        outputs=built.family.outputs or None,
    )


def parts_of(built: BuiltModel, traced: TracedModel, stored: Mapping[str, StoredTensor]) -> Parts:
    """Where a directory's weights lie. Raises BadInput, Unsupported as `Checkpoint.parts`."""
    checkpoint = Checkpoint(built.module, stored, traced.tied)

    def parts(weight: str) -> Sequence[StoredTensor | torch.Tensor]:
        return (traced.constants[weight],) if weight in traced.constants else checkpoint.parts(weight)

    return parts
