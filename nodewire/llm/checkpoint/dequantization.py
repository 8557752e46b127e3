"""A checkpoint of GPTQ, AWQ or FP8 as tasks know it: its matrices' tensors made anew as they are read.

Codes of GPTQ and AWQ less their zeros are whole numbers, which stay in blocks where a parameter's matrices are all
stored so and groups follow each other: symmetric ones of as many bits, others of 4 in blocks of 8. All else, and FP8,
is widened to numbers.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import torch

from nodewire.errors import BadTask
from nodewire.llm.families import modules_of
from nodewire.llm.families.fields.compressed_tensors import named
from nodewire.llm.families.fields.quantization_methods import Fp8, InGroups, Method
from nodewire.llm.families.fields.tensor_names import CheckpointTensor
from nodewire.llm.spec.config import DecoderConfig
from nodewire.protocol.tensors.safetensors_dtypes import CODE_OF
from nodewire.weights.derived_tensors import DerivedTensor
from nodewire.weights.fp8 import Fp8Matrix
from nodewire.weights.groups import Form, GroupedMatrix
from nodewire.weights.tensorfile import DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FP8 = CODE_OF["float8_e4m3fn"]
_SCALES = ("weight_scale_inv", "weight_scale")
_AGAIN = "the file does not hold the whole model, or not as config.json says: take both anew"
_PARTS = ("qweight", "qzeros", "scales", "g_idx")

Tensors = dict[str, StoredTensor]


def made(
    method: Method, config: DecoderConfig, stored: Mapping[str, StoredTensor], *, in_blocks: bool
) -> tuple[DecoderConfig, Tensors]:
    """A checkpoint's tensors as they are without such a method, and its configuration, which says what is in blocks.

    Without `in_blocks` nothing is. Nothing is read.

    Raises:
        BadTask: a tensor is missing, or not of the shape that the others and `method` give it.

    """
    if isinstance(method, Fp8):
        return config, _of_fp8(method, stored)
    scaled = next((name for name in stored if name.endswith(".act.scales")), None)
    if scaled is not None:
        raise BadTask(f"weights.{scaled[:80]}", "activations are scaled, which is not computed: take it unquantized")
    found = {
        stem: _grouped(method, stem, one, stored)
        for name, one in stored.items()
        if (stem := name.removesuffix(".qweight")) != name
    }
    if in_blocks:
        config = _in_blocks(method, config, found.keys())
    kept = {
        piece.stem
        for layer, role, pieces in modules_of(config)
        if config.blocks_of(layer, role, pieces[0].width) is not None
        for piece in pieces
    }
    parts = {f"{stem}.{part}" for stem in found for part in _PARTS}
    tensors = {name: one for name, one in stored.items() if name not in parts}
    for stem, matrix in found.items():
        if stem not in kept:
            tensors[f"{stem}.weight"] = _drawn(matrix, "float32", matrix.width)
            continue
        packed, scales = (replace(matrix, form=form) for form in (_form(method), "scales") if form is not None)
        tensors[f"{stem}.weight_packed"] = _drawn(packed, "int32", packed.out)
        tensors[f"{stem}.weight_scale"] = _drawn(scales, matrix.scales.dtype, scales.out)
    return config, tensors


def foreseen(method: Method, config: DecoderConfig, tensors: Mapping[str, StoredTensor]) -> Tensors:
    """What a checkpoint of such a method holds, of what it would hold without; in no file."""
    found = dict(tensors)
    for _, _, pieces in modules_of(config):
        for piece in pieces:
            if piece.form not in ("plain", "grouped") or len(piece.shape) != 2 or not piece.name.endswith(".weight"):
                continue
            plain = found[piece.name]
            if isinstance(method, Fp8):
                parts = {
                    "weight": CheckpointTensor("float8_e4m3fn", plain.shape),
                    "weight_scale": CheckpointTensor("float32", ()),
                }
            elif any(name in piece.stem for name in method.plain):
                continue
            else:
                parts = _parts(method, *plain.shape)
            del found[piece.name]
            for part, kept in parts.items():
                nbytes = prod(kept.shape) * getattr(torch, kept.dtype).itemsize
                code = kept.dtype if kept.dtype in DTYPES else CODE_OF[kept.dtype]
                found[f"{piece.stem}.{part}"] = StoredTensor(plain.path, code, kept.shape, 0, nbytes)
    return found


def describe(method: Method, config: DecoderConfig) -> str:
    """What a registration says of it."""
    how = config.quantization
    kept = "widened as it is read" if how is None else f"kept in blocks of {how.scheme[3:]} bits"
    return f"stored by the method {method.method}: what was quantized is {kept}"


def _form(method: InGroups) -> Form | None:
    """What holds the same numbers; None if nothing but numbers does."""
    if not method.in_turn or (method.bits == 8 and not method.symmetric):
        return None
    return "int4" if method.bits == 4 and method.symmetric else "int8"


def _in_blocks(method: InGroups, config: DecoderConfig, found: Collection[str]) -> DecoderConfig:
    """The same, with what is in blocks; of a parameter in several matrices all are or none."""
    form = _form(method)
    every = [(layer, role, all(piece.stem in found for piece in pieces)) for layer, role, pieces in modules_of(config)]
    if form is None or not any(are for _, _, are in every):
        return config
    plain = named([(n, role) for n, role, are in every if not are], [(n, role) for n, role, _ in every])
    how = {"scheme": form, "group_size": method.group, "plain": plain}
    return DecoderConfig.from_document(config.document() | {"quantization": how})


def _parts(method: InGroups, rows: int, width: int) -> dict[str, CheckpointTensor]:
    """The tensors of a matrix."""
    each, groups = 32 // method.bits, -(-width // (method.group or width))
    found = {
        "qweight": CheckpointTensor("int32", (width // each, rows) if method.layout.down else (width, rows // each)),
        "qzeros": CheckpointTensor("int32", (groups, rows // each)),
        "scales": CheckpointTensor("float16", (groups, rows)),
    }
    return found if method.in_turn else found | {"g_idx": CheckpointTensor("int32", (width,))}


def _grouped(method: InGroups, stem: str, codes: StoredTensor, stored: Mapping[str, StoredTensor]) -> GroupedMatrix:
    each = 32 // method.bits
    if len(codes.shape) != 2 or not all(codes.shape):
        raise BadTask(f"weights.{stem[:80]}.qweight", f"{list(codes.shape)} is no matrix; {_AGAIN}")
    rows, width = codes.shape[1], codes.shape[0]
    rows, width = (rows, width * each) if method.layout.down else (rows * each, width)
    parts = _parts(method, rows, width)
    if f"{stem}.g_idx" in stored:
        parts["g_idx"] = CheckpointTensor("int32", (width,))
    for part, kept in parts.items():
        one = stored.get(name := f"{stem}.{part}")
        if one is None:
            raise BadTask(f"weights.{name[:80]}", f"missing; {_AGAIN}")
        dtypes = DTYPES if part == "scales" else (CODE_OF[kept.dtype],)
        if one.shape != kept.shape or one.dtype not in dtypes or rows % each:
            raise BadTask(
                f"weights.{name[:80]}",
                f"{one.dtype[:20]} {list(one.shape)}, not {list(kept.shape)}, which bits and group_size of "
                f"quantization_config say; {_AGAIN}",
            )
    return GroupedMatrix(
        name=stem,
        layout=method.layout,
        bits=method.bits,
        rows=rows,
        width=width,
        group=method.group or width,
        codes=codes,
        zeros=stored[f"{stem}.qzeros"],
        scales=stored[f"{stem}.scales"],
        columns=stored.get(f"{stem}.g_idx"),
    )


def _of_fp8(method: Fp8, stored: Mapping[str, StoredTensor]) -> Tensors:
    found = dict(stored)
    for name, one in stored.items():
        stem = name.removesuffix(".weight")
        if one.dtype != _FP8 or stem == name:
            continue
        at = next((scale for part in _SCALES if (scale := f"{stem}.{part}") in stored), None)
        if at is None:
            raise BadTask(f"weights.{stem[:80]}.{_SCALES[1]}", f"missing; {_AGAIN}")
        scales = found.pop(at)
        rows, columns = _block(method, name, one, at, scales)
        source = Fp8Matrix(one, scales, rows, columns)
        found[name] = DerivedTensor(one.path, "float32", one.shape, 0, prod(one.shape) * 4, source)
    return found


def _block(method: Fp8, name: str, one: StoredTensor, at: str, scales: StoredTensor) -> tuple[int, int]:
    """How many rows and columns share a scale."""
    if len(one.shape) != 2 or not all(one.shape):
        raise BadTask(f"weights.{name[:80]}", f"{list(one.shape)} is no matrix; {_AGAIN}")
    rows, width = one.shape
    if scales.dtype in DTYPES:
        if prod(scales.shape) == 1:
            return rows, width
        if scales.shape in ((rows, 1), (rows,)):
            return 1, width
        if method.block is not None:
            down, across = method.block
            if scales.shape == (-(-rows // down), -(-width // across)):
                return down, across
    blocks = f" in blocks of {list(method.block)}" if method.block else ""
    raise BadTask(
        f"weights.{at[:80]}", f"{scales.dtype[:20]} {list(scales.shape)} scales no {[rows, width]}{blocks}; {_AGAIN}"
    )


def _drawn(matrix: GroupedMatrix, dtype: str, out: int) -> StoredTensor:
    nbytes = matrix.rows * out * getattr(torch, dtype).itemsize
    code = dtype if dtype in DTYPES else CODE_OF[dtype]
    return DerivedTensor(matrix.codes.path, code, (matrix.rows, out), 0, nbytes, matrix)
