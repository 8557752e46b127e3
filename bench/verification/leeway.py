"""How far an honest driver's token is from another machine's choice: `python -m bench.verification.leeway [--json]
[--quick]`.

The demo's decoder, in float32 and in bfloat16, generates greedily and by sampling. Its driver then judges every token
from the very frames that the driver took, in processes with other thread counts and instruction sets, with and without
oneDNN, and with a head in float64, which rounds nothing: no machine is further from another than twice from that one. A
token that the judge would not have chosen has a gap: the least error of differences between logits with which it is the
choice (`nodewire/llm/tokens/leeway.py`), here as a part of what is excused.

Then drivers cheat, and an honest one judges them. Of the chunks in which a cheat altered a token: in how many one is
not excused. What is excused is not detectable.

Lines: tokens judged, honest tokens that were not excused, the largest honest gap as a part of what is excused, and
whether every cheat altered a token.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.report import Report, run
from bench.verification import recompute
from bench.verification.honest import QUICK, SETTINGS, Model, Setting, models
from bench.verification.recompute import Call, read
from nodewire.llm.tokens import sampler
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.job.chunk import chunk_of
from nodewire.protocol.verification import choices
from processes.progress import say

DRIVER = "decoder.driver"
Choose = Callable[[Tensor, Sampling, int], int]
Tokens = dict[tuple[str, int], int]
"""By session and number."""
honest_choice = sampler.choose  # type: ignore[attr-defined]


def second_best(is_due: Callable[[int], bool]) -> Choose:
    """At positions that are due, the likeliest token that is not the choice."""

    def choose(logits: Tensor, sampling: Sampling, pos: int) -> int:
        first = honest_choice(logits, sampling, pos)
        return next(int(one) for one in logits.topk(2).indices if int(one) != first) if is_due(pos) else first

    return choose


def sampled(**changes: Any) -> Choose:
    """Other sampling than was asked for, where any was."""

    def choose(logits: Tensor, sampling: Sampling, pos: int) -> int:
        changed = {name: value(sampling) if callable(value) else value for name, value in changes.items()}
        return honest_choice(logits, sampling if sampling.temperature == 0 else replace(sampling, **changed), pos)

    return choose


def _hundredth(pos: int) -> bool:
    return int.from_bytes(hashlib.sha256(b"due/%d" % pos).digest()[:4], "big") < 2**32 // 100


def of_64(count: int) -> Choose:
    """The second-best at so many positions of 64, one after the other."""
    return second_best(lambda pos: pos % 64 < count)


CHEATS: dict[str, Choose] = {
    "another token, one of 64": lambda logits, sampling, pos: (
        int(logits.topk(20).indices[-1]) if pos % 64 == 40 else honest_choice(logits, sampling, pos)
    ),
    "the second-best, one of 64": second_best(lambda pos: pos % 64 == 40),
    "the second-best, 3 of 64": of_64(3),
    "the second-best, 6 of 64": of_64(6),
    "the second-best, 7 of 64": of_64(7),
    "the second-best, 1 %": second_best(_hundredth),
    "temperature 0.97 for 1": sampled(temperature=0.97),
    "temperature 0.9 for 1": sampled(temperature=0.9),
    "temperature 0.8 for 1": sampled(temperature=0.8),
    "greedy for 1": sampled(temperature=1e-3),
    "top_k 20": sampled(top_k=20),
    "top_p 0.9 for 1": sampled(top_p=0.9),
    "another seed": sampled(seed=lambda sampling: sampling.seed + 1),
}


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    judged, refused, parts = 0, 0, [0.0]
    struck = []
    with tempfile.TemporaryDirectory(prefix="nodewire-leeway-") as folder:
        for model in await asyncio.to_thread(models, Path(folder), quick=report.quick):
            if model.manifest.mode != "generate" or options.only not in model.name:
                continue
            arm = await _honest(model, quick=report.quick)
            judged, refused = judged + arm["judged"], refused + arm["refused"]
            parts.append(arm["largest_gap"])
            altered = await asyncio.to_thread(cheats, model)
            struck += [cheat["chunks"] for cheat in altered.values()]
            report.arms[model.name] = {"honest": arm, "cheats": altered}
    report.line("tokens_judged", judged, ">=", 1 if options.only else 500 if report.quick else 10_000)
    report.line("honest_tokens_not_excused", refused, "==", 0)
    report.line("largest_honest_gap_as_a_part_of_what_is_excused", round(max(parts), 4), "<=", 0.5)
    report.line("cheats_that_altered_no_token", sum(chunks == 0 for chunks in struck), "==", 0)


async def _honest(model: Model, *, quick: bool) -> dict[str, float]:
    """One model's tokens, judged in every setting."""
    calls, _ = read(await model.compute(Setting(), "recorded", record=True))
    edge = choices.tokens_edge(model.manifest, model.manifest.driver.name)
    tokens = sum(head["edge"] == edge for call in calls for head in call["outs"] or ())
    gaps: list[float] = []
    settings = [one for one in (QUICK if quick else SETTINGS) if one.frames == "single" or quick]
    settings.append(Setting(head="double"))
    for number, setting in enumerate(settings):
        out = await model.compute(setting, f"judged-{number}", engine=DRIVER)
        found = json.loads(out.with_suffix(".leeway.json").read_text())
        gaps += found
        what = f"{setting}, head {setting.head}"
        say(f"  {model.name}, {what}: {len(found)} of {tokens} others, the largest gap {max(found, default=0):.3g}")
    return {
        "judged": tokens * len(settings),
        "others": len(gaps),
        "largest_gap": max(gaps, default=0.0),
        "refused": sum(gap > 1 for gap in gaps),
    }


def cheats(model: Model) -> dict[str, dict[str, int]]:
    """By cheat: chunks and tokens that it altered, and those of them that an honest driver does not excuse."""
    found = {}
    actors = {task.name: recompute._load(task, model.folder, 1, half=False) for task in model.manifest.tasks}
    driver = model.manifest.driver.name
    for name, choose in CHEATS.items():
        altered: set[tuple[str, int]] = set()
        with _choosing(choose, altered):
            recompute.record(model.manifest, actors, model.inputs, model.folder / "cheated")
        said = _tokens(model, *read(model.folder / "cheated"))
        recompute.replay(
            model.manifest, {driver: actors[driver]}, model.folder / "cheated", model.folder / "judged", "single"
        )
        judged = _tokens(model, *read(model.folder / "judged"))
        wrong = {place for place, token in said.items() if judged.get(place) != token}
        struck = altered & said.keys()
        chunks = {_chunk(model, place) for place in struck}
        caught = chunks & {_chunk(model, place) for place in wrong}
        found[name] = {
            "chunks": len(chunks),
            "found": len(caught),
            "tokens": len(struck),
            "tokens_not_excused": len(struck & wrong),
        }
        say(f"  {model.name}, {name}: {found[name]}")
    return found


def _chunk(model: Model, place: tuple[str, int]) -> tuple[str, int]:
    return place[0], chunk_of(model.manifest, place[1])


def _tokens(model: Model, calls: list[Call], tensors: dict[str, Tensor]) -> Tokens:
    edge = choices.tokens_edge(model.manifest, model.manifest.driver.name)
    return {
        (call["session"], head["seq"]): int(tensors[head["tensors"][0]][0])
        for call in calls
        for head in call["outs"] or ()
        if head["edge"] == edge
    }


@contextmanager
def _choosing(choose: Choose, altered: set[tuple[str, int]]) -> Iterator[None]:
    """Every driver of this process chooses so; into `altered` go the places of tokens that are not the choice. Sessions
    come one after the other, as they are recorded."""
    first: dict[int, tuple[str, int, Sampling]] = {}

    def cheating(logits: Tensor, sampling: Sampling, pos: int) -> int:
        token = choose(logits, sampling, pos)
        session, began, _ = first.setdefault(id(sampling), (f"s{len(first)}", pos, sampling))
        if token != honest_choice(logits, sampling, pos):
            altered.add((session, pos - began))
        return token

    sampler.choose = cheating  # type: ignore[attr-defined]
    try:
        yield
    finally:
        sampler.choose = honest_choice  # type: ignore[attr-defined]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="models whose name holds this: float32, bfloat16")


if __name__ == "__main__":
    run("leeway", __doc__, measure, add=_options)
