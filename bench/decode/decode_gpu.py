"""Decoding on a GPU: `python -m bench.decode.decode_gpu [--json] [--quick] [--device cuda] [--tiny]`.

A Llama of 1.2 billion random weights (Llama 3.2 1B's numbers) in bfloat16, all of it on one device: ids in, the
likeliest tokens out, one stream and 32.

- graphs: steps that are captured once and replayed (nodewire/llm/cuda_graphs/runner.py); eager: the same layers, as
  without.
- transformers: its own generate, greedy, with its default cache.
- bound: what reading the weights, and the streams' keys and values, takes at the pace at which the device copies.

All of a round are timed one after the other, three rounds, the first token not counted. Whether both of ours say the
same tokens is looked at in float32, on a small model: of random weights in bfloat16 two are often equally likely.

`--tiny` is a model of 4 layers in float32, and `--device cpu` takes steps down with torch.fx: whether it works, not how
well. Without a GPU it says so and exits with 77.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.report import Report, run
from bench.tasks.decode_model import write_llama
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.loader import filler
from nodewire.llm.cuda_graphs import runner
from nodewire.llm.cuda_graphs.capture import Capture, CudaGraphs
from nodewire.llm.cuda_graphs.runner import StepEnds, graph_maker
from nodewire.llm.families import end_tensors, stage_tensors
from nodewire.llm.kv import static_buffers
from nodewire.llm.kv.batch_view import Chain, together
from nodewire.llm.kv.sequence_cache import Lanes
from nodewire.llm.layers.embedding_head import Vocabulary
from nodewire.llm.layers.layers import Arithmetic, Layers
from processes.progress import say

STREAMS = (1, 32)
PROMPT, TOKENS, QUICK_TOKENS, ROUNDS = 128, 256, 32, 3
BLOCK = 64
LARGE = {
    "vocab_size": 128_256, "hidden_size": 2_048, "intermediate_size": 8_192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
TINY = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip


class Streams:
    """So many lanes of a whole decoder; `capture`, if given, takes down its steps."""

    def __init__(self, folder: Path, count: int, dtype: torch.dtype, device: torch.device, capture: Capture | None):
        checkpoint = open_checkpoint(folder)
        config, layers = checkpoint.config, checkpoint.config.num_hidden_layers
        fill = filler(checkpoint.pick(chain(end_tensors(config), stage_tensors(config, 0, layers))))
        self._vocabulary = Vocabulary(config, dtype, device, fill)
        positions = PROMPT + TOKENS
        self._layers = Layers(
            config,
            0,
            layers,
            positions=positions,
            block=BLOCK,
            arithmetic=Arithmetic(dtype=dtype, device=device),
            fill=fill,
        )
        lanes = Lanes(config, layers, count, positions, dtype, device, beyond=True)
        self._lanes, self._device = [lanes.open() for _ in range(count)], device
        around = StepEnds(
            lambda rows: torch.zeros(rows, dtype=torch.int64, device=device),
            lambda ids: self._vocabulary.embed(ids)[0],
            self._likeliest,
            True,
        )
        self.graphs = graph_maker(capture)(self._layers, lanes, around) if capture is not None else None
        kept = [*self._vocabulary.weights.values(), *(one for layer in self._layers.layers for one in _tensors(layer))]
        weights = {one.data_ptr(): one.nbytes for one in kept if isinstance(one, torch.Tensor)}
        self.weight_bytes = sum(weights.values())
        self.position_bytes = sum(one.nbytes for one in lanes.cells) // lanes.cells[0].shape[2]

    def _likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._vocabulary.every_logits(hidden[None])[0].argmax(-1)

    @torch.inference_mode()
    def tokens(self, prompts: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
        """Prompts int64 [streams, n] to the tokens that follow, [streams, count], and how many seconds those after the
        first took."""
        last = [self._layers.forward(self._vocabulary.embed(ids), 0, lane, only_last=True)[0]
                for ids, lane in zip(prompts, self._lanes, strict=True)]  # fmt: skip
        made = [self._likeliest(torch.cat(last)).cpu()]
        began_s = time.perf_counter()
        for pos in range(prompts.shape[1], prompts.shape[1] + count - 1):
            made.append(self._step(made[-1], pos).cpu())  # a driver must know the token, so it is waited for
        return torch.stack(made, 1), time.perf_counter() - began_s

    def _step(self, ids: torch.Tensor, pos: int) -> torch.Tensor:
        if self.graphs is not None:
            found = self.graphs.run(ids, [static_buffers.chain(lane, pos, 1) for lane in self._lanes])
            if found is not None:
                return found
        past = together([Chain(lane, pos, 1) for lane in self._lanes])
        return self._likeliest(self._layers.run(self._vocabulary.embed(ids)[0], past))


def _tensors(layer: Any) -> list[Any]:
    return [one for part in (layer, layer.attention, layer.mlp) for one in part.__dict__.values()]


async def measure(report: Report, options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        report.skip("a GPU of CUDA's: nothing was measured (--device cpu --tiny tries the code)")
        return
    if device.type == "cuda":
        report.arms["gpu"] = {"name": torch.cuda.get_device_name(device), "torch": str(torch.__version__)}
    dtype = torch.float32 if options.tiny else torch.bfloat16
    tokens = QUICK_TOKENS if report.quick else TOKENS
    with tempfile.TemporaryDirectory(prefix="nw-decode-gpu-") as name:
        _lossless(report, Path(name) / "tiny", device)
        model = Path(name) / "tiny"
        if not options.tiny:
            model = Path(name) / "large"
            say("writing a model of 1.2 billion weights")
            write_llama(model, LARGE, torch.bfloat16)
        for count in STREAMS[: 1 if options.tiny and report.quick else None]:
            found = report.arms[f"streams_{count}"] = _measured(
                model, count, tokens, dtype, device, 1 if report.quick else ROUNDS
            )
            say(f"{count} streams: {found}")
            if device.type == "cuda":
                ratio = found["graphs_per_s"] / found["eager_per_s"]
                report.line(f"graphs_over_eager_{count}", round(ratio, 3), ">=", 1.0)


def _lossless(report: Report, folder: Path, device: torch.device) -> None:
    write_llama(folder, TINY, torch.float32)
    prompts = torch.randint(0, TINY["vocab_size"], (4, 20), generator=torch.Generator().manual_seed(report.seed))
    captured, eager = (Streams(folder, 4, torch.float32, device, how) for how in (_capture(device), None))
    made, expected = (one.tokens(prompts, 80)[0] for one in (captured, eager))
    assert captured.graphs is not None
    report.line("tokens_that_differ", int((made != expected).sum()), "==", 0)
    report.line("replays", captured.graphs.replays, ">=", 80 - 1 - 2 * runner.MET)


def _capture(device: torch.device) -> Capture:
    if device.type == "cuda":
        return CudaGraphs(device)
    from nodewire.llm.cuda_graphs.fx_capture import FxCapture

    return FxCapture()


def _measured(
    model: Path, count: int, tokens: int, dtype: torch.dtype, device: torch.device, rounds: int
) -> dict[str, Any]:
    """Tokens a second of all streams."""
    from transformers import AutoModelForCausalLM

    captured, eager = (Streams(model, count, dtype, device, how) for how in (_capture(device), None))
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device)
    prompts = torch.randint(0, theirs.config.vocab_size, (count, PROMPT), generator=torch.Generator().manual_seed(1))

    def generated(many: int) -> float:
        began_s = time.perf_counter()
        with torch.inference_mode():
            made = theirs.generate(prompts.to(device), max_new_tokens=many, min_new_tokens=many, do_sample=False)
        made.cpu()
        return time.perf_counter() - began_s

    arms: dict[str, Callable[[], float]] = {
        "graphs": lambda: captured.tokens(prompts, tokens)[1],
        "eager": lambda: eager.tokens(prompts, tokens)[1],
        "transformers": lambda: generated(tokens) - generated(1),
    }
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, arm in arms.items():
            took_s = arm()
            if number:  # the first warms up
                taken[name].append(took_s)
    found: dict[str, Any] = {
        f"{name}_per_s": round(count * (tokens - 1) / median(took), 2) for name, took in taken.items()
    }
    bytes_per_s = _bandwidth(device)
    read = captured.weight_bytes + count * captured.position_bytes * (PROMPT + tokens // 2)
    assert captured.graphs is not None
    return found | {
        "bound_per_s": round(count * bytes_per_s / read, 2),
        "graphs_per_stream_per_s": round(found["graphs_per_s"] / count, 2),
        "read_bytes_a_step": read,
        "copied_bytes_per_s": round(bytes_per_s),
        "captured": len(captured.graphs),
        "replays": captured.graphs.replays,
        "off": captured.graphs.off,
    }


def _bandwidth(device: torch.device) -> float:
    """Bytes a second that the device reads and writes as it copies."""
    many = 2**30 if device.type == "cuda" else 2**26
    source, target = torch.ones(2, many, dtype=torch.uint8, device=device)
    best = 0.0
    for _ in range(8):
        _finished(device)
        began_s = time.perf_counter()
        target.copy_(source)
        _finished(device)
        best = max(best, 2 * many / (time.perf_counter() - began_s))
    return best


def _finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model in float32: whether it works")


if __name__ == "__main__":
    run("decode_gpu", __doc__, measure, add=_add)
