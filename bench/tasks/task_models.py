"""Models of several families as traced programs with random weights, for the benches of tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from nodewire.graph.program.format import Input, Program, Shape
from nodewire.graph.program.liveness import corners, walk
from nodewire.graph.program.normalization import normalize
from nodewire.graph.trace.examples import Leaf, Signature
from nodewire.graph.trace.trace import trace

MODELS: dict[str, Callable[[], Built]] = {}
OUTPUT = "out"


@dataclass(frozen=True, slots=True)
class Built:
    """A whole model: its program, its weights by name, and a target that makes several tasks of it."""

    module: torch.nn.Module
    program: Program
    shapes: Mapping[str, Shape]
    weights: Mapping[str, torch.Tensor]
    target_bytes: int
    least_volume: int


def model(make: Callable[[], Built]) -> Callable[[], Built]:
    MODELS[make.__name__.removeprefix("_").replace("_", ".")] = make
    return make


class Hidden(torch.nn.Module):
    """A transformers model as a function of ids, or of pixels, to its last hidden state."""

    def __init__(self, inner: torch.nn.Module, argument: str, **constant: Any) -> None:
        super().__init__()
        self.inner, self.argument, self.constant = inner, argument, constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = {"attention_mask": torch.ones_like(x)} if not x.is_floating_point() else {}
        return self.inner(**{self.argument: x}, **more, **self.constant).last_hidden_state


def built(
    module: torch.nn.Module,
    inputs: tuple[Input, ...],
    dims: Mapping[str, int],
    tasks: int = 3,
    *,
    on_meta: bool = False,
) -> Built:
    """Trace a module of one output, `on_meta` a copy of it without values; the target is what `tasks` tasks take."""
    volume = 1
    for most in dims.values():
        volume *= most
    module = module.eval()
    made = copy.deepcopy(module).to("meta") if on_meta else module
    said = Signature(inputs, dims, {one.name: Leaf(one) for one in inputs}, positional=len(inputs))
    traced = trace(made, said, volume)
    whole = normalize(traced.program)
    arriving = tuple(replace(one, edge="in") for one in whole.inputs)
    whole = replace(
        whole, inputs=arriving, outputs=tuple(replace(out, name=OUTPUT, edge=OUTPUT) for out in whole.outputs)
    )
    stored: dict[str, torch.Tensor] = {**dict(module.named_buffers()), **dict(module.state_dict()), **traced.constants}
    weights = {one.name: stored[one.name].detach() for one in whole.weights}
    live = max(walk(whole, sizes, 2**62).peak_bytes for sizes in corners(whole))
    held = sum(one.nbytes for one in whole.weights)
    largest = max(one.nbytes for one in whole.weights)
    return Built(module, whole, traced.shapes, weights, max(held // tasks, largest + largest // 4) + 3 * live, volume)


def _ids(vocabulary: int) -> tuple[Input, ...]:
    return (Input("x", torch.int64, ("b", "s"), below=vocabulary),)


TOKENS = {"b": 2, "s": 48}


@model
def _bert() -> Built:
    from transformers import BertConfig, BertModel

    made = BertConfig(vocab_size=1_000, hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
                      intermediate_size=1_024, max_position_embeddings=128)  # fmt: skip
    torch.manual_seed(1)
    return built(Hidden(BertModel(made, add_pooling_layer=False), "input_ids"), _ids(1_000), TOKENS)


def _decoder(config: Any, **changes: Any) -> Built:
    from transformers import AutoModel

    said = dict(vocab_size=1_000, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=8,
                num_key_value_heads=4, max_position_embeddings=256)  # fmt: skip
    torch.manual_seed(2)
    made = AutoModel.from_config(config(**{**said, **changes}), attn_implementation="sdpa")
    return built(Hidden(made, "input_ids", use_cache=False), _ids(1_000), TOKENS)


@model
def _llama() -> Built:
    from transformers import LlamaConfig

    return _decoder(LlamaConfig)


@model
def _qwen3() -> Built:
    from transformers import Qwen3Config

    return _decoder(Qwen3Config, head_dim=32)


@model
def _mistral() -> Built:
    from transformers import MistralConfig

    return _decoder(MistralConfig)


@model
def _phi3() -> Built:
    from transformers import Phi3Config

    return _decoder(Phi3Config, pad_token_id=0)


@model
def _t5_encoder() -> Built:
    from transformers import T5Config, T5EncoderModel

    made = T5Config(vocab_size=1_000, d_model=256, d_kv=64, d_ff=512, num_layers=6, num_heads=4)
    torch.manual_seed(3)
    return built(Hidden(T5EncoderModel(made), "input_ids"), _ids(1_000), TOKENS)


@model
def _clip_text() -> Built:
    from transformers import CLIPTextConfig, CLIPTextModel

    made = CLIPTextConfig(vocab_size=1_000, hidden_size=256, intermediate_size=512, num_hidden_layers=6,
                          num_attention_heads=4, max_position_embeddings=96, eos_token_id=999)  # fmt: skip
    torch.manual_seed(4)
    return built(Hidden(CLIPTextModel(made), "input_ids"), _ids(1_000), TOKENS)
