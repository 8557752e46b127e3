"""A sentence encoder as tasks behind a driver: a Hugging Face directory becomes a manifest and the blobs it cites.

    texts -> driver -> embed.0 .. embed.m -> graph.0 -> .. -> graph.n -> vectors

Of a call's `volume` (decomposition.py) the largest is `max_batch` x positions, the least one text of full length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.errors import BadInput
from nodewire.graph.cut.decomposition import DRIVER, Decomposition, decompose
from nodewire.graph.cut.writer import Writer, pieces, report
from nodewire.graph.encoder import MAX_TEXTS_BYTES, TEXTS, DriverProgram
from nodewire.graph.families import bert, encoder_directory
from nodewire.graph.families.checkpoint import Checkpoint
from nodewire.graph.program.normalization import normalize
from nodewire.graph.registration import parity
from nodewire.graph.registration.streamed_weights import StreamedWeights
from nodewire.graph.trace.examples import Leaf, Signature
from nodewire.graph.trace.trace import trace
from nodewire.kind import Registration, TaskSize
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest, Task, Tensor
from nodewire.weights.directory import SINGLE, stored_if_any, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from nodewire.graph.families.encoder_directory import EncoderDirectory
    from nodewire.weights.tensorfile import StoredTensor

VECTORS = "vectors"
_DRIVER_BYTES = 8 * 2**20
_TOKENIZER_GROWTH = 32
"""What a loaded tokenizer takes, as a multiple of its JSON (measured: 22), above what one request's tokens take."""


def split_encoder(
    directory: Path,
    target_bytes: int,
    out: Path | None,
    *,
    max_batch: int = 32,
    slots: int = 16,
    name: str | None = None,
) -> Registration:
    """Split the encoder in `directory` into tasks of at most `target_bytes` each, and write their blobs into `out`.

    Without `out` it is a dry run, which needs of the directory no more than config.json.

    Raises:
        NotFound, BadInput: the directory is not a sentence encoder of a supported family.
        BadTask: the model uses an operator that is not on the whitelist, or the tasks do not put out what it does.
        OverMemory: a node alone needs more than the target; names it and the target that would do.

    """
    if not 1 <= max_batch <= 1_024:
        raise BadInput("max_batch", "not from 1 to 1024")
    said = encoder_directory.read(directory, is_dry=out is None)
    dims = {bert.BATCH: max_batch, bert.SEQUENCE: said.positions}
    called = Signature(bert.INPUTS, dims, {i.name: Leaf(i) for i in bert.INPUTS}, positional=0)
    module, buffers = bert.build(said)
    traced = trace(module, called, max_batch * said.positions, buffers=buffers)
    whole = normalize(replace(traced.program, slots=slots))
    whole = replace(whole, outputs=tuple(replace(o, name=VECTORS, edge=VECTORS) for o in whole.outputs))
    done = decompose(whole, traced.shapes, target_bytes, least_volume=said.positions)
    stored = stored_if_any(directory) if out is None else stored_tensors(directory)
    checkpoint = None if stored is None else Checkpoint(module.model, stored, {})

    def parts(weight: str) -> Sequence[StoredTensor | torch.Tensor]:
        if weight in traced.constants:
            return (traced.constants[weight],)
        assert checkpoint is not None
        return checkpoint.parts(weight.removeprefix("model."))

    writer = Writer(done, parts if stored is not None else None, target_bytes, out)
    inner = writer.edges()
    driver = _driver(said, done, inner, writer)
    texts = Edge(
        name=TEXTS,
        source=CUSTOMER,
        target=DRIVER,
        tensors=(Tensor(name=TEXTS, dtype="uint8", shape=("bytes",)),),
        dims={"bytes": MAX_TEXTS_BYTES},
        bytes_per_position=8,
    )
    manifest = Manifest(
        name=name or said.name,
        mode="embed",
        license=said.license,
        context=said.positions,
        tasks=(driver, *writer.tasks()),
        edges=(texts, *inner),
    )
    said_of_driver = f"{DRIVER}: tokenizer, {driver.memory_bytes} bytes in all"
    lines = (*report(manifest.name, done, target_bytes, traced.paths), said_of_driver)
    known = {DRIVER: TaskSize(0, driver.memory_bytes), **pieces(done, traced.paths)}
    lacks = ((SINGLE,) if stored is None else ()) + (() if said.tokenizer else ("tokenizer.json",))
    made = Registration(manifest, writer.blobs.paths, lines, known, lacks)
    if out is None:
        return made
    itself = parity.eager(
        module, called, None, StreamedWeights(module, parts, traced.tied, {**buffers, **traced.constants})
    )
    compared = parity.compare(made, lambda given: {VECTORS: itself(given)["output"]}, [parity.drawn(made, called)])
    return replace(made, report=(*lines, compared))


def _driver(said: EncoderDirectory, done: Decomposition, edges: Sequence[Edge], writer: Writer) -> Task:
    any_program = next(iter(done.tasks.values())).program
    program = DriverProgram(
        tokenizer=said.tokenizer,
        pad_id=said.pad_id,
        positions=said.positions,
        rows=any_program.dims[bert.BATCH],
        volume=done.volume,
        edges={e.name: tuple(t.name for t in e.tensors) for e in edges if e.source == DRIVER},
        slots=any_program.slots,
    )
    return Task(
        name=DRIVER,
        engine="encoder.driver",
        program=writer.blobs.blob(program.encode()),
        weights=(),
        memory_bytes=_DRIVER_BYTES + _TOKENIZER_GROWTH * len(said.tokenizer),
        slots=program.slots,
        flops=0,
        limit=f"{program.rows} texts, {program.volume} ids a batch",
    )
