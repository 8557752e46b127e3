"""How far an honest driver's token is from another machine's choice: `python -m bench.leeway [--json] [--quick]`.

The demo's decoder, in float32 and in bfloat16, generates greedily and by sampling. Its driver then judges every token
from the very frames that the driver took, in processes with other thread counts and instruction sets, with and without
oneDNN. A token that it would not have chosen itself has a gap: the least error of differences between logits with which
it is the choice (`nodewire/llm/leeway.py`), here as a part of the largest logit.

Lines: tokens judged, honest tokens that were not excused, and the largest honest gap as a part of what is excused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import torch

from bench.honest import QUICK, SETTINGS, Model, Setting, models
from bench.recompute import read
from bench.report import Report, run
from nodewire.llm.leeway import EXCUSED
from nodewire.protocol import choices
from processes.saying import say

DRIVER = "decoder.driver"


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    judged, refused, parts = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="nodewire-leeway-") as folder:
        for model in await asyncio.to_thread(models, Path(folder), quick=report.quick):
            if model.manifest.mode == "generate":
                dtype = torch.bfloat16 if "bfloat16" in model.name else torch.float32
                arm = await _one(model, EXCUSED[dtype], quick=report.quick)
                report.arms[model.name] = arm
                judged, refused = judged + arm["judged"], refused + arm["refused"]
                parts.append(arm["largest_gap"] / EXCUSED[dtype])
    report.line("tokens_judged", judged, ">=", 500 if report.quick else 10_000)
    report.line("honest_tokens_not_excused", refused, "==", 0)
    report.line("largest_honest_gap_as_a_part_of_what_is_excused", round(max(parts), 4), "<=", 0.5)


async def _one(model: Model, excused: float, *, quick: bool) -> dict[str, float]:
    """One model's tokens, judged in every setting."""
    calls, _ = read(await model.compute(Setting(), "recorded", record=True))
    edge = choices.tokens_edge(model.manifest, model.manifest.driver.name)
    tokens = sum(head["edge"] == edge for call in calls for head in call["outs"] or ())
    gaps: list[float] = []
    settings = [one for one in (QUICK if quick else SETTINGS) if one.frames == "single" or quick]
    for number, setting in enumerate(settings):
        out = await model.compute(setting, f"judged-{number}", engine=DRIVER)
        found = json.loads(out.with_suffix(".leeway.json").read_text())
        gaps += found
        say(f"  {model.name}, {setting}: {len(found)} of {tokens} others, the largest gap {max(found, default=0):.3g}")
    return {
        "judged": tokens * len(settings),
        "others": len(gaps),
        "largest_gap": max(gaps, default=0.0),
        "refused": sum(gap > excused for gap in gaps),
        "excused": excused,
    }


if __name__ == "__main__":
    run("leeway", __doc__, measure)
