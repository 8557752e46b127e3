"""Malformed recipes, results and messages of training: `python -m bench.fuzz.fuzz_train [--json] [--quick] [--seed N]`.

Well-formed inputs of every kind that a stranger (or a user's file) can put before a customer or a provider are changed
by seeded choices (bench.fuzz.mutations) and read by the very functions that read them on the market. Every case must
end in a typed error (NodewireError) or be valid, and what is valid must be what it says: numbers of a recipe are
computed, an update's tensors have the model's shapes and are finite.

Cases run in processes of their own, in batches, under

- an audit hook: an exec, a compile, an import, a file opened for writing, a socket or a process is a violation;
- RLIMIT_AS: `HEADROOM_BYTES` above what a process has when it begins, whatever an input announces;
- the process's largest resident size, to which a case may add at most `GROWN_BYTES`;
- a case may take at most `CASE_S` seconds of processor time.

A fault is printed with its target and number: `--only TARGET --first NUMBER --cases 1` runs it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bench.report import Report, run
from bench.tools.apart import CHILD, Died, apart
from processes.progress import say

if TYPE_CHECKING:
    from bench.fuzz.training_targets import Target

CASES, QUICK_CASES = 100_000, 4_000
BATCH = 2_500
HEADROOM_BYTES = 512 * 2**20
GROWN_BYTES = 64 * 2**20
CASE_S = 1.0
LONGEST_ERROR = 1_000
FORBIDDEN = (
    "exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
    "socket.connect", "socket.bind", "marshal.loads", "pickle.find_class", "code.__new__", "ctypes.dlopen",
    "shutil.rmtree", "os.remove",
)  # fmt: skip


# In a process of its own.


class Guard:
    """Watches this process while a case is read: an audit hook and a limit of memory, neither to be taken back."""

    def __init__(self) -> None:
        self.case = ""
        """The one that is read; empty between cases."""
        self.violations: list[str] = []
        sys.addaudithook(self._hook)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM_BYTES, now + HEADROOM_BYTES))

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.case:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        if writes or event in FORBIDDEN:
            self.violations.append(f"{self.case}: {event} {str(arguments)[:100]}")


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def read_all(jobs: Sequence[tuple[str, int, int]], seed: int) -> list[dict[str, Any]]:
    """What became of each job's cases: of a target the numbers first .. first + count - 1."""
    from bench.fuzz import training_targets
    from nodewire.errors import NodewireError

    known = training_targets.targets()
    for name in {name for name, _, _ in jobs}:
        for number in range(50):  # what is imported late
            rng = random.Random(f"warm {name} {number}")
            with suppress(NodewireError):
                known[name].read(known[name].mutate(rng, rng.choice(known[name].seeds)))
    guard = Guard()
    return [_read(guard, name, known[name], first, count, seed) for name, first, count in jobs]


def _read(guard: Guard, name: str, target: Target, first: int, count: int, seed: int) -> dict[str, Any]:
    from nodewire.errors import NodewireError

    codes: Counter[str] = Counter()
    faults: list[str] = []
    valid = inputs = 0
    slowest = grown_kb = 0.0
    guard.violations.clear()
    before_kb = began_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {name} {number}")
        case = target.mutate(rng, rng.choice(target.seeds))
        inputs += len(case) if isinstance(case, bytes | str) else 0
        before_kb = max(before_kb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        guard.case = f"{name} {number}"
        began = time.process_time()
        try:
            target.read(case)
            valid += 1
        except NodewireError as error:
            codes[error.code] += 1
            if len(str(error)) > LONGEST_ERROR:
                faults.append(f"{name} {number}: an error of {len(str(error))} characters")
        except BaseException as error:  # noqa: BLE001 - any exception is a finding
            faults.append(f"{name} {number}: {type(error).__name__}: {str(error)[:160]}")
        took, guard.case = time.process_time() - began, ""
        slowest = max(slowest, took)
        if took > CASE_S:
            faults.append(f"{name} {number}: {took:.2f} s")
        now_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown_kb = max(grown_kb, now_kb - before_kb)
        if (now_kb - before_kb) * 1024 > GROWN_BYTES:
            faults.append(f"{name} {number}: {now_kb - before_kb} KiB more")
    return {
        "cases": count,
        "valid": valid,
        "typed": sum(codes.values()),
        "codes": dict(codes.most_common()),
        "faults": faults[:20],
        "faulty": len(faults),
        "violations": guard.violations[:20],
        "slowest_s": round(slowest, 4),
        "grown_kb": round(grown_kb),
        "all_grown_kb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kb),
        "input_bytes": inputs,
    }


# From outside.


async def read_apart(jobs: Sequence[tuple[str, int, int]], seed: int, timeout_s: float = 900.0) -> list[dict[str, Any]]:
    """`read_all` in a process of its own; where that died, all its cases are faults."""
    try:
        return list(await apart("bench.fuzz.fuzz_train", [list(jobs), seed], timeout_s))
    except Died as died:
        nothing = {"valid": 0, "typed": 0, "codes": {}, "violations": [], "slowest_s": 0.0, "grown_kb": 0}
        return [
            {**nothing, "cases": count, "faults": [f"{name} from {first} on: {died}"], "faulty": count,
             "all_grown_kb": 0, "input_bytes": 0}
            for name, first, count in jobs
        ]  # fmt: skip


NAMES = (
    "recipe.toml", "recipe.json", "recipe.msgpack", "recipe.packed", "recipe.document", "update.f32", "update.int8",
    "update.int4", "update.topk8", "update.topk2", "shard.arrays", "shard.bytes", "shard.tokens", "shard.pairs",
    "theta",
    "blob.sealed", "ticket", "request", "result", "result.opening", "progress", "feedback", "round.closed",
    "audit.asked",
    "audit.showing",
    "trainer.ad",
)  # fmt: skip


async def measure(report: Report, options: argparse.Namespace) -> None:
    names = [name for name in NAMES if not options.only or name == options.only]
    cases = options.cases or (QUICK_CASES if report.quick else CASES)
    each = -(-cases // len(names))
    whole: Counter[str] = Counter()
    slowest = grown_kb = 0.0
    for name in names:
        found = []
        for first in range(options.first, options.first + each, BATCH):
            count = min(BATCH, options.first + each - first)
            found += await read_apart([(name, first, count)], report.seed)
        arm = {key: sum(one[key] for one in found) for key in ("cases", "valid", "typed", "faulty", "input_bytes")}
        codes = sum((Counter(one["codes"]) for one in found), Counter())
        arm |= {"codes": dict(codes.most_common()), "slowest_s": max(one["slowest_s"] for one in found)}
        arm |= {key: max(one[key] for one in found) for key in ("grown_kb", "all_grown_kb")}
        for key in ("faults", "violations"):
            if lines := [line for one in found for line in one[key]]:
                arm[key] = lines[:20]
        whole.update({key: arm[key] for key in ("cases", "valid", "typed", "faulty", "input_bytes")})
        whole["violations"] += len(arm.get("violations", ()))
        slowest, grown_kb = max(slowest, arm["slowest_s"]), max(grown_kb, arm["grown_kb"])
        report.arms[name] = arm
        say(f"{name}: {arm['cases']} cases, {arm['valid']} valid, {arm['faulty']} faults")
    report.line("cases", whole["cases"], ">=", cases)
    report.line("neither_typed_nor_valid", whole["faulty"], "==", 0)
    report.line("executed_or_written", whole["violations"], "==", 0)
    report.line("most_memory_of_a_case_kb", grown_kb, "<=", GROWN_BYTES // 1024)
    report.line("slowest_case_s", slowest, "<=", CASE_S)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, default=0, help=f"how many in all (default {CASES}, quick {QUICK_CASES})")
    parser.add_argument("--only", default="", help="one target")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of every target")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(read_all(*json.loads(sys.argv[2]))))
        sys.exit()
    run("fuzz_train", __doc__, measure, add=_options)
