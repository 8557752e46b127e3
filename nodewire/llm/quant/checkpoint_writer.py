"""A model's directory with its layers' matrices in blocks, from one without: a few rows in memory at a time."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from torch import Tensor

from nodewire.errors import BadInput, Unsupported
from nodewire.gguf import model as gguf
from nodewire.llm.checkpoint import meta_layout
from nodewire.llm.checkpoint.checkpoint import Checkpoint, open_checkpoint
from nodewire.llm.families import json_object, layer_pieces, modules_of
from nodewire.llm.families.fields import compressed_tensors
from nodewire.llm.families.fields.tensor_names import Piece
from nodewire.llm.quant.blocks import packed, rounded
from nodewire.llm.spec.config import QUANTIZED, Blocks, DecoderConfig, Quantization
from nodewire.weights.derived_tensors import widened_to
from nodewire.weights.directory import INDEX, SINGLE, read_bounded, weight_files
from nodewire.weights.tensorfile import MAX_HEADER_BYTES, AssembledTensor, StoredTensor, elements, laid_out, read_into

GROUP, BACK_OFF = 64, 32
_NUMBERS = 4_194_304
"""Of a matrix, read at once."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack")

To = Literal["int8", "int4", "w8a8", "w4a8"]
"""The schemes that a model is quantized to here."""
Say = Callable[[int, int], None]
"""How many bytes of how many have been read."""


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """The result of `quantize`: bytes of files of weights before and after, matrices that are in blocks and others."""

    files: tuple[str, ...]
    read_bytes: int
    bytes: int
    matrices: int
    plain: int


def quantize(directory: Path, out: Path, to: To, say: Say = lambda done, of: None) -> QuantizationReport:
    """Write the model in `directory` to the folder `out`, the matrices of its layers in blocks of 64 numbers.

    Blocks have 32 in rows that 64 does not divide. Rows that 32 does not divide are left as they are, as is all else.
    Files of weights keep their names and what they hold of the model; of a GGUF file all becomes one. What is widened
    and in no block afterwards is of bfloat16, as such a folder computes.

    Raises:
        BadInput: `out` is there already, or has no room.
        Unsupported: the model is quantized already, or in Meta's layout.
        NotFound, BadTask, BadInput, TooLarge: the directory does not hold a model that nodewire decodes.

    """
    if meta_layout.is_one(directory):
        raise Unsupported(str(directory), "is in Meta's layout; take the model's folder in Hugging Face's")
    source = open_checkpoint(directory, in_blocks=False)
    config, plan = _plan(directory, source, to)
    source = _narrowed(source, plan)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(str(out), "is there already: name a folder that is not, or an empty one")
    out.parent.mkdir(parents=True, exist_ok=True)
    files = _files(source, plan)
    need = sum(laid_out(one.items())[1] for one in files.values())
    if (free := shutil.disk_usage(out.parent).free) < need:
        raise BadInput(str(out), f"{need} bytes are needed there, {free} are free: name a folder on another disk")
    read_bytes = sum(path.stat().st_size for path in _weight_files(directory))
    total, done = sum(stored.nbytes for stored in source.tensors.values()), 0
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for path, tensors in files.items():
            for read in _written(partial / path.name, tensors, plan, source):
                done += read
                say(done * read_bytes // total, read_bytes)
        _beside(directory, partial, config, files, source)
        partial.chmod(0o755)
        partial.replace(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    count = sum(1 for _ in _matrices(config))
    names = tuple(sorted(path.name for path in files))
    return QuantizationReport(names, read_bytes, need, len(plan), count - len(plan))


def _weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights of a folder, or of a GGUF file, as they are."""
    return gguf.files_of(directory) if gguf.is_gguf(directory) else weight_files(directory)


def _narrowed(source: Checkpoint, plan: Plan) -> Checkpoint:
    """The same, what is widened and stays out of blocks widened to bfloat16 alone."""
    found = source.tensors.items()
    return replace(source, tensors={name: one if name in plan else widened_to(one, "bfloat16") for name, one in found})


def _matrices(config: DecoderConfig) -> Iterator[Piece]:
    """Those that may be quantized."""
    return chain.from_iterable(pieces for _, _, pieces in modules_of(config))


Plan = dict[str, tuple[Piece, Piece]]
"""By the name of a tensor that is stored otherwise afterwards: as it is, as it will be."""


def _plan(directory: Path, source: Checkpoint, to: To) -> tuple[DecoderConfig, Plan]:
    config = source.config
    if config.quantization is not None or (config.experts is not None and config.experts.stored == "mxfp4"):
        raise Unsupported(str(directory), "holds a model that is quantized already; take the one that it was made of")
    how = Quantization(scheme=to, group_size=GROUP, back_off=BACK_OFF)
    after = DecoderConfig.from_document(config.document() | {"quantization": how.document()})
    pairs = zip(_matrices(config), _matrices(after), strict=True)
    return after, {was.name: (was, then) for was, then in pairs if then.blocks is not None}


def _files(source: Checkpoint, plan: Plan) -> dict[Path, dict[str, StoredTensor | AssembledTensor]]:
    """What each file of weights will hold. Tensors in blocks have no parts yet."""
    found: dict[Path, dict[str, StoredTensor | AssembledTensor]] = {}
    source.pick(was for was, _ in plan.values())  # that they are what they should be
    for name, stored in source.tensors.items():
        tensors = found.setdefault(stored.path if source.beside is None else Path(SINGLE), {})
        if name in plan:
            for made, (dtype, shape) in plan[name][1].stored().items():
                tensors[made] = AssembledTensor(getattr(torch, dtype, torch.bfloat16), shape, ())
        else:
            tensors[name] = stored
    return found


def _written(
    path: Path, tensors: Mapping[str, StoredTensor | AssembledTensor], plan: Plan, source: Checkpoint
) -> Iterator[int]:
    """Write a file; the bytes read, as they are."""
    head, size = laid_out(tensors.items())
    starts = {name: len(head) + entry["data_offsets"][0] for name, entry in json.loads(head[8:]).items()}
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
        for name, stored in tensors.items():
            if isinstance(stored, StoredTensor):
                yield from _copied(stored, file, starts[name])
        own = [pair for name, pair in plan.items() if next(iter(pair[1].stored())) in tensors]
        for was, then in own:
            yield from _quantized(source.tensors[was.name], was, then, file, starts)


def _copied(stored: StoredTensor, file: BinaryIO, start: int) -> Iterator[int]:
    at = start
    for data in stored.octets():
        file.seek(at)
        file.write(data)
        at += len(data)
        yield len(data)


def _quantized(
    stored: StoredTensor, was: Piece, then: Piece, file: BinaryIO, starts: Mapping[str, int]
) -> Iterator[int]:
    """Some rows at a time; of matrices that are stored transposed, a whole one."""
    blocks, width = then.blocks, then.width
    assert blocks is not None
    count, item = then.count, stored.nbytes // then.count
    step = was.shape[-1] * was.shape[-2] if was.form == "transposed" else max(1, _NUMBERS // width) * width
    at = [starts[name] for name in then.stored()]
    for first in range(0, count, step):
        numbers = torch.empty(min(step, count - first))
        read_into(elements(stored, first, first + len(numbers)), numbers)
        rows = numbers.view(was.shape[-2:]).T if was.form == "transposed" else numbers.view(-1, width)
        for place, data in enumerate(_in_blocks(rows, blocks)):
            octets = data.contiguous().view(torch.uint8).numpy().data
            file.seek(at[place])
            file.write(octets)
            at[place] += octets.nbytes
        yield len(numbers) * item


def _in_blocks(rows: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Codes and scales, as they are stored."""
    codes, scales = rounded(rows.contiguous(), blocks.bits, blocks.size)
    return (codes if blocks.scheme == "w8a8" else packed(codes, blocks.bits)), scales


def _beside(
    directory: Path,
    out: Path,
    config: DecoderConfig,
    files: Mapping[Path, Mapping[str, StoredTensor | AssembledTensor]],
    source: Checkpoint,
) -> None:
    """config.json with what has been done, the index of shards, and copies of all else that is no weights.

    Of a GGUF file what it says in their place.
    """
    if source.beside is not None:
        for name, data in source.beside.items():
            (out / name).write_bytes(data)
    else:
        for path in sorted(directory.iterdir()):
            if path.is_file() and not path.name.startswith(".") and not path.name.endswith((*_WEIGHTS, INDEX)):
                shutil.copyfile(path, out / path.name)
    said = json_object(read_bounded(out / "config.json", MAX_HEADER_BYTES), "config.json")
    how = config.quantization
    assert how is not None
    plain = config.model_copy(update={"quantization": None})
    others = [piece.stem for layer in range(config.num_hidden_layers) for piece in _unquantized(plain, layer)]
    said["quantization_config"] = compressed_tensors.document(how, modules_of(plain), ["lm_head", *others])
    (out / "config.json").write_text(json.dumps(said, indent=1) + "\n")
    if source.beside is None and (directory / INDEX).exists():
        names = {name: path.name for path, tensors in files.items() for name in tensors}
        size = sum(laid_out(tensors.items())[1] for tensors in files.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}
        (out / INDEX).write_text(json.dumps(index, indent=1) + "\n")


def _unquantized(config: DecoderConfig, layer: int) -> list[Piece]:
    """A layer's matrices that are no parameters to be quantized: its router, the gate of its shared MLP."""
    found = layer_pieces(config, layer)
    rest = chain.from_iterable(pieces for role, pieces in found.items() if role not in QUANTIZED)
    return [piece for piece in rest if len(piece.shape) == 2]
