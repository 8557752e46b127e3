"""A Hugging Face folder's model as a GGUF file, written with the `gguf` library as llama.cpp's converter does it, and
as the folder that such a file's numbers make."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from bench.tasks.tiny_decoders import make_family
from nodewire.gguf.types import TYPES

LEGACY = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where a block's float16 are: what the library cannot write is random but for these."""
_PLAIN = {"F32": np.float32, "F16": np.float16}
_ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "MixtralForCausalLM": "llama"} | {
    f"{stem}ForCausalLM": name
    for stem, name in {
        "Qwen2": "qwen2",
        "Qwen2Moe": "qwen2moe",
        "Qwen3": "qwen3",
        "Qwen3Moe": "qwen3moe",
        "Phi3": "phi3",
        "Gemma": "gemma",
        "Gemma2": "gemma2",
        "Gemma3": "gemma3",
        "GptOss": "gpt-oss",
    }.items()
}
_EXPERT = re.compile(r"(model\.layers\.\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
BLOCKS = {one.name: (one.size, one.nbytes) for one in TYPES.values()}


def stored(numbers: np.ndarray, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as a file has them, and what they are then; of those of K the numbers are not taken."""
    if kind in _PLAIN:
        data = numbers.astype(_PLAIN[kind])
        return data, data.astype(np.float32)
    if kind in K:
        size, nbytes = BLOCKS[kind]
        rng = np.random.default_rng(seed)
        raw = rng.integers(0, 256, (numbers.size // size, nbytes), dtype=np.uint8)
        for place in K[kind]:
            scales = rng.uniform(0.5, 1.0, len(raw)) * (0.002 if kind == "Q6_K" else 0.01 if kind != "Q2_K" else 0.03)
            raw[:, place : place + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
        data = raw.reshape(*numbers.shape[:-1], -1)
    else:
        data = gguf.quants.quantize(numbers, Type[kind])
    return data, gguf.quants.dequantize(data, Type[kind])


def fits(name: str, tensor: np.ndarray, kind: str) -> bool:
    """Whether a converter stores a tensor in blocks."""
    if not name.endswith("weight"):
        return False
    return tensor.ndim > 1 and not name.endswith("ffn_gate_inp.weight") and tensor.shape[-1] % BLOCKS[kind][0] == 0


def permuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows that turn together beside each other, as files of the architecture llama have them."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def unpermuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def in_gguf(folder: Path, out: Path, kind="F32", name: str = "model.gguf", **metadata) -> tuple[Path, Path]:
    """The file, and the folder of what it says. `kind`: of matrices, or a function of a tensor's name in the file."""
    kind_of = kind if callable(kind) else lambda _: kind
    config = json.loads((folder / "config.json").read_text())
    tensors = {one: tensor.float().numpy() for one, tensor in load_file(folder / "model.safetensors").items()}
    architecture = _ARCHITECTURES[config["architectures"][0]]
    model = next(one for one, said in gguf.MODEL_ARCH_NAMES.items() if said == architecture)
    names = gguf.get_tensor_name_map(model, config["num_hidden_layers"])
    path = out / name
    out.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    said = {**_said(writer, architecture, config, tensors), **metadata}
    for key, value in said.items():
        _add(writer, key.replace("ARCH", architecture), value)
    _tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    after = {}
    for number, (theirs, tensor, back) in enumerate(_stacked(tensors, config)):
        stem, _, suffix = theirs.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = theirs, "weight"
        called = f"{names.get_name(stem)}.{suffix}"
        how = kind_of(called) if fits(called, tensor, kind_of(called)) else "F32"
        if architecture == "gpt-oss" and "_exps.weight" in called:
            how = "MXFP4"
        heads = _heads(architecture, called, config)
        tensor = permuted(tensor, heads) if heads else tensor
        plus = 1.0 if architecture.startswith("gemma") and called.endswith("norm.weight") else 0.0
        data, numbers = stored(np.ascontiguousarray(tensor + np.float32(plus)), how, number)
        writer.add_tensor(called, data, raw_dtype=Type[how])
        numbers = unpermuted(numbers, heads) if heads else numbers - np.float32(plus)
        back(after, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference = out / "reference"
    shutil.copytree(folder, reference)
    numbers = {one: torch.from_numpy(np.ascontiguousarray(tensor)) for one, tensor in after.items()}
    save_file(numbers, reference / "model.safetensors", {"format": "pt"})
    return path, reference


def _heads(architecture, called, config):
    if architecture != "llama" or not re.search(r"attn_[qk]\.", called):
        return 0
    return config["num_attention_heads" if "attn_q." in called else "num_key_value_heads"]


def _put(name, back=lambda made: made):
    return lambda after, numbers: after.__setitem__(name, back(numbers))


def _by_number(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _stacked(tensors, config):
    """Names that the library knows, tensors, and how they come back."""
    groups: dict[str, list[str]] = {}
    for name in sorted(tensors, key=_by_number):
        tensor = tensors[name]
        if found := _EXPERT.fullmatch(name):
            groups.setdefault(f"{found[1]}.mlp.experts.{_PARTS.get(found[3], found[3])}.weight", []).append(name)
        elif name.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):
            yield from _halves(name, tensor)
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", tensor.swapaxes(1, 2), _put(name, lambda made: made.swapaxes(1, 2))
        elif name.endswith("experts.down_proj_bias"):
            yield f"{name.removesuffix('_bias')}.bias", tensor, _put(name)
        elif name.endswith("shared_expert_gate.weight"):
            yield name, tensor[0], _put(name, lambda made: made[None])
        else:
            yield name, tensor, _put(name)
    for stacked, own in groups.items():

        def back(after, made, own=own):
            after.update(zip(own, made, strict=True))

        yield stacked, np.stack([tensors[one] for one in own]), back


def _halves(name, tensor):
    """gpt-oss's gate and up, which alternate."""
    stem, is_bias = name.removesuffix("gate_up_proj").removesuffix("gate_up_proj_bias"), name.endswith("bias")

    def back(after, made, first):
        whole = after.setdefault(name, np.zeros_like(tensor))
        whole[..., first::2] = made if is_bias else made.swapaxes(1, 2)

    for first, half in enumerate(("gate_proj", "up_proj")):
        part = tensor[..., first::2]
        yield (
            f"{stem}{half}.{'bias' if is_bias else 'weight'}",
            np.ascontiguousarray(part if is_bias else part.swapaxes(1, 2)),
            lambda after, made, first=first: back(after, made, first),
        )


def _add(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_string(key, value)


def _said(writer, architecture, config, tensors):
    rope = config.get("rope_parameters") or {}
    near = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    said = {
        "ARCH.block_count": config["num_hidden_layers"],
        "ARCH.context_length": config["max_position_embeddings"],
        "ARCH.embedding_length": config["hidden_size"],
        "ARCH.feed_forward_length": config["intermediate_size"],
        "ARCH.attention.head_count": config["num_attention_heads"],
        "ARCH.attention.head_count_kv": config["num_key_value_heads"],
        "ARCH.attention.key_length": head,
        "ARCH.attention.value_length": head,
        "ARCH.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "ARCH.rope.freq_base": float(rope.get("rope_theta", 10_000.0)),
        "ARCH.rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
        "ARCH.vocab_size": config["vocab_size"],
        "general.file_type": 0,
        "general.name": "tiny",
    }
    if window := config.get("sliding_window"):
        said["ARCH.attention.sliding_window"] = window
    if rope.get("rope_type") in ("linear", "yarn"):
        said |= {"ARCH.rope.scaling.type": rope["rope_type"], "ARCH.rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") == "yarn":
        said["ARCH.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3(rope, head))
    if rope.get("rope_type") == "longrope":
        for way in ("long", "short"):
            writer.add_tensor(f"rope_factors_{way}.weight", np.array(rope[f"{way}_factor"], np.float32))
        said["ARCH.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        said |= {"ARCH.expert_count": experts, "ARCH.expert_used_count": config["num_experts_per_tok"]}
        if "moe_intermediate_size" in config:
            said["ARCH.expert_feed_forward_length"] = config["moe_intermediate_size"]
        if "shared_expert_intermediate_size" in config:
            said["ARCH.expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if architecture == "gemma2":
        said |= {f"ARCH.{one}_logit_softcapping": config[f"{one}_logit_softcapping"] for one in ("attn", "final")}
    if architecture == "gemma3":
        said["ARCH.attention.sliding_window_pattern"] = config["layer_types"].index("full_attention") + 1
        said["ARCH.rope.freq_base_swa"] = float(near["rope_theta"])
    return said


def _llama3(rope, head):
    """What llama.cpp's converter makes of Llama 3's scaling."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, head, 2, dtype=np.float64) / head)
    low, high = (rope["original_max_position_embeddings"] / rope[f"{one}_freq_factor"] for one in ("low", "high"))
    factors = []
    for length in 2 * np.pi / frequencies:
        smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors.append(1.0 if length < high else rope["factor"] if length > low else between)
    return np.array(factors, np.float32)


def _tokenizer(writer, document):
    vocabulary = sorted(document["model"]["vocab"].items(), key=lambda one: one[1])
    special = {token["content"] for token in document["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}")


def made(out: Path, family: str, kind="F32", changes=None, **metadata) -> tuple[Path, Path]:
    """A family's random model as a GGUF file, and the folder of what it says."""
    folder = make_family(out / "plain", family, **(changes or {}))
    return in_gguf(folder, out / "made", kind, **metadata)
