"""Decoding: `python -m bench.decode [--json] [--quick] [--only one,ring,wan,crowd,swarm,codec,lossless] [--chart
SVG]`.

In `one` and `ring` the model is a Llama of 8 layers (of 12 in `ring`), 512 wide, with random weights, float32, the same
safetensors.

- one: a process on one core. `ours` is the unsplit loop, `transformers` its own generate, greedy, the same tokens;
  the bound is what the model's matrix products alone take for a position, measured in the same rounds with its matrices
  kept row by row, and column by column where they are not wider than high, whichever is quicker. `memory` is what the
  process takes for it. `large`: a model whose weights in 8 bits are larger than the cache, in float32, bfloat16, in
  blocks of 8 bits without and with inputs in 8 bits (`w8a8`), and in blocks of 4.
- ring: a driver and 2, 4 and 6 stages on this host, each with a process for its daemon's parts and one for its worker,
  links over TLS. A hop's overhead is what a turn takes more than its tasks compute, by the workers' own clocks, over
  the turn's hops.
- wan: a driver and 6 stages on machines as far from each other as Shard's (`bench.tools.wan`), over the wire; a stage's
  computing is a wait of 3 or 10 ms for a row, and longer for more (`bench.decode.emulation.stage`). Plain decoding,
  what Shard began with (each result goes back the way it came), speculation turn by turn, Shard's overlapping chunks,
  and nodewire's own, each at the best settings that a simulation found, over drafters that are right as often as said.
- crowd: on the same ring 16 streams beside one, and a running stream while prompts of 4,096 tokens enter.
- swarm: `nodewire provider --swarm` on six of those machines, which compute for real: plain, by the text's own guesses
  and by the demo's draft model besides.
- codec: a prompt's bytes and what narrowing them spoils, on the demo's decoder.
- lossless: generations with guesses, in company and broken off, on small models of every family, beside transformers'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.decode.arms.codec import prefilled
from bench.decode.arms.crowd import measure_crowd
from bench.decode.arms.lossless import QUICK_RUNS, RUNS, measured
from bench.decode.arms.plot import plot
from bench.decode.arms.ring import Ring, measure_speculation
from bench.decode.arms.swarm import measure_swarm
from bench.report import Report, percentile, run
from bench.tasks.decode_model import LAYER_WEIGHTS, write_large, write_model
from bench.tools.lines import said, tell
from bench.tools.wan import unavailable
from nodewire.errors import BadInput, OverMemory
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.local.arithmetic import cache_bytes
from nodewire.llm.quant.checkpoint_writer import quantize
from processes.progress import say

ARMS = ["one", "ring", "wan", "crowd", "swarm", "codec", "lossless"]
STAGES, QUICK_STAGES = (2, 4, 6), (2,)
RING_LAYERS = 12
"""As many as divide evenly among so many stages."""
TOKENS, QUICK_TOKENS, ROUNDS = 200, 40, 3
WARM = 10
QUICK_LAYERS = 4
PROMPT = "The quick brown fox"


async def measure(report: Report, options: argparse.Namespace) -> None:
    arms = options.only.split(",") if options.only else ARMS
    if unknown := set(arms) - set(ARMS):
        raise BadInput("only", f"{min(unknown)!r} is not one of {', '.join(ARMS)}")
    if not {"wan", "crowd", "swarm"}.isdisjoint(arms):
        await _over_the_internet(report, arms, options.chart)
    if "codec" in arms:
        _codec(report)
    if "lossless" in arms:
        _lossless(report)
    if {"one", "ring"}.isdisjoint(arms):
        return
    with tempfile.TemporaryDirectory(prefix="nw-decode-") as name:
        model = Path(name) / "model"
        if "one" in arms:
            write_model(model)
            await _one(report, model)
        if "ring" in arms:
            write_model(Path(name) / "deep", RING_LAYERS)
            await _rings(report, Path(name) / "deep", Path(name))


async def _over_the_internet(report: Report, arms: Sequence[str], chart: Path | None) -> None:
    if (why := unavailable()) is not None:
        report.skip(why)
        return
    if not {"wan", "crowd"}.isdisjoint(arms):
        async with Ring(report.seed) as ring:
            if "wan" in arms:
                await measure_speculation(report, ring)
            if "crowd" in arms:
                await measure_crowd(report, ring)
    if "swarm" in arms:
        await measure_swarm(report)
    if chart is not None and "wan" in arms:
        plot(report.arms["wan"], chart)


def _codec(report: Report) -> None:
    report.arms["codec"] = found = prefilled(quick=report.quick)
    bf16 = found["bf16"]
    report.line("prefill_bf16_over_int8_bytes", round(bf16["row_bytes"] / found["int8"]["row_bytes"], 4), ">=", 1.9)
    for codec in ("int8", "fp8"):
        for of in ("perplexity", "all_narrowed"):
            found[codec][f"{of}_change_percent"] = round(100 * abs(found[codec][of] / bf16[of] - 1), 4)
    report.line("prefill_int8_perplexity_change_percent", found["int8"]["perplexity_change_percent"], "<=", 0.1)


def _lossless(report: Report) -> None:
    report.arms["lossless"] = found = measured(quick=report.quick, seed=report.seed)
    families, sampled = found["families"].values(), found["sampled"]
    report.line("lossless_runs", sum(one["runs"] for one in families), ">=", QUICK_RUNS if report.quick else RUNS)
    report.line("lossless_runs_that_differ", sum(one["differ"] for one in families), "==", 0)
    report.line("lossless_what_was_met", len(found["met"]), "==", 6)
    report.line("lossless_logits", max(one["logits_max_difference"] for one in families), "<=", 1e-4)
    report.line("lossless_sampled_that_differ", sampled["differ"], "==", 0)
    report.line("lossless_sampled_variation", sampled["total_variation"], "<=", sampled["noise_floor"])


async def _one(report: Report, model: Path) -> None:
    rounds = str(1 if report.quick else ROUNDS)
    found = report.arms["one"] = await _alone("bench.decode.decode_one", str(model), rounds)
    say(f"one process: {found}")
    ours = found["ours_per_s"]
    report.line("one_over_transformers", round(ours / found["transformers_per_s"], 3), ">=", 1.2)
    bound = max(found["in_rows_per_s"], found["in_columns_per_s"])
    report.line("one_of_the_bound", round(ours / bound, 3), ">=", 0.8)
    report.line("one_tokens_that_differ", found["tokens_that_differ"], "==", 0)
    memory = found["memory"] = await _alone("bench.decode.decode_memory", str(model))
    report.line("one_memory", round(memory["taken"] / (memory["weights"] + memory["kv"]), 3), "<=", 1.15)
    large = model.parent / "large"
    layers = QUICK_LAYERS if report.quick else -(-cache_bytes() * 11 // 10 // LAYER_WEIGHTS) or QUICK_LAYERS
    write_large(large / "plain", layers)
    for scheme in ("int8", "w8a8", "int4"):
        quantize(large / "plain", large / scheme, scheme)
    say(f"a model of {layers * LAYER_WEIGHTS / 1e6:.0f} million weights")
    rates = found["large"] = await _alone(
        "bench.decode.decode_blocks", str(large), rounds, "8" if report.quick else "24"
    )
    say(f"beyond the cache: {rates}")
    rates["layers"], rates["cache_bytes"] = layers, cache_bytes()
    best = max(rates["float32_per_s"], rates["bfloat16_per_s"])
    for scheme in ("int8", "w8a8"):
        ratio = rates[f"{scheme}_per_s"] / best
        report.line(f"one_{scheme}_over_the_best_of_float32_and_bfloat16", round(ratio, 3), ">=", 1.2)


async def _alone(module: str, *words: str) -> Any:
    """What a module prints in a process of its own."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *words, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{module} ended with {process.returncode}")
    return json.loads(text)


async def _rings(report: Report, model: Path, folder: Path) -> None:
    report.arms["ring"] = {}
    for count in QUICK_STAGES if report.quick else STAGES:
        out = folder / f"ring.{count}"
        made = _split(model, out, count)
        (out / "manifest.json").write_text(made.to_json())
        hops, turns = await _ring(out, count, QUICK_TOKENS if report.quick else TOKENS)
        report.arms["ring"][str(count)] = {
            "hop_us": {"p50": round(median(hops), 1), "p95": round(percentile(hops, 95) or 0.0, 1)},
            "turn_ms_p50": round(median(turns) / 1_000, 3),
        }
        say(f"{count} stages: {report.arms['ring'][str(count)]}")
    worst = max(found["hop_us"]["p50"] for found in report.arms["ring"].values())
    report.line("hop_overhead_us_p50", worst, "<=", 200)


def _split(model: Path, out: Path, count: int) -> Any:
    """A manifest of so many stages: the smallest target that makes them."""
    low, high = 1, 2**30
    while high - low > 65_536:
        middle = (low + high) // 2
        try:
            stages = len(split_decoder(model, middle, out, slots=4).manifest.tasks) - 1
        except OverMemory:
            stages = count + 1
        low, high = (middle, high) if stages > count else (low, middle)
    return split_decoder(model, high, out, slots=4).manifest


async def _ring(folder: Path, stages: int, tokens: int) -> tuple[list[float], list[float]]:
    """Microseconds: of each hop's overhead, a turn's mean; and of each turn."""
    names = ["driver", *(f"stage.{n}" for n in range(stages))]
    async with AsyncExitStack() as stack:
        nodes = []
        for role, tasks in [*(("provider", [name]) for name in names), ("customer", [])]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.decode.decode_node", role,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
            )  # fmt: skip
            stack.push_async_callback(_stopped, process)
            await tell(process, {"folder": str(folder), "tasks": tasks})
            nodes.append(process)
        where = [await said(process) for process in nodes]
        holders = {name: public for name, (public, _) in zip(names, where, strict=False)}
        for process in nodes:
            await tell(process, {"holders": holders, "customer": where[-1][0], "addresses": dict(where)})
        for process in nodes:
            await said(process)
        job: Mapping[str, Any] = {
            "job": secrets.token_hex(32), "params": {"max_tokens": WARM + tokens}, "prompt": PROMPT,
        }  # fmt: skip
        for process in nodes:
            await tell(process, job)
        for process in nodes:
            await said(process)
        await tell(nodes[-1], "begin")
        came = await said(nodes[-1])
        took = [b[0] - a[0] for a, b in zip(came[WARM:], came[WARM + 1 :], strict=False)]
        computed = [one[1] for one in came[WARM + 1 :]]
        return [(a - b) / (stages + 1) for a, b in zip(took, computed, strict=True)], took


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help=f"of {', '.join(ARMS)}, separated by commas")
    parser.add_argument("--chart", type=Path, help="write the curves over acceptance as an SVG")


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


if __name__ == "__main__":
    run("decode", __doc__, measure, add=_add)
