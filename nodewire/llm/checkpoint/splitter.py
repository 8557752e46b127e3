"""Cuts a checkpoint into a driver and stages, by a memory target or at given layers, and writes them as blobs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

from nodewire.errors import BadInput, OverMemory, TooLarge
from nodewire.kind import Registration, TaskSize
from nodewire.llm.checkpoint.checkpoint import Checkpoint, open_checkpoint
from nodewire.llm.families import end_tensors, stage_tensors
from nodewire.llm.programs import memory_estimate
from nodewire.llm.programs.cuts import cuts_at, even_cuts, plan_cuts
from nodewire.llm.programs.needs import BLOCK, Needs
from nodewire.llm.programs.programs import DriverProgram, StageProgram, TensorType, stored_type
from nodewire.protocol.encoding.schema import Schema
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from nodewire.text import growth
from nodewire.text.detokenizer import Detokenizer
from nodewire.weights.blob_folder import BlobFolder, BlobSizes, blobs_in, check_room

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from nodewire.llm.families.fields.tensor_names import Piece
    from nodewire.llm.programs.memory_estimate import Footprint
    from nodewire.llm.spec.config import DecoderConfig
    from nodewire.protocol.model.layer_ranges import Border
    from nodewire.weights.tensorfile import StoredTensor

CONTEXT = 8_192
"""A session's positions, unless more are asked for or the model has fewer."""


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """How a decoder's tasks compute."""

    context: int | None = None
    """Positions of a session: 8,192 or the model's own, unless given."""
    chunk: int = 64
    """Positions that are paid together."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """That of the arithmetic: the checkpoint's, as `Checkpoint.arithmetic` has it, unless given."""
    kv: Literal["int8"] | None = None
    """That of keys and values: as the arithmetic's, unless given."""
    lend: bool = False
    """Whether the first stage has the embedding and the last one the head: the driver needs neither, ids go around the
    ring, and generations are greedy."""


USUAL = DecoderOptions()


def split_decoder(
    directory: Path,
    target_bytes: int | None,
    out: Path | None,
    *,
    slots: int,
    split: Sequence[Border] | int = (),
    kept: Collection[str] | None = None,
    name: str | None = None,
    options: DecoderOptions = USUAL,
) -> Registration:
    """Cut the model at `directory` into tasks of at most `target_bytes`.

    It is a folder of Hugging Face's or of Meta's layout, or a GGUF file.
    Each has pages for `slots` sessions, which any that fit share.

    Blobs are written to `out`, named by their SHA-256; weights keep their stored dtype and are copied in pieces.
    With a `split` the stages are these layers, each given by its first and its last, or so many, as even as can be:
    then there need be no target.
    `kept`: of all others than these tasks the weights are only hashed, not written.
    Without `out` it is a dry run, which needs of the directory no more than config.json; a tokenizer that is not there
    counts for nothing.

    Raises:
        OverMemory: the driver or a single layer needs more than the target; the error says which target would do.
        NotFound, BadTask, BadInput, TooLarge: the directory does not hold a model that nodewire decodes, `split` is
            not one of its layers, a task's weights are too large to be published, or `out` has no room for them.
        BadConfig: a GGUF file's blocks are to be widened, and the library for it is not installed.
        OSError: a file cannot be read.

    """
    checkpoint = open_checkpoint(directory, is_dry=out is None)
    config = checkpoint.config
    dtype = options.dtype or checkpoint.arithmetic
    if options.kv is not None and dtype == "float32":
        raise BadInput("--kv", "int8 needs bfloat16 arithmetic. Add `--dtype bfloat16`, or leave --kv out")
    checkpoint = checkpoint.for_arithmetic(dtype)
    positions = min(options.context or CONTEXT, config.max_position_embeddings)
    needs = Needs(config, slots, positions, dtype, options.kv, options.lend, len(checkpoint.tokenizer))
    cuts = _cuts(split, config.num_hidden_layers, target_bytes, needs)
    blobs = blobs_in(None)
    writer = _TaskWriter(checkpoint, needs, blobs, kept, target_bytes)
    tasks = writer.tasks(options.chunk, cuts)
    if out is not None:  # before anything is written: it could be published, and has room
        # One that customers cannot read would be sold to nobody, one that nodes refuse by nobody.
        growth.check(Detokenizer(checkpoint.tokenizer).around)
        check_room(out, sum(blob.bytes for task in tasks if writer.keeps(task.name) for blob in task.weights))
        blobs = blobs_in(out)
        tasks = replace(writer, blobs=blobs).tasks(options.chunk, cuts)
    manifest = Manifest(
        name=_name(name or directory.resolve().name),
        mode="generate",
        context=positions,
        chunk=options.chunk,
        tasks=tuple(tasks),
        edges=_edges(len(cuts), config, positions, dtype, lend=options.lend),
    )
    of = f" of {_mb(target_bytes)}" if target_bytes is not None else ""
    report = tuple(f"{task.name}: {_mb(task.memory_bytes)}{of} MB; {task.limit}" for task in tasks)
    if options.context is None and positions < config.max_position_embeddings:
        report += (f"sessions have {positions} of the model's {config.max_position_embeddings} positions",)
    report += (checkpoint.note,) if checkpoint.note else ()
    fits = needs.fits(*(() if target_bytes is None else (target_bytes,))) if out is None else ()
    return Registration(manifest, blobs.paths, report, _sizes(needs, cuts), checkpoint.lacks, fits)


@dataclass(frozen=True, slots=True)
class _TaskWriter:
    """Writes a decoder's tasks: their weights, their programs, and what the manifest says of them."""

    checkpoint: Checkpoint
    needs: Needs
    blobs: BlobFolder | BlobSizes
    kept: Collection[str] | None
    """As `split_decoder` has it."""
    target_bytes: int | None

    def tasks(self, chunk: int, cuts: Sequence[tuple[int, int]]) -> list[Task]:
        """The driver and its stages. Raises TooLarge: a task's weights cannot be published."""
        return [self.driver(chunk), *(self.stage(index, *cut) for index, cut in enumerate(cuts))]

    def keeps(self, task: str) -> bool:
        return self.kept is None or task in self.kept

    def driver(self, chunk: int) -> Task:
        needs, config, lend = self.needs, self.needs.config, self.needs.lend
        tokenizer = self.blobs.blob(self.checkpoint.tokenizer)
        ids = {"lends": True} if lend else {}
        tensors, weights = ({}, ()) if lend else self._weights("driver", end_tensors(config))
        program = DriverProgram.from_document(
            self._common()
            | ids
            | {
                "chunk": chunk,
                "edge_prompt": "prompt",
                "edge_return": "return",
                "edge_hidden": "hidden.0",
                "edge_tokens": "tokens",
                "tokenizer": tokenizer.document(),
                "tensors": tensors,
            }
        )
        has = "" if lend else "embedding, " if config.tie_word_embeddings else "embedding, head, "
        limit = f"{has}tokenizer: {needs.driver.words}"
        return Task(
            name="driver",
            engine="decoder.driver",
            program=self.blobs.blob(program.pack()),
            weights=(*weights, tokenizer),
            memory_bytes=needs.driver.total,
            slots=needs.slots,
            flops=0 if lend else memory_estimate.head_flops(config),
            limit=limit[:128],
        )

    def stage(self, index: int, first: int, last: int) -> Task:
        """That of layers [first, last)."""
        needs, config, kv = self.needs, self.needs.config, self.needs.kv
        closes, ends = last == config.num_hidden_layers, needs.ends(first, last)
        pieces = chain(end_tensors(config, ends), stage_tensors(config, first, last))
        tensors, weights = self._weights(f"stage.{index}", pieces)
        program = StageProgram.from_document(
            self._common()
            | {
                "first": first,
                "last": last,
                "closes": closes,
                "block": BLOCK,
                "edge_in": f"hidden.{index}",
                "edge_out": "return" if closes else f"hidden.{index + 1}",
                "tensors": tensors,
                "takes_ids": ends.embedding,
                "gives_ids": ends.head,
            }
            | ({} if kv is None else {"kv": kv})
        )
        need = needs.stage(first, last)
        return Task(
            name=f"stage.{index}",
            engine="decoder.stage",
            program=self.blobs.blob(program.pack()),
            weights=weights,
            memory_bytes=need.total,
            slots=needs.slots,
            flops=memory_estimate.stage_flops(config, first, last, positions=needs.positions)
            + (memory_estimate.head_flops(config) if ends.head else 0),
            limit=_limit(config, first, last, need, needs.stage, self.target_bytes)[:128],
            page_bytes=memory_estimate.page_bytes(config, last - first, dtype=needs.dtype, kv=kv),
        )

    def _common(self) -> dict[str, object]:
        """What all of the decoder's programs say."""
        needs = self.needs
        said = {"config": needs.config, "dtype": needs.dtype, "slots": needs.slots, "positions": needs.positions}
        return _plain(said)

    def _weights(self, task: str, pieces: Iterable[Piece]) -> tuple[dict[str, object], tuple[BlobRef, ...]]:
        """A task's tensors: their table for the program, and their files."""
        stored = self.checkpoint.pick(pieces)
        table: dict[str, object] = {name: _type(tensor).document() for name, tensor in stored.items()}
        try:
            return table, self.blobs.weights(stored) if self.keeps(task) else self.blobs.hashed(stored)
        except TooLarge as error:
            raise TooLarge(f"{task}: {error.field}", error.reason) from None


def _sizes(needs: Needs, cuts: Sequence[tuple[int, int]]) -> dict[str, TaskSize]:
    """By task, what it needs."""
    parts: list[tuple[str, Footprint, tuple[str, ...]]] = [
        ("driver", needs.driver, ()),
        *((f"stage.{k}", needs.stage(*cut), (_layers(*cut),)) for k, cut in enumerate(cuts)),
    ]
    return {name: TaskSize(need.weights, need.total - need.weights, holds=holds) for name, need, holds in parts}


def _cuts(split: Sequence[Border] | int, layers: int, target_bytes: int | None, needs: Needs) -> list[tuple[int, int]]:
    if isinstance(split, int):
        if not 0 < split <= layers:
            raise BadInput("split", f"{split} stages of a model that has {layers} layers")
        return even_cuts(layers, split)
    if split:
        return cuts_at(split, layers)
    if target_bytes is None:
        raise BadInput("split", "neither this nor a target is given")
    try:
        return plan_cuts(layers, target_bytes, needs.driver, needs.stage)
    except OverMemory as error:
        change = needs.change(target_bytes)
        raise OverMemory(error.field, f"{error.reason}; {change} would fit" if change else error.reason) from None


def _edges(stages: int, config: DecoderConfig, positions: int, dtype: str, *, lend: bool) -> tuple[Edge, ...]:
    def rows(name: str, source: str, target: str, length: int | str, back: bool = False) -> Edge:
        as_ids = lend and "driver" in (source, target)
        said = {"name": "ids", "dtype": "int64"} if as_ids else {"name": "hidden", "dtype": dtype}
        width = 1 if as_ids else config.hidden_size
        per_position = width * (8 if as_ids else memory_estimate.ITEM_BYTES[dtype])
        tensor = Tensor.from_document({**said, "shape": [1, length, width]})
        dims = {"n": positions} if length == "n" else {}
        return Edge(
            name=name,
            source=source,
            target=target,
            tensors=(tensor,),
            dims=dims,
            bytes_per_position=per_position,
            back=back,
        )

    ids = Tensor(name="ids", dtype="int64", shape=("n",))
    prompt = Edge(
        name="prompt", source=CUSTOMER, target="driver", tensors=(ids,), dims={"n": positions}, bytes_per_position=8
    )
    tokens = Edge(name="tokens", source="driver", target=CUSTOMER, tensors=(ids,), dims={"n": 1}, bytes_per_position=8)
    names = ["driver", *(f"stage.{index}" for index in range(stages))]
    forward = [rows(f"hidden.{i}", names[i], names[i + 1], "n") for i in range(stages)]
    return (prompt, *forward, rows("return", names[-1], "driver", 1, back=True), tokens)


def _type(stored: StoredTensor) -> TensorType:
    dtype, shape = stored_type(stored)
    return TensorType.from_document({"dtype": dtype, "shape": shape})


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    return {"v": 1} | {k: v.document() if isinstance(v, Schema) else v for k, v in fields.items()}


def _limit(
    config: DecoderConfig,
    first: int,
    last: int,
    need: Footprint,
    stage: Callable[[int, int], Footprint],
    target_bytes: int | None,
) -> str:
    words = f"{_layers(first, last)}: {need.words}"
    if target_bytes is None:
        return words
    longer = (first, last + 1) if last < config.num_hidden_layers else (first - 1, last)
    if longer[0] < 0:
        return words + "; the whole model"
    more = stage(*longer).total
    return words + (f"; one more makes {_mb(more)}" if more > target_bytes else "; cut evenly")


def _layers(first: int, last: int) -> str:
    return f"layer {first}" if last == first + 1 else f"layers {first}-{last - 1}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}"


def _name(text: str) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:64]
    if not name:
        raise BadInput("name", f"{text[:40]!r} has no letter or digit")
    return name
