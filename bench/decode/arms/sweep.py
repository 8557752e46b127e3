"""The best settings of each driver of `bench.decode` for a ring, by simulation
(`bench.decode.emulation.virtual`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.decode.emulation.drivers import Arm, driver_of, window
from bench.decode.emulation.virtual import Run, alone

KS, QUICK_KS = (1, 2, 3, 4, 6, 8, 12, 16, 24), (2, 8)
FILLS, QUICK_FILLS = (0.25, 0.4, 0.6, 0.8, 1.0), (0.6, 1.0)
LOOKAHEADS, QUICK_LOOKAHEADS = (32, 64, 128, 256), (128,)
"""What is more than fills the ring only queues."""


def settings(arm: str, stage_ms: float, *, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Those that are tried."""
    fills = QUICK_FILLS if quick else FILLS
    match arm:
        case "synchronous":
            yield from ({"k": k} for k in KS)
        case "overlapping":
            for k in QUICK_KS if quick else KS:
                depths = {window(stage_ms, k + 1, fill) for fill in fills}
                yield from ({"k": k, "depth": depth} for depth in sorted(depths))
        case "ours":
            yield from ({"lookahead": lookahead} for lookahead in (QUICK_LOOKAHEADS if quick else LOOKAHEADS))
        case _:
            yield {}


def simulated_per_s(arm: Arm, stage_ms: float, tokens: int) -> float:
    """Tokens a second. Raises AssertionError: they are not the decoder's."""
    driver, truth = driver_of(arm, stages=1)
    run = Run(driver, tokens)
    alone(run, stage_ms, relayed=arm["arm"] == "relayed")
    assert driver.tokens == truth.tokens(len(driver.tokens))
    return run.per_s


def best(arm: str, stage_ms: float, alpha: float, *, seed: int, tokens: int, quick: bool = False) -> dict[str, Any]:
    """The quickest settings: an Arm, and its rate as `per_s`."""
    tried = []
    for setting in settings(arm, stage_ms, quick=quick):
        one = {"arm": arm, "seed": seed, "alpha": alpha, **setting}
        tried.append({**one, "per_s": simulated_per_s(one, stage_ms, tokens)})
    return max(tried, key=lambda one: float(one["per_s"]))
