"""Many streams on the ring of `bench.decode.arms.ring` at once, and prompts that enter beside a running one.

Stages compute what waits of different sessions together (`bench.decode.emulation.stage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bench.decode.arms.ring import Ring, per_s
from bench.decode.emulation.drivers import Arm
from bench.report import Report, percentile
from processes.progress import say

STREAMS = 16
STAGE_MS = 3.0
TOKENS, QUICK_TOKENS, CONTROL_TOKENS = 60, 12, 8
PROMPT_TOKENS, BLOCK = 4_096, 64


def gaps_ms(came_s: Sequence[float]) -> list[float]:
    """Between a token and the next."""
    return [(b - a) * 1_000 for a, b in pairwise(came_s)]


def _told(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    gaps = [ms for one in found for ms in gaps_ms(one["came_s"])]
    return {
        "per_s": round(sum(per_s(one["came_s"]) for one in found), 2),
        "gap_p50_ms": round(percentile(gaps, 50) or 0.0, 1),
        "gap_p95_ms": round(percentile(gaps, 95) or 0.0, 1),
    }


async def measure_crowd(report: Report, ring: Ring) -> None:
    """Line 5."""
    tokens = QUICK_TOKENS if report.quick else TOKENS
    stream = {"arm": "plain", "seed": report.seed, "alpha": 0.8, "tokens": tokens}
    prompt = {"arm": "prompt", "seed": report.seed, "alpha": 0.8, "size": PROMPT_TOKENS}
    crowds: dict[str, list[Arm]] = {
        "one": [stream],
        "sixteen": [{**stream, "seed": report.seed + number} for number in range(STREAMS)],
        "beside_prompts": [stream, {**prompt, "block": BLOCK}],
    }
    if not report.quick:
        control = [{**stream, "tokens": CONTROL_TOKENS}, {**prompt, "block": PROMPT_TOKENS}]
        crowds["beside_whole_prompts"] = control
    told: dict[str, dict[str, float]] = {}
    differ = 0
    for name, arms in crowds.items():
        found = await ring.run(arms, STAGE_MS, batches=True)
        told[name] = _told(found)
        differ += sum(one["differ"] for one in found)
        say(f"{name}: {told[name]}")
    report.arms["crowd"] = {"stage_ms": STAGE_MS, "prompt_tokens": PROMPT_TOKENS, "block": BLOCK, **told}
    one, sixteen, beside = told["one"], told["sixteen"], told["beside_prompts"]
    report.line("crowd_tokens_that_differ", differ, "==", 0)
    report.line("sixteen_streams_over_one", round(sixteen["per_s"] / one["per_s"], 2), ">=", 8)
    report.line("sixteen_gap_p95_over_one", round(sixteen["gap_p95_ms"] / one["gap_p95_ms"], 3), "<=", 1.5)
    report.line("gap_p95_beside_prompts_over_alone", round(beside["gap_p95_ms"] / one["gap_p95_ms"], 3), "<=", 2)
