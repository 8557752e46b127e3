"""What a decoder takes of a process's memory, for `bench.decode`: prints bytes as JSON.

python -m bench.decode.decode_memory MODEL

`taken` is the most that the process has held while it loaded the model and decoded to the end of its context, above
what it held when a tiny model had been through all that: libraries' code counts as held once it has run. `weights` and
`kv` are what it cannot do without.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params

CONTEXT = 2_048
PROMPT = [40 + k % 200 for k in range(1_920)]


def main() -> None:
    model = Path(sys.argv[1])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        _decoded(_tiny(Path(name), model), CONTEXT)
    gc.collect()
    before = _bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    whole = _decoded(model, CONTEXT)
    config, item = whole.config, 4
    kv = 2 * config.num_hidden_layers * CONTEXT * config.num_key_value_heads * config.head_dim * item
    weights = sum(stored.nbytes for stored in open_checkpoint(model).tensors.values())
    print(json.dumps({"taken": _bytes("VmHWM") - before, "weights": weights, "kv": kv}))


def _decoded(model: Path, context: int) -> LocalDecoder:
    whole = LocalDecoder(model, context=context, threads=1)
    made = sum(1 for _ in whole.tokens(PROMPT, parse_params({"max_tokens": context - len(PROMPT)}, context)))
    assert made == context - len(PROMPT)
    return whole


def _tiny(folder: Path, model: Path) -> Path:
    """A model of the same sort, 64 wide."""
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = json.loads((model / "config.json").read_text()) | sizes | {"num_key_value_heads": 2, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    shapes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
    tensors = {f"self_attn.{name}_proj": torch.randn(shape) for name, shape in shapes.items()}
    tensors |= {f"mlp.{name}_proj": torch.randn(192, 64) for name in ("gate", "up")}
    tensors |= {"mlp.down_proj": torch.randn(64, 192)}
    tensors |= {f"{name}_layernorm": torch.ones(64) for name in ("input", "post_attention")}
    named = {f"model.layers.0.{name}.weight": tensor for name, tensor in tensors.items()}
    for name in ("model.embed_tokens", "lm_head"):
        named[f"{name}.weight"] = torch.randn(config["vocab_size"], 64)
    save_file(named | {"model.norm.weight": torch.ones(64)}, folder / "model.safetensors")
    return folder


def _bytes(field: str) -> int:
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    return 1_024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
