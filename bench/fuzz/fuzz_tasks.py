"""Hostile tasks and manifests: `python -m bench.fuzz.fuzz_tasks [--json] [--quick] [--seed N]`: `make fuzz-tasks`.

Whatever a stranger can make a provider load, changed or made by seeded choices (bench.fuzz.mutations,
bench.fuzz.hostile_tasks), is read by the very functions that a worker calls. Every case must end in a typed error that
names a part of the task, or be valid; and what is valid is run, twice, the second time over memory that holds no zeros:
both must say the same, and every value must have the dtype and shape that verification promised.

- bytes, document: well-formed programs with bytes or values changed.
- calls: any operators of the whitelist with any arguments. memory: the same on larger tensors, where the allocator's
  measured peak may not be above the predicted one.
- bombs: what costs most to refuse: petabytes, ranks, quadratic attention, 60,000 nodes, megabytes of empty lists.
- weights: safetensors files whose headers lie. frames: hostile frames for a loaded task. manifests: changed documents.
- worker: programs and weights of all kinds in real, capped, sandboxed workers, which must outlive them.

Cases run in processes of their own, in batches, under an audit hook (an exec, an import, any file but the weights
given, a socket or a process is a violation), a limit of address space, at most GROWN_BYTES more resident memory and
CASE_S seconds of processor time to read each. Where a process dies, the case that killed it is the fault; the rest
goes on.
`--only ARM --first NUMBER --cases 1` runs a case again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench.report import Report, run
from bench.tools.apart import Died, apart
from nodewire.graph.program.verification import MAX_VERIFY_S
from processes.progress import say

CASES = {"bytes": 15_000, "document": 20_000, "calls": 40_000, "memory": 4_000, "bombs": 4_000, "weights": 6_000,
         "frames": 5_000, "manifests": 4_000, "worker": 2_000}  # fmt: skip
QUICK = 50
BATCH = {"worker": 100, "bombs": 500, "memory": 1_000}
DEFAULT_BATCH = 2_500
GROWN_BYTES = 160 * 2**20
CASE_S = MAX_VERIFY_S + 8.0


async def read_apart(arm: str, first: int, count: int, seed: int, timeout_s: float = 1_800.0) -> list[dict[str, Any]]:
    """Cases first .. first + count - 1 in processes of their own: another one after each case that kills one."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nw-fuzz-") as folder:
        at = Path(folder) / "at"
        while count > 0:
            at.write_text(str(first))
            try:
                asked = [arm, first, count, seed, folder]
                said = await apart("bench.fuzz.fuzz_tasks_child", asked, timeout_s, {"MALLOC_PERTURB_": "90"})
            except Died as error:
                died = int(at.read_text())
                fault = f"{arm} {died}: {error}"
            else:
                return [*found, dict(said)]
            found.append(
                {"cases": died + 1 - first, "valid": 0, "typed": 0, "named": 0, "faulty": 1, "faults": [fault]}
            )
            count -= died + 1 - first
            first = died + 1
    return found


async def measure(report: Report, options: argparse.Namespace) -> None:
    totals: Counter[str] = Counter()
    slowest_s = grown_kb = 0.0
    together = asyncio.Semaphore(min(4, os.cpu_count() or 1))

    async def batch(arm: str, first: int, count: int) -> list[dict[str, Any]]:
        async with together:
            return await read_apart(arm, first, count, report.seed)

    for arm, wanted in CASES.items():
        if options.only not in ("", arm):
            continue
        count = options.cases or (max(20, wanted // QUICK) if report.quick else wanted)
        last, size = options.first + count, BATCH.get(arm, DEFAULT_BATCH)
        batches = [(at, min(size, last - at)) for at in range(options.first, last, size)]
        found = [one for many in await asyncio.gather(*(batch(arm, *one) for one in batches)) for one in many]
        said = {key: sum(one.get(key, 0) for one in found) for key in ("cases", "valid", "typed", "named", "faulty")}
        said["faults"] = [line for one in found for line in one["faults"]][:20]
        said["violations"] = [line for one in found for line in one.get("violations", ())][:20]
        for key in ("codes", "refused", "restrided"):
            counted: Counter[str] = sum((Counter(one.get(key, {})) for one in found), Counter())
            said[key] = dict(counted.most_common(40))
        for key in ("slowest_s", "grown_kb", "most_of_predicted"):
            said[key] = max((one.get(key, 0) for one in found), default=0)
        report.arms[arm] = said
        totals.update({key: said[key] for key in ("cases", "valid", "typed", "named", "faulty")})
        totals["violations"] += len(said["violations"])
        slowest_s, grown_kb = max(slowest_s, said["slowest_s"]), max(grown_kb, said["grown_kb"])
        found_bad = f"{said['faulty']} faults, {len(said['violations'])} violations"
        say(f"{arm}: {said['cases']} cases, {said['valid']} valid, {found_bad}")
    report.line("cases", totals["cases"], ">=", 1 if options.only or report.quick else sum(CASES.values()))
    report.line("neither_typed_nor_valid", totals["faulty"], "==", 0)
    report.line("executed_or_read", totals["violations"], "==", 0)
    report.line("refused_without_a_name", totals["typed"] - totals["named"], "==", 0)
    report.line("valid_and_as_promised", totals["valid"], ">", 0)
    report.line("most_memory_of_a_case_kb", grown_kb, "<=", GROWN_BYTES // 1024)
    report.line("slowest_case_s", slowest_s, "<=", CASE_S)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", choices=("", *CASES), help="one arm")
    parser.add_argument("--cases", type=int, default=0, help="how many of each arm")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of every arm")


if __name__ == "__main__":
    run("fuzz_tasks", __doc__, measure, add=_options)
