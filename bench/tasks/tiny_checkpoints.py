"""Tiny checkpoints of GPTQ, AWQ and FP8, written by the formats' published packing; and what their numbers stand for.

Independent of what reads them: https://github.com/AutoGPTQ/AutoGPTQ, https://github.com/casper-hansen/AutoAWQ,
https://github.com/deepseek-ai/DeepSeek-V3, https://github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.families import modules_of

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [24, 40]}
PER_TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}
FLOATS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FLOATS}},
    "ignore": ["lm_head"],
}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


WAYS = {
    "gptq": (GPTQ, "int4"),
    "gptq, v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, "int4"),
    "gptq, not symmetric": (GPTQ | {"sym": False}, "int8"),
    "gptq, eight bits, rows": (GPTQ | {"bits": 8, "group_size": -1}, "int8"),
    "gptq, eight bits, not symmetric": (GPTQ | {"bits": 8, "sym": False}, None),
    "gptq, columns by weight": (GPTQ | {"desc_act": True}, None),
    "gptq, columns by weight, not symmetric": (GPTQ | {"desc_act": True, "sym": False}, None),
    "awq": (AWQ, "int8"),
    "fp8, blocks": (DEEPSEEK, None),
    "fp8": (PER_TENSOR, None),
    "fp8, rows": (CHANNELS, None),
    "fp8, rows, fbgemm": (FBGEMM, None),
}
"""What quantization_config says, and the blocks that the same numbers are kept in, if any."""


def words(codes: Any, bits: int, axis: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Codes put into words of 32 bits along an axis, `order[i]` the code that lies i-th in a word."""
    codes = np.moveaxis(codes.astype(np.int64), axis, 0)
    each = 32 // bits
    out = np.zeros((len(codes) // each, *codes.shape[1:]), np.int64)
    for word in range(len(out)):
        for place in range(each):
            out[word] |= codes[word * each + (order[place] if order else place)] << (bits * place)
    return torch.from_numpy(np.moveaxis(out, 0, axis).astype(np.uint32).view(np.int32).copy())


def integers(matrix: torch.Tensor, said: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Tensors of a matrix [out, in] in whole numbers, and what they stand for."""
    bits, width = said["bits"], matrix.shape[1]
    group = said["group_size"] if said["group_size"] > 0 else width
    columns = np.arange(width) // group
    if said.get("desc_act"):
        columns = np.random.default_rng(5).permutation(columns)
    count, most = columns.max() + 1, 2**bits - 1
    weights = matrix.float().numpy()
    codes = np.zeros(weights.shape, np.int64)
    scales, zeros = np.zeros((count, len(weights)), np.float16), np.zeros((count, len(weights)), np.int64)
    wide = np.zeros_like(weights)
    for g in range(count):
        own = weights[:, columns == g]
        if said.get("sym"):
            scale, zero = np.abs(own).max(1) / (most // 2), np.full(len(own), (most + 1) // 2)
        else:
            least = np.minimum(own.min(1), 0)
            scale = (np.maximum(own.max(1), 0) - least) / most
            zero = np.clip(np.round(-least / scale), 1, most)
        scale = scale.astype(np.float16).astype(np.float32)
        code = np.clip(np.round(own / scale[:, None]) + zero[:, None], 0, most)
        codes[:, columns == g], scales[g], zeros[g] = code, scale, zero
        wide[:, columns == g] = (code - zero[:, None]).astype(np.float32) * scale[:, None]
    if said["quant_method"] == "awq":
        made = {"qweight": words(codes.T, bits, 1, AWQ_ORDER), "qzeros": words(zeros, bits, 1, AWQ_ORDER)}
    else:
        less = 0 if said.get("checkpoint_format") == "gptq_v2" else 1
        made = {"qweight": words(codes.T, bits, 0), "qzeros": words(zeros - less, bits, 1)}
        made["g_idx"] = torch.from_numpy(columns.astype(np.int32))
    return made | {"scales": torch.from_numpy(scales)}, torch.from_numpy(wide)


def eights(matrix: torch.Tensor, said: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """As `integers`, in floats of eight bits."""
    rows, width = matrix.shape
    scheme = said.get("weight_block_size") or ([1, width] if said in (CHANNELS, FBGEMM) else [rows, width])
    down, across = -(-rows // scheme[0]), -(-width // scheme[1])
    scales, numbers, wide = torch.zeros(down, across), torch.zeros(rows, width), torch.zeros(rows, width)
    for i in range(down):
        for j in range(across):
            at = (slice(i * scheme[0], (i + 1) * scheme[0]), slice(j * scheme[1], (j + 1) * scheme[1]))
            scales[i, j] = matrix[at].abs().max() / 448
            numbers[at] = (matrix[at] / scales[i, j]).to(torch.float8_e4m3fn).float()
            wide[at] = numbers[at] * scales[i, j]
    made = {"weight": numbers.to(torch.float8_e4m3fn)}
    if said is DEEPSEEK:
        return made | {"weight_scale_inv": scales}, wide
    if said is PER_TENSOR:
        return made | {"weight_scale": scales.reshape(()), "input_scale": torch.tensor(0.7)}, wide
    return made | {"weight_scale": scales}, wide


def write(plain: Path, out: Path, said: dict[str, Any], left: tuple[str, ...] | list[str] = ()) -> tuple[Path, Path]:
    """A model's matrices as `said`, but for those that `left` has a part of the name of; and the same widened."""
    tensors = load_file(plain / "model.safetensors")
    chosen = {piece.name for _, _, pieces in modules_of(open_checkpoint(plain).config) for piece in pieces}
    packed, wide = {}, {}
    for name, tensor in tensors.items():
        packed[name] = wide[name] = tensor
        if name in chosen and not any(part in name for part in left):
            del packed[name]
            made, wide[name] = (integers if "bits" in said else eights)(tensor, said)
            packed |= {f"{name.removesuffix('.weight')}.{part}": one for part, one in made.items()}
    config = json.loads((plain / "config.json").read_text())
    for folder, held, more in (("packed", packed, {"quantization_config": said}), ("wide", wide, {})):
        (out / folder).mkdir(parents=True)
        save_file(held, out / folder / "model.safetensors")
        (out / folder / "config.json").write_text(json.dumps(config | more))
        (out / folder / "tokenizer.json").write_bytes((plain / "tokenizer.json").read_bytes())
    return out / "packed", out / "wide"
