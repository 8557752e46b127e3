"""Registers a sentence encoder: a Hugging Face directory becomes a manifest and the blobs of its tasks.

    texts -> driver -> embed.0 .. embed.m -> graph.0 -> .. -> graph.n -> vectors

A tenth of the target is for frames that wait for others, the rest for weights and activations. How many ids one call
may hold (`volume`) follows from it: the largest halving of `max_batch` x positions whose activations too take a tenth,
and never less than one text of full length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open

from nodewire.errors import BadInput
from nodewire.graph import bert, encoder_directory
from nodewire.graph.blob_folder import BlobFolder
from nodewire.graph.carve import edge_name
from nodewire.graph.decompose import DRIVER, Decomposition, decompose, memory_bytes
from nodewire.graph.encoder import MAX_TEXTS_BYTES, TEXTS, DriverProgram
from nodewire.graph.encoder_directory import EncoderDirectory
from nodewire.graph.format import NAMES, Input, Output, Program, Weight
from nodewire.graph.normalize import normalize
from nodewire.graph.trace import trace
from nodewire.graph.verify import Verified, verify
from nodewire.kind import Registration
from nodewire.protocol.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor

VECTORS = "vectors"
_DRIVER_BYTES = 8 * 2**20
_TOKENIZER_GROWTH = 32
"""What a loaded tokenizer takes, as a multiple of its JSON (measured: 22), above what one request's tokens take."""


def split_encoder(
    directory: Path, target_bytes: int, out: Path, *, max_batch: int = 32, slots: int = 16, name: str | None = None
) -> Registration:
    """Split the encoder in `directory` into tasks of at most `target_bytes` each, and write their blobs into `out`.

    Raises:
        NotFound, BadInput: the directory is not a sentence encoder of a supported family.
        BadTask: the model uses an operator that is not on the whitelist.
        OverMemory: a node alone needs more than the target; names it and the target that would do.
    """
    if not 1 <= max_batch <= 1_024:
        raise BadInput("max_batch", "not from 1 to 1024")
    said = encoder_directory.read(directory)
    most = max_batch * said.positions
    dims = {bert.BATCH: max_batch, bert.SEQUENCE: said.positions}
    traced = trace(bert.build(said), bert.INPUTS, dims, most, VECTORS)
    whole = normalize(replace(traced.program, slots=slots))
    whole = replace(whole, outputs=tuple(replace(o, edge=VECTORS) for o in whole.outputs))
    done = decompose(whole, traced.shapes, target_bytes, least_volume=said.positions)
    return _Writer(said, done, traced.constants, target_bytes, out).write(name or said.name)


class _Writer:
    """Writes blobs named by their SHA-256, and the manifest that cites them."""

    def __init__(
        self,
        said: EncoderDirectory,
        done: Decomposition,
        constants: Mapping[str, torch.Tensor],
        target_bytes: int,
        out: Path,
    ) -> None:
        self._said, self._done, self._constants = said, done, constants
        self._target = target_bytes
        self._blobs = BlobFolder(out)

    def write(self, name: str) -> Registration:
        self._blobs.folder.mkdir(parents=True, exist_ok=True)
        inputs = [edge for task, made in self._done.tasks.items() for edge in self._edges(task, made)]
        final = list(self._done.tasks)[-1]
        edges = [
            Edge(
                name=TEXTS,
                source=CUSTOMER,
                target=DRIVER,
                tensors=(Tensor(name=TEXTS, dtype="uint8", shape=("bytes",)),),
                dims={"bytes": MAX_TEXTS_BYTES},
                bytes_per_position=8,
            ),
            *inputs,
            self._edge(VECTORS, final, CUSTOMER, self._done.tasks[final].program, self._final_outputs(final)),
        ]
        tasks = [self._driver(edges), *(self._task(task, made) for task, made in self._done.tasks.items())]
        manifest = Manifest(
            name=name,
            mode="embed",
            license=self._said.license,
            context=self._said.positions,
            tasks=tuple(tasks),
            edges=tuple(edges),
        )
        return Registration(manifest, self._blobs.paths, tuple(self._report(manifest)))

    def _driver(self, edges: list[Edge]) -> Task:
        program = DriverProgram(
            tokenizer=self._said.tokenizer,
            pad_id=self._said.pad_id,
            positions=self._said.positions,
            rows=self._any_program().dims[bert.BATCH],
            volume=self._done.volume,
            edges={e.name: tuple(t.name for t in e.tensors) for e in edges if e.source == DRIVER},
            slots=self._any_program().slots,
        )
        return Task(
            name=DRIVER,
            engine="encoder.driver",
            program=self._blobs.program(program.encode()),
            weights=(),
            memory_bytes=_DRIVER_BYTES + _TOKENIZER_GROWTH * len(self._said.tokenizer),
            slots=program.slots,
            flops=0,
            limit=f"{program.rows} texts, {program.volume} ids a batch",
        )

    def _task(self, name: str, made: Verified) -> Task:
        # What the program declares is what any loader will find, so what was cut is checked as it was written.
        encoded = made.program.encode()
        verify(Program.decode(encoded), self._target)
        return Task(
            name=name,
            engine="graph",
            program=self._blobs.program(encoded),
            weights=(self._weights(made.program.weights),) if made.program.weights else (),
            memory_bytes=memory_bytes(made, self._target),
            slots=made.program.slots,
            flops=-(-made.flops // self._done.volume),
            limit=f"target of {self._target} bytes",
        )

    def _edges(self, target: str, made: Verified) -> list[Edge]:
        by_edge: dict[str, list[Input]] = {}
        for declared in made.program.inputs:
            by_edge.setdefault(declared.edge, []).append(declared)
        return [
            self._edge(edge, edge.removesuffix(edge_name("", target)), target, made.program, declared)
            for edge, declared in by_edge.items()
        ]

    def _edge(self, name: str, source: str, target: str, program: Program, tensors: list[Input] | list[Output]) -> Edge:
        used = {d for t in tensors for d in t.shape if isinstance(d, str)}
        return Edge(
            name=name,
            source=source,
            target=target,
            tensors=tuple(
                Tensor.from_document({"name": t.name, "dtype": NAMES[t.dtype], "shape": t.shape}) for t in tensors
            ),
            dims={d: most for d, most in program.dims.items() if d in used},
            bytes_per_position=sum(fixed_bytes(t) for t in tensors),
        )

    def _final_outputs(self, task: str) -> list[Output]:
        return [out for out in self._done.tasks[task].program.outputs if out.edge == VECTORS]

    def _any_program(self) -> Program:
        return next(iter(self._done.tasks.values())).program

    def _weights(self, weights: tuple[Weight, ...]) -> BlobRef:
        tensors = {}
        with safe_open(self._said.weights, framework="pt") as file:
            stored = set(file.keys())
            for weight in weights:
                if weight.name in self._constants:
                    tensors[weight.name] = self._constants[weight.name].contiguous()
                    continue
                rows = self._done.ranges.get(weight.name)
                name = bert.weight_name(rows.source if rows else weight.name, stored)
                tensor = file.get_slice(name)[rows.first : rows.last] if rows else file.get_tensor(name)
                if tuple(tensor.shape) != weight.shape:
                    raise BadInput(name, f"is {tuple(tensor.shape)}, config.json makes it {weight.shape}")
                tensors[weight.name] = tensor.to(weight.dtype).contiguous()
        return self._blobs.weights(tensors)

    def _report(self, manifest: Manifest) -> list[str]:
        lines = [
            f"{manifest.name}: {len(manifest.tasks)} tasks under {self._target} bytes, "
            f"{self._any_program().dims[bert.BATCH]} texts or {self._done.volume} ids a batch"
        ]
        for task in manifest.tasks:
            made = self._done.tasks.get(task.name)
            what = (
                f"{len(made.program.nodes)} operators, {made.weight_bytes} bytes of weights, {made.live_bytes} live"
                if made
                else "tokenizer"
            )
            lines.append(f"{task.name}: {what}, {task.memory_bytes} bytes in all")
        return lines


def fixed_bytes(tensor: Input | Output) -> int:
    size = tensor.dtype.itemsize
    for dim in tensor.shape:
        size *= dim if isinstance(dim, int) else 1
    return size
