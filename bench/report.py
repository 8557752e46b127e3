"""What every bench prints: one JSON document of arms and acceptance lines, and what makes its exit code.

0: all lines are ok. 1: one is not; standard error names it. 77: what could be measured is ok, and something needs what
this machine lacks; standard error says what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from processes.progress import STARTED_S, say

SKIPPED = 77
"""What automake, meson and others take for a test that could not be run."""
Relation = Literal["==", "<=", "<", ">=", ">"]
_HOLDS: dict[Relation, Callable[[float, float], bool]] = {
    "==": lambda value, bound: value == bound,
    "<=": lambda value, bound: value <= bound,
    "<": lambda value, bound: value < bound,
    ">=": lambda value, bound: value >= bound,
    ">": lambda value, bound: value > bound,
}


@dataclass
class Report:
    """One bench's document as it grows. `arms` holds what was measured, `summary` what it is held against."""

    bench: str
    seed: int
    quick: bool
    arms: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: str = ""
    """What this machine lacks for the rest of it."""

    def line(self, name: str, value: float | None, relation: Relation, bound: float) -> None:
        """An acceptance line. A value that could not be measured (None, not a number) is not ok."""
        measured = value is not None and math.isfinite(value)
        ok = measured and value is not None and _HOLDS[relation](value, bound)
        self.summary[name] = {"value": value if measured else None, "bound": f"{relation} {bound:g}", "ok": ok}

    def skip(self, needs: str) -> None:
        """Leave out what this machine cannot measure."""
        self.skipped = f"needs {needs}"

    @property
    def ok(self) -> bool:
        return bool(self.summary) and all(line["ok"] for line in self.summary.values())

    @property
    def code(self) -> int:
        """With which the bench exits."""
        if self.skipped and (self.ok or not self.summary):
            return SKIPPED
        return 0 if self.ok else 1

    def document(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "machine": machine(),
            "seed": self.seed,
            "quick": self.quick,
            "seconds": round(time.monotonic() - STARTED_S, 1),
            "arms": self.arms,
            "summary": self.summary,
            **({"skipped": self.skipped} if self.skipped else {}),
        }


Measure = Callable[[Report, argparse.Namespace], Awaitable[None]]


def run(
    name: str, about: str | None, measure: Measure, *, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> None:
    """The main function of a bench: parse the options, measure, print, exit.

    A bench that breaks off, by an error or a signal, still prints what it has, with the line `finished` not ok.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="the document on one line, and on stderr only what is not ok"
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: whether it works, not how well")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    if add is not None:
        add(parser)
    options = parser.parse_args()
    report = Report(name, options.seed, options.quick)
    say(f"{name}: seed {options.seed}{', quick' if options.quick else ''}")
    try:
        asyncio.run(_measured(report, options, measure))
    except (KeyboardInterrupt, asyncio.CancelledError):
        report.summary["finished"] = {"value": "interrupted", "bound": "finished", "ok": False}
    print(json.dumps(report.document(), indent=None if options.json else 1), flush=True)
    for line, said in report.summary.items():
        if not (options.json and said["ok"]):
            print(f"{'ok    ' if said['ok'] else 'NOT OK'} {line}: {said['value']} ({said['bound']})", file=sys.stderr)
    if report.skipped:
        print(f"skipped: {report.skipped}", file=sys.stderr)
    sys.exit(report.code)


async def _measured(report: Report, options: argparse.Namespace, measure: Measure) -> None:
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: what was started is stopped
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    try:
        await measure(report, options)
    except Exception as error:  # noqa: BLE001 - the report says what broke it off
        report.summary["finished"] = {"value": f"{type(error).__name__}: {error}"[:300], "bound": "", "ok": False}
        say(f"broke off: {type(error).__name__}: {error}")


def machine() -> dict[str, Any]:
    """What ran it, as far as figures depend on it."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of all do not exceed (nearest rank); None of none."""
    if not values:
        return None
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, median, p95 and maximum."""
    return {
        "n": len(values),
        "p50": _rounded(percentile(values, 50)),
        "p95": _rounded(percentile(values, 95)),
        "max": _rounded(max(values, default=None)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
