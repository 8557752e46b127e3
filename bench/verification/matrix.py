"""Every cheat at arithmetic and tokens beside an honest judge: `python -m bench.verification.matrix [--json]
[--quick]`.

The demo's decoder, in float32 and in bfloat16, runs once in one process. Then a cheater computes each stage again from
the very frames that it took, with other weights, another cache or a shorter window. So does an honest judge with other
threads and another instruction set. The cheat *struck* in a chunk if it changed a bit of it; such chunks count alone. A
struck chunk is `found` if a judge that computes it convicts: by the distance of the two, or by a float32 reference. Of
drawn samples the oracles compute all that a verifier finds apart or in doubt, a quarter of those that are suspect and a
tenth of the others: so much is `found_of_drawn`, and `found_in_20` of jobs of 20 drawn samples.

Cheats at a driver's tokens are those of bench.verification.leeway; every drawn sample of a driver is held to its
tokens.

Lines: each cheat that must always be found, narrower weights in jobs of 20 samples, how many honest chunks are
convicted, and cheats that struck nowhere, apart from those that change no number of this checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.report import Report, run
from bench.tools.jobs import PROMPTS
from bench.verification import leeway
from bench.verification.honest import Key, Model, Openings, Setting
from bench.verification.recompute import NOTHING_ALTERED, read
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.plan.sample import AUDITED_PPM, INSPECTED_PPM
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.job.chunk import Opening
from nodewire.protocol.tensors.fingerprint import MILLION
from nodewire.protocol.verification import arithmetic
from nodewire.protocol.verification.comparison import compare
from processes.market import DECODER, DECODER_TARGET
from processes.progress import say

JUDGE = Setting(2, "avx2", frames="merged")
CHEATS: dict[str, tuple[str, Any]] = {
    "8-bit rows": ("bits", 8),
    "8-bit blocks of 32": ("blocks", 8),
    "8-bit floats (e4m3)": ("fp8", 0),
    "5-bit blocks of 32": ("blocks", 5),
    "4-bit blocks of 32": ("blocks", 4),
    "weights held in float16": ("cast", "float16"),
    "weights held in bfloat16": ("cast", "bfloat16"),
    "10 % of the weights pruned": ("pruned", 0.1),
    "30 % of the weights pruned": ("pruned", 0.3),
    "the last 128 positions alone": ("window", 128),  # more than a quick run has
    "the last 64 positions alone": ("window", 64),
    "keys and values of 8 bits": ("cache", 8),
}
HELD = ("weights held in float16", "weights held in bfloat16")
"""The checkpoint's numbers are bfloat16's: of these the second changes none, and the first next to none."""
ALWAYS = {
    "float32": ("8-bit rows", "8-bit blocks of 32", "8-bit floats (e4m3)", "5-bit blocks of 32", "4-bit blocks of 32",
                "10 % of the weights pruned", "30 % of the weights pruned"),
    "bfloat16": ("5-bit blocks of 32", "4-bit blocks of 32", "30 % of the weights pruned"),
}  # fmt: skip
"""Found in every struck chunk that a judge computes."""
SOLD = ("8-bit rows", "8-bit blocks of 32", "8-bit floats (e4m3)", "10 % of the weights pruned")
"""Of bfloat16: a chunk of fewer than 8 rows says nothing of these, and not every other is computed again."""
TOKENS_ALWAYS = tuple(name for name in leeway.CHEATS if "0.97" not in name and not name.startswith("top_"))
"""Cheats of a driver that are found in every struck chunk."""


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    convicted = 0
    with tempfile.TemporaryDirectory(prefix="nodewire-matrix-") as folder:
        for dtype in ("float32", "bfloat16"):
            if options.only not in dtype:
                continue
            model = await asyncio.to_thread(_model, Path(folder) / dtype, dtype, quick=report.quick)
            arm = report.arms[dtype] = await _stages(model)
            convicted += arm["honest"]["found"]
            tokens = await asyncio.to_thread(leeway.cheats, model)
            report.arms[f"{dtype} tokens"] = tokens
            for name in ALWAYS[dtype]:
                report.line(f"{dtype}: {name}", arm[name]["found"], "==", max(1, arm[name]["struck"]))
            for name in TOKENS_ALWAYS:
                report.line(f"{dtype}: {name}", tokens[name]["found"], "==", max(1, tokens[name]["chunks"]))
            for name in SOLD:
                report.line(f"{dtype}: {name}, in a job of 20 samples", arm[name]["found_in_20"], ">=", 0.95)
            idle = [name for name, row in arm.items() if not row["struck"] and name not in ("honest", *HELD)]
            report.line(f"{dtype}: cheats that struck nowhere", len(idle), "==", 1 if report.quick else 0)
    report.line("honest_chunks_convicted", convicted, "==", 0)


def _model(folder: Path, dtype: Any, *, quick: bool) -> Model:
    folder.mkdir()
    registered = split_decoder(
        DECODER, parse_size(DECODER_TARGET), folder, slots=4, options=DecoderOptions(dtype=dtype)
    )
    sessions = [
        ["prompt", prompt, {"max_tokens": 70 if quick else 200, "temperature": t, "top_p": 1.0, "seed": n, "stop": []}]
        for n, prompt in enumerate(PROMPTS[:2])
        for t in (0.0, 1.0)
    ]
    return Model.of(f"decoder {dtype}", folder, registered, sessions, ())


async def _stages(model: Model) -> dict[str, dict[str, Any]]:
    """By cheat, and for honest work: what becomes of its chunks."""
    recorded = model.openings(*read(await model.compute(Setting(), "recorded", record=True)))
    judge = model.openings(*read(await model.compute(JUDGE, "judge")))
    is_rounded = any(arithmetic.has_reference(model.manifest, task.name) for task in model.manifest.tasks)
    reference: Openings = {}
    if is_rounded:
        reference = model.openings(*read(await model.compute(Setting(reference=True), "reference")))
    stages = [key for key in recorded if model.manifest.task(key[1]).engine == "decoder.stage"]
    found = {"honest": _row(model, stages, recorded, judge, reference)}
    for number, (name, weights) in enumerate(CHEATS.items()):
        try:
            out = await model.compute(Setting(weights=weights), f"cheat-{number}", engine="decoder.stage")
        except RuntimeError as error:
            if NOTHING_ALTERED not in str(error):
                raise
            found[name] = _row(model, [], {}, judge, reference)
        else:
            theirs = model.openings(*read(out))
            struck = [key for key in stages if _hashes(theirs.get(key)) != _hashes(recorded[key])]
            found[name] = _row(model, struck, theirs, judge, reference)
        say(f"  {model.name}, {name}: {found[name]}")
    return found


def _hashes(opening: Opening | None) -> list[str]:
    return [tensor.sha256 for leaf in opening.leaves for tensor in leaf.tensors] if opening else []


def _row(model: Model, struck: Sequence[Key], theirs: Openings, judge: Openings, reference: Openings) -> dict[str, Any]:
    apart: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    ppm, excesses, found, drawn = [], [], 0, 0.0
    for key in struck:
        mine, other, exact = judge.get(key), theirs.get(key), reference.get(key)
        assert mine is not None
        assert other is not None
        distance = compare(model.manifest, key[1], mine, other)
        apart[distance.outcome] += 1
        ppm.append(distance.ppm)
        excess = arithmetic.excess_ppm(exact.leaves, mine.leaves, other.leaves) if exact is not None else None
        outcome = distance.outcome
        if excess is not None:
            excesses.append(excess)
            beside[arithmetic.outcome(excess)] += 1
            outcome = arithmetic.worse_outcome(outcome, excess)
        if outcome == "fail":
            found += 1
            is_suspect = arithmetic.is_suspect(mine.leaves, other.leaves)
            drawn += _computed_share(distance.outcome, is_suspect=excess is not None and is_suspect)
    of_drawn = drawn / len(struck) if struck else None
    return {
        "struck": len(struck),
        "found": found,
        "apart": dict(apart),
        "ppm": _spread(ppm),
        "beside_the_reference": dict(beside),
        "excess_ppm": _spread(excesses),
        "found_of_drawn": None if of_drawn is None else round(of_drawn, 4),
        "found_in_20": None if of_drawn is None else round(1 - (1 - of_drawn) ** 20, 4),
    }


def _computed_share(outcome: str, *, is_suspect: bool) -> float:
    """In what part of such samples oracles compute for themselves."""
    if outcome != "pass":
        return 1.0
    return (INSPECTED_PPM if is_suspect else AUDITED_PPM) / MILLION


def _spread(values: Sequence[int]) -> Mapping[str, int | None]:
    ordered = sorted(values)
    return {
        "min": ordered[0] if ordered else None,
        "median": ordered[len(ordered) // 2] if ordered else None,
        "max": ordered[-1] if ordered else None,
    }


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="the dtype whose name holds this: float32, bfloat16")


if __name__ == "__main__":
    run("matrix", __doc__, measure, add=_options)
