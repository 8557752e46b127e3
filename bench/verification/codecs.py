"""What narrowing an edge costs, saves and spoils: `python -m bench.verification.codecs [--json] [--quick]`.

Cost: frames of 64 KiB to 1 MiB of float32 narrowed and widened again, codecs in turn, beside the time that their bytes
take less at 20 and 100 Mbit/s.

Quality: the demo's decoder, cut as the demo cuts it, every task in the market's worker process, and all edges between
tasks narrowed. Text of Python's standard library is fed token by token, as a job's frames go round: how much worse the
next tokens are foretold (nats a token), and in what share of places the likeliest is another. Then greedy generations
by the ring itself, beside the unsplit loop: without a codec they are its tokens.

Verification: tasks computed again on other settings of the machine (bench.verification.honest), their outputs narrowed,
compared as verifiers do: honest ones beside each other, and cheats beside honest ones.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.report import Report, run
from bench.tools.jobs import PROMPTS
from bench.verification.honest import (
    CHEATED,
    QUICK,
    Model,
    Setting,
    Tallies,
    models,
    narrowed,
    perturbations,
    perturbed,
    plain,
)
from bench.verification.recompute import read
from nodewire.kind import Limits, Registration, TaskSession
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.model.edge_codec import CODECS, OWN, Codec, Codings, can_narrow, codings, sent_as
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.tensors.frame import MXINT8, Array, Frame, bytes_of
from nodewire.protocol.verification.comparison import NARROWED
from nodewire.worker import WorkerProcess
from nodewire.worker.process.edge_codec import of_blocks
from processes.market import DECODER, DECODER_DTYPE, DECODER_TARGET
from processes.progress import say

KIB = 1_024
SIZES = (64 * KIB, 256 * KIB, KIB * KIB)
WIDTH = 4_096
MBITS = (20, 100)
WINDOW = 160
TEXTS = ("textwrap.py", "bisect.py", "fnmatch.py", "shelve.py", "sched.py", "queue.py", "colorsys.py", "contextlib.py")
SETTINGS = (*QUICK, Setting(2, "none"), Setting(2, frames="whole"))
COARSE = ("a layer left out", "random numbers", "the input", "4-bit weights", "noise of 20.00%")
"""Cheats that no rounding may hide, at a decoder's stages: some of an encoder's graphs have no layer, or give zeros."""


def cost(report: Report) -> dict[str, Any]:
    """Medians by codec and size, and the largest part of what is saved at 100 Mbit/s."""
    found: dict[str, Any] = {}
    rounds = 20 if report.quick else 200
    for codec, size in itertools.product(CODECS, SIZES):
        tensor = torch.randn(size // 4 // WIDTH, WIDTH, generator=torch.Generator().manual_seed(report.seed))
        dtype = sent_as("float32", codec)
        raw = narrowed(tensor, dtype)
        took: dict[str, list[float]] = {"narrow": [], "widen": []}
        for _ in range(rounds):
            began = time.perf_counter()
            narrowed(tensor, dtype)
            between = time.perf_counter()
            widened(raw, dtype, tensor.shape)
            took["narrow"].append(between - began)
            took["widen"].append(time.perf_counter() - between)
        ms = {what: statistics.median(times) * 1_000 for what, times in took.items()}
        sent = bytes_of(dtype, tensor.shape)
        saved = {f"{mbit} Mbit/s": (size - sent) * 8 / mbit / 1_000 for mbit in MBITS}
        found.setdefault(codec, {})[f"{size // KIB} KiB"] = {
            "bytes": sent,
            "bytes_ratio": round(size / sent, 4),
            **{f"{what}_ms": round(value, 4) for what, value in ms.items()},
            "saved_ms": {link: round(value, 3) for link, value in saved.items()},
            "part_of_saved": {link: round(sum(ms.values()) / value, 4) for link, value in saved.items()},
        }
    return found


def widened(raw: Tensor, dtype: str, shape: Sequence[int]) -> Tensor:
    return of_blocks(raw, shape, torch.float32) if dtype == MXINT8 else raw.float()


class Ring:
    """The decoder's tasks in a worker process, under the codings of one codec."""

    def __init__(self, made: Registration, worker: WorkerProcess, codings: Codings) -> None:
        self.manifest, self.worker, self.codings = made.manifest, worker, codings
        self._target = {edge.name: edge.target for edge in made.manifest.edges}
        self._sessions: dict[str, TaskSession] = {}
        """By task."""

    async def open(self, session: str, params: Mapping[str, Any]) -> None:
        for task in self.manifest.tasks:
            self._sessions[task.name] = await self.worker.open(task.name, session, params, self.codings)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def tokens(self, prompt: str, count: int) -> list[int]:
        """A greedy generation."""
        await self.open("tokens", {"max_tokens": count, "temperature": 0.0})
        text, ids = prompt.encode(), []
        waiting = [Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0})]
        while waiting:
            frame = waiting.pop(0)
            if self._target[frame.edge] == CUSTOMER:
                ids.append(int.from_bytes(frame.tensors[0].data, "little"))
            else:
                waiting += await self._sessions[self._target[frame.edge]].receive(frame)
        await self.close()
        return ids

    async def returns(self, hidden: Sequence[Tensor]) -> list[Tensor]:
        """What the last stage returns to the driver for each position [1, 1, width], fed one after the other."""
        await self.open("fed", {"max_tokens": 1})
        found = []
        for pos, x in enumerate(hidden):
            meta = {"pos": pos, "chunk": 0, "tokens": 1}
            frame = Frame("hidden.0", pos, plain(Frame("hidden.0", pos, (x,)), self.codings).tensors, meta)
            while (task := self._target[frame.edge]) != self.manifest.driver.name:
                [frame] = await self._sessions[task].receive(frame)
            [array] = frame.tensors
            raw = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
            own = raw if array.dtype == MXINT8 else raw.view(getattr(torch, array.dtype)).view(array.shape)
            found.append(widened(own, array.dtype, array.shape))
        await self.close()
        return found


def narrowing(manifest: Manifest, codec: Codec) -> Codings:
    """Every edge narrowed that may be."""
    return codings(manifest, {edge.name: codec for edge in manifest.edges if can_narrow(edge, codec)})


async def quality(report: Report) -> dict[str, Any]:
    whole = LocalDecoder(DECODER, dtype=DECODER_DTYPE, threads=1)
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [
        whole.tokenizer.encode((library / name).read_text())[:WINDOW] for name in TEXTS[: 2 if report.quick else None]
    ]
    prompts, count = PROMPTS[: 2 if report.quick else None], 32 if report.quick else 128
    alone = [
        list(whole.tokens(whole.tokenizer.encode(p), parse_params({"max_tokens": count}, whole.positions)))
        for p in prompts
    ]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nodewire-codecs-") as folder:
        made = split_decoder(
            DECODER, parse_size(DECODER_TARGET), Path(folder), slots=2, options=DecoderOptions(dtype=DECODER_DTYPE)
        )
        worker = await WorkerProcess.start("kinds.k8843_worker", Limits(2**30), readable=[Path(folder)])
        try:
            for task in made.manifest.tasks:
                weights = [made.blobs[weight.sha256] for weight in task.weights]
                await worker.load(task.name, task.engine, made.blobs[task.program.sha256], weights)
            likeliest: dict[str, list[int]] = {}
            for name, coded in {"own": OWN, **{codec: narrowing(made.manifest, codec) for codec in CODECS}}.items():
                ring = Ring(made, worker, coded)
                losses, likeliest[name] = await _foretold(ring, whole, texts)
                generated = [await ring.tokens(prompt, count) for prompt in prompts]
                same = sum(a == b for a, b in zip(likeliest[name], likeliest["own"], strict=True))
                found[name] = {
                    "positions": len(losses),
                    "loss": round(statistics.fmean(losses), 5),
                    "perplexity": round(math.exp(statistics.fmean(losses)), 4),
                    "likeliest_agree": round(same / len(losses), 5),
                    "generations": len(generated),
                    "generations_equal": sum(a == b for a, b in zip(generated, alone, strict=True)),
                    "tokens_until_another": [_until_another(a, b) for a, b in zip(generated, alone, strict=True)],
                }
                say(f"{name}: {found[name]}")
        finally:
            await worker.stop()
    return {"tasks": len(made.manifest.tasks), **found}


async def _foretold(ring: Ring, whole: LocalDecoder, texts: Sequence[Sequence[int]]) -> tuple[list[float], list[int]]:
    """Of every position but the last of each text: the loss of the token that follows, and the likeliest token."""
    losses, likeliest = [], []
    for ids in texts:
        hidden = whole.vocabulary.embed(torch.tensor(ids[:-1])).split(1, dim=1)
        for back, token in zip(await ring.returns(hidden), ids[1:], strict=True):
            logits = whole.vocabulary.logits(back)
            losses.append(float(-logits.log_softmax(0)[token]))
            likeliest.append(int(logits.argmax()))
    return losses, likeliest


def _until_another(mine: Sequence[int], theirs: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), len(theirs))


async def verification(report: Report, only: str) -> dict[str, Any]:
    """By model and codec, what became of honest comparisons and of cheats."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nodewire-codecs-") as folder:
        for model in await asyncio.to_thread(models, Path(folder), quick=True):
            if only not in model.name:
                continue
            recorded = read(await model.compute(Setting(), "recorded", record=True))
            settings = SETTINGS if model.manifest.mode == "generate" else SETTINGS[:1]
            again = [read(await model.compute(s, f"again-{n}")) for n, s in enumerate(settings)]
            cheats = {**CHEATED, "a layer left out": Setting(weights=("skip", model.skip))}
            wrong = {
                name: read(await model.compute(setting, f"cheat-{n}"))
                for n, (name, setting) in enumerate(cheats.items())
                if not (setting.half and "bfloat16" in model.name)
            }
            say(f"{model.name}: computed {1 + len(again) + len(wrong)} times")
            for codec in CODECS:
                coded = narrowing(model.manifest, codec)
                if coded:
                    found[f"{model.name}, {codec}"] = _judged(model, coded, recorded, again, wrong)
    return found


def _judged(
    model: Model, coded: Codings, recorded: Any, again: Sequence[Any], wrong: Mapping[str, Any]
) -> dict[str, Any]:
    tasks = {edge.source for edge in model.manifest.edges if edge.name in coded} - {model.manifest.driver.name}

    def openings(calls: Any, tensors: Any) -> Any:
        return model.openings([call for call in calls if call["task"] in tasks], tensors, coded)

    honest, cheated = Tallies(), {}
    computed = [openings(*one) for one in (recorded, *again)]
    for mine, theirs in itertools.combinations(computed, 2):
        honest.compare(model, mine, theirs, "honest")
    theirs = {name: openings(*one) for name, one in wrong.items()}
    theirs |= {name: perturbed(model, recorded, make, coded) for name, make in perturbations().items()}
    for name, one in theirs.items():
        tally = Tallies()
        kept = {key: opening for key, opening in one.items() if key[1] in tasks}
        tally.compare(model, {key: computed[-1][key] for key in kept}, kept, name)
        cheated[name] = _told(tally)
    made = {pair for coding in coded.values() for pair in coding} & NARROWED.keys()
    tolerance = NARROWED[made.pop()]
    said = {"pass_ppm": tolerance.pass_ppm, "fail_ppm": tolerance.fail_ppm, "honest": _told(honest), "cheats": cheated}
    say(f"  {coded and next(iter(coded.values()))}: {said['honest']}")
    for name, one in cheated.items():
        say(f"    {name}: {one}")
    return said


def _told(tallies: Tallies) -> dict[str, Any]:
    ppm = sorted(ppm for tally in tallies.values() for ppm in tally.ppm)
    outcomes: Counter[str] = sum((tally.outcomes for tally in tallies.values()), Counter())
    return {
        "outcomes": dict(outcomes),
        "ppm": {"min": ppm[0], "p50": ppm[len(ppm) // 2], "max": ppm[-1]} if ppm else {},
        "identical": sum(one == 0 for one in ppm),
    }


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    report.arms["cost"] = costs = cost(report)
    for codec, least in (("bf16", 1.99), ("int8", 3.8)):
        by_size = costs[codec].values()
        report.line(f"{codec}_bytes_ratio", min(one["bytes_ratio"] for one in by_size), ">=", least)
        worst = max(one["part_of_saved"]["100 Mbit/s"] for one in by_size)
        report.line(f"{codec}_cost_part_of_time_saved_at_100_mbit", worst, "<=", 0.1)
    report.arms["quality"] = found = await quality(report)
    report.line("own_generations_equal", found["own"]["generations_equal"], "==", found["own"]["generations"])
    for codec, most, least in (("bf16", 0.01, 0.98), ("int8", 0.03, 0.95)):
        report.line(f"{codec}_loss_more_nats", round(found[codec]["loss"] - found["own"]["loss"], 5), "<=", most)
        report.line(f"{codec}_likeliest_agree", found[codec]["likeliest_agree"], ">=", least)
    report.arms["verification"] = judged = await verification(report, options.only)
    honest = sum((Counter(one["honest"]["outcomes"]) for one in judged.values()), Counter())
    report.line("honest_comparisons", honest.total(), ">=", 100)
    report.line("honest_false_fails", honest["fail"], "==", 0)
    report.line("honest_in_doubt", honest["grey"], "==", 0)
    stages = [one["cheats"] for name, one in judged.items() if name.startswith("decoder")]
    coarse = sum((Counter(cheats[name]["outcomes"]) for cheats in stages for name in COARSE), Counter())
    report.line("coarse_cheats_that_fail", coarse["fail"] / max(1, coarse.total()), "==", 1)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="verify models whose name holds this: decoder, bfloat16, encoder")


if __name__ == "__main__":
    run("codecs", __doc__, measure, add=_options)
