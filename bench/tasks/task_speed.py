"""Tasks beside the module that they were made of: `python -m bench.tasks.task_speed [--json] [--quick]`.

- minilm, clip.text: the interpreter beside the module itself (random weights in MiniLM's and CLIP-B/32's sizes).
- decode: one position through four layers of 512 with a cache of 64, the module beside the interpreter and beside the
  library that `nodewire.graph.compile` makes of the program; the library's results are checked as a worker checks them.

Arms take turns, a call each, so that what else the machine does falls on all of them alike; figures are medians.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.report import Report, run
from bench.tasks.task_models import Built, Hidden, built
from nodewire.errors import Unsupported
from nodewire.graph.compile import build, find
from nodewire.graph.program.format import Input
from nodewire.graph.program.interpreter import Interpreter
from processes.progress import say

INTERPRETED, COMPILED = 1.05, 1.3
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD = 4, 512, 8, 4, 64


class Decode(torch.nn.Module):
    """A decoder's step on `hidden` [b, 1, w] after `past` [b, layers, 2, kv heads, s, head]: [b, 1, w + rows], the new
    hidden state beside the rows that the holder of the cache appends."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD}
        self.layers = torch.nn.ModuleList()
        for _ in range(LAYERS):
            layer = torch.nn.ModuleDict({name: torch.nn.Linear(WIDTH, n, bias=False) for name, n in sizes.items()})
            layer["o"] = torch.nn.Linear(HEADS * HEAD, WIDTH, bias=False)
            layer["gate"], layer["up"] = (torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
            layer["down"] = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)
            self.layers.append(layer)
        self.norms = torch.nn.ParameterList(torch.ones(WIDTH) for _ in range(2 * LAYERS))
        self.frequencies = torch.nn.Buffer(1e4 ** (-torch.arange(0, HEAD, 2) / HEAD))

    def forward(self, hidden: torch.Tensor, past: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        angle = position.float()[:, None] * self.frequencies
        cosine, sine = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        made = []
        for k, layer in enumerate(self.layers):
            normal = self.norm(hidden, 2 * k)
            q = self.turned(layer["q"](normal).view(rows, 1, HEADS, HEAD).transpose(1, 2), cosine, sine)
            key = self.turned(layer["k"](normal).view(rows, 1, KV_HEADS, HEAD).transpose(1, 2), cosine, sine)
            value = layer["v"](normal).view(rows, 1, KV_HEADS, HEAD).transpose(1, 2)
            made += [key, value]
            keys, values = torch.cat([past[:, k, 0], key], 2), torch.cat([past[:, k, 1], value], 2)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            hidden = hidden + layer["o"](mixed.transpose(1, 2).reshape(rows, 1, HEADS * HEAD))
            normal = self.norm(hidden, 2 * k + 1)
            hidden = hidden + layer["down"](torch.nn.functional.silu(layer["gate"](normal)) * layer["up"](normal))
        return torch.cat([hidden, *(one.reshape(rows, 1, KV_HEADS * HEAD) for one in made)], -1)

    def norm(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.norms[which] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    @staticmethod
    def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def decode() -> Built:
    torch.manual_seed(1)
    shapes: tuple[tuple[str, torch.dtype, tuple[int | str, ...]], ...] = (
        ("hidden", torch.float32, ("b", 1, WIDTH)),
        ("past", torch.float32, ("b", LAYERS, 2, KV_HEADS, "s", HEAD)),
        ("position", torch.int64, (1,)),
    )
    return built(Decode(), tuple(Input(*one) for one in shapes), {"b": 8, "s": 512}, on_meta=True)


def minilm() -> Built:
    from transformers import BertConfig, BertModel

    sizes = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1_536)
    return _of_ids(BertModel(sizes, add_pooling_layer=False), 30_522)


def clip_text() -> Built:
    from transformers import CLIPTextConfig, CLIPTextModel

    return _of_ids(CLIPTextModel(CLIPTextConfig(max_position_embeddings=77)), 49_408)


def _of_ids(model: torch.nn.Module, vocabulary: int) -> Built:
    ids = (Input("x", torch.int64, ("b", "s"), below=vocabulary),)
    return built(Hidden(model, "input_ids"), ids, {"b": 2, "s": 77})


def turns(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median of each call, ms."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for number in range(rounds + 5):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                if number >= 5:
                    taken[name].append((time.perf_counter() - began) * 1e3)
    return {name: round(sorted(ms)[len(ms) // 2], 4) for name, ms in taken.items()}


def ratios(arm: dict[str, float]) -> dict[str, float]:
    return {f"{name}_of_eager": round(ms / arm["eager"], 4) for name, ms in arm.items() if name != "eager"}


async def measure(report: Report, options: argparse.Namespace) -> None:
    rounds = 15 if report.quick else 101
    for name, make in (("minilm", minilm), ("clip.text", clip_text)):
        made = make()
        ids = torch.randint(0, 1_000, (1, 64), generator=torch.Generator().manual_seed(1))
        one = Interpreter(made.program, made.weights)
        inputs, sizes = {"x": ids}, {"b": 1, "s": 64}
        with torch.no_grad():
            same = torch.equal(next(iter(one(inputs, sizes).values())), made.module(ids))
        calls = {
            "eager": lambda made=made, ids=ids: made.module(ids),
            "interpreter": lambda one=one, inputs=inputs, sizes=sizes: one(inputs, sizes),
        }
        arm = turns(calls, rounds)
        report.arms[name] = {"ms": arm, **ratios(arm), "bitwise": same, "nodes": len(made.program.nodes)}
        weights = sum(w.nbytes for w in made.program.weights)
        report.arms[name]["graph_of_weights"] = round(len(made.program.encode()) / weights, 6)
        report.line(f"{name}_interpreter_of_eager", ratios(arm)["interpreter_of_eager"], "<=", INTERPRETED)
        report.line(f"{name}_graph_of_weights", report.arms[name]["graph_of_weights"], "<=", 0.01)
        say(f"{name}: {report.arms[name]}")
    report.arms["decode"] = decoding(rounds)
    report.line("decode_compiled_speedup", report.arms["decode"].get("speedup"), ">=", COMPILED)


def decoding(rounds: int) -> dict[str, Any]:
    made = decode()
    program = replace(made.program, slots=1)
    one = Interpreter(program, made.weights)
    drawn = torch.Generator().manual_seed(2)
    inputs = {
        "hidden": torch.randn(1, 1, WIDTH, generator=drawn),
        "past": torch.randn(1, LAYERS, 2, KV_HEADS, 64, HEAD, generator=drawn),
        "position": torch.tensor([64]),
    }
    sizes = {"b": 1, "s": 64}
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: made.module(**inputs),
        "interpreter": lambda: one(inputs, sizes),
    }
    with tempfile.TemporaryDirectory(prefix="nw-speed-") as folder:
        began = time.perf_counter()
        try:
            build(program.encode(), Path(folder))
        except Unsupported as error:
            say(f"decode: interpreted, {error}")
            return {"ms": turns(calls, rounds), "error": str(error)}
        built_s = time.perf_counter() - began
        began = time.perf_counter()
        library = find(program.encode(), program, made.weights, Path(folder), 1)
        checked_s = time.perf_counter() - began
        if not library.admits(sizes):
            return {"ms": turns(calls, rounds), "error": "the library is not right for one row"}
        calls["compiled"] = lambda: library(inputs, sizes)
        arm = turns(calls, 3 * rounds)
    say(f"decode: {arm}, compiled in {built_s:.0f} s")
    found = {"ms": arm, **ratios(arm), "build_s": round(built_s, 1), "load_and_check_s": round(checked_s, 2)}
    return found | {"speedup": round(arm["eager"] / arm["compiled"], 3)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    run("task_speed", __doc__, measure)
