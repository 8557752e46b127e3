"""Hostile GGUF files: `python -m bench.fuzz.fuzz_gguf [--json] [--quick] [--seed N]`: `make fuzz-gguf`.

A well-formed file of a small Llama is changed, or made anew, by seeded choices (bench.fuzz.mutations,
bench.fuzz.hostile_gguf), and read as `nodewire register` reads it: chat template, configuration, tensors, tokenizer; of
what is valid every tensor's numbers. Every case must end in a typed error that names a part of the file, or be valid,
with as many numbers in each tensor as it said.

- bytes: bytes of the file changed, cut or doubled. header: magic, version, counts, lengths, alignment, files cut short.
- metadata: keys that are gone, doubled, of other types and values. tensors: other shapes, types, names and places.
- tokenizer: tokens, merges, scores, kinds and special tokens that do not fit together; templates.

Cases run in processes of their own, in batches, under an audit hook (a process, a socket, an import or any file but the
one given is a violation), a limit of address space, at most GROWN_BYTES more resident memory and CASE_S seconds of
processor time for each. Where a process dies, the case that killed it is the fault; the rest goes on.
`--only ARM --first NUMBER --cases 1` runs a case again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.fuzz import hostile_gguf as hostile
from bench.fuzz import mutations
from bench.fuzz.fuzz_train import FORBIDDEN
from bench.report import Report, run
from bench.tools.apart import CHILD, Died, apart
from nodewire.errors import NodewireError
from processes.progress import say

CASES = {"bytes": 20_000, "header": 15_000, "metadata": 30_000, "tensors": 20_000, "tokenizer": 15_000}
QUICK = 50
BATCH = 5_000
WARM = 60
HEADROOM_BYTES = 2**30
GROWN_BYTES = 64 * 2**20
CASE_S = 5.0


async def read_apart(arm: str, first: int, count: int, seed: int, timeout_s: float = 1_800.0) -> list[dict[str, Any]]:
    """Cases first .. first + count - 1 in processes of their own: another one after each case that kills one."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nw-gguf-") as folder:
        at = Path(folder) / "at"
        while count > 0:
            at.write_text(str(first))
            try:
                said = await apart("bench.fuzz.fuzz_gguf", [arm, first, count, seed, folder], timeout_s)
            except Died as error:
                died = int(at.read_text())
                fault = f"{arm} {died}: {error}"
            else:
                return [*found, dict(said)]
            found.append({"cases": died + 1 - first, "valid": 0, "typed": 0, "named": 0, "faults": [fault]})
            count -= died + 1 - first
            first = died + 1
    return found


class Cases:
    """An arm's cases, and what became of them."""

    def __init__(self, arm: str, folder: Path) -> None:
        self.arm, self.path, self.watched = arm, folder / "model.gguf", ""
        self.file = hostile.small()
        self.good = self.file.encode()
        self.violations: list[str] = []

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watched and ((event == "open" and str(arguments[0]) != str(self.path)) or event in FORBIDDEN):
            self.violations.append(f"{self.watched}: {event} {str(arguments)[:100]}")

    def made(self, rng: random.Random) -> bytes:
        match self.arm:
            case "bytes":
                return mutations.of_bytes(rng, self.good, [self.good])
            case "header":
                return hostile.header(rng, self.file)
            case "metadata":
                return hostile.metadata(rng, self.file)
            case "tensors":
                return hostile.tensors(rng, self.file)
        return hostile.tokenizers(rng, self.file)

    def read(self, rng: random.Random) -> None:
        """Raises NodewireError; AssertionError: a tensor is not what was said."""
        from nodewire.chat.folder import chat_template
        from nodewire.llm.checkpoint.checkpoint import open_checkpoint
        from nodewire.llm.tokens.tokenizer import Tokenizer

        chat_template(self.path)
        checkpoint = open_checkpoint(self.path, in_blocks=rng.random() < 0.5)
        for stored in checkpoint.tensors.values():
            assert sum(len(octets) for octets in stored.octets()) == stored.nbytes, "another number of bytes"
        tokenizer = Tokenizer(checkpoint.tokenizer)
        tokenizer.decode(tokenizer.encode("the end of it, 1 2 3"))


def in_process(cases: Cases, first: int, count: int, seed: int, at: Path) -> dict[str, Any]:
    codes: Counter[str] = Counter()
    faults: list[str] = []
    valid = named = 0
    slowest_s = grown_kb = 0.0
    for number in range(WARM):  # what is imported late
        _one(cases, random.Random(f"warm {number}"))
    sys.addaudithook(cases.hook)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM_BYTES, now + HEADROOM_BYTES))
    descriptor = os.open(at, os.O_WRONLY)
    for number in range(first, first + count):
        os.pwrite(descriptor, f"{number:<12}".encode(), 0)
        rng = random.Random(f"{seed} {cases.arm} {number}")
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        data = cases.made(rng)
        cases.path.write_bytes(data)
        began_s, cases.watched = time.process_time(), f"{cases.arm} {number}"
        found = _read(cases, rng)
        cases.watched = ""
        took_s, more_kb = time.process_time() - began_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        if found is None:
            valid += 1
        elif isinstance(found, NodewireError):
            codes[found.code] += 1
            named += bool(found.field) and len(str(found)) < 1_000
        else:
            faults.append(f"{cases.arm} {number}: {type(found).__name__}: {found}"[:300])
        if took_s > CASE_S or more_kb > GROWN_BYTES // 1_024:
            faults.append(f"{cases.arm} {number}: took {took_s:.1f} s and {more_kb} kB more")
        slowest_s, grown_kb = max(slowest_s, took_s), max(grown_kb, more_kb)
    return {
        "cases": count, "valid": valid, "typed": sum(codes.values()), "named": named, "faults": faults,
        "violations": cases.violations, "codes": dict(codes), "slowest_s": slowest_s, "grown_kb": grown_kb,
    }  # fmt: skip


def _one(cases: Cases, rng: random.Random) -> None:
    cases.path.write_bytes(cases.made(rng))
    _read(cases, rng)
    cases.path.write_bytes(cases.good)
    _read(cases, rng)


def _read(cases: Cases, rng: random.Random) -> BaseException | None:
    try:
        cases.read(rng)
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        return error
    except BaseException as error:  # a panic of the tokenizers library
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return error
    return None


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
        last = options.first + count
        batches = [(at, min(BATCH, last - at)) for at in range(options.first, last, BATCH)]
        found = [one for many in await asyncio.gather(*(batch(arm, *one) for one in batches)) for one in many]
        said: dict[str, Any] = {key: sum(one[key] for one in found) for key in ("cases", "valid", "typed", "named")}
        for key in ("faults", "violations"):
            every = [line for one in found for line in one.get(key, ())]
            totals[key] += len(every)
            said[key] = every[:20]
        said["codes"] = dict(sum((Counter(one.get("codes", {})) for one in found), Counter[str]()))
        for key in ("slowest_s", "grown_kb"):
            said[key] = max(one.get(key, 0) for one in found)
        report.arms[arm] = said
        totals.update({key: said[key] for key in ("cases", "valid", "typed", "named")})
        slowest_s, grown_kb = max(slowest_s, said["slowest_s"]), max(grown_kb, said["grown_kb"])
        say(f"{arm}: {said['cases']} cases, {said['valid']} valid, {len(said['faults'])} faults")
    report.line("cases", totals["cases"], ">=", 1 if options.only or report.quick else sum(CASES.values()))
    report.line("neither_typed_nor_valid", totals["faults"], "==", 0)
    report.line("executed_or_read", totals["violations"], "==", 0)
    report.line("refused_without_a_name", totals["typed"] - totals["named"], "==", 0)
    report.line("valid_and_as_said", totals["valid"], ">", 0)
    report.line("most_memory_of_a_case_kb", grown_kb, "<=", GROWN_BYTES // 1024)
    report.line("slowest_case_s", slowest_s, "<=", CASE_S)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", choices=("", *CASES), help="one arm")
    parser.add_argument("--cases", type=int, default=0, help="how many of each arm")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of every arm")


if __name__ == "__main__":
    if CHILD in sys.argv:
        asked = json.loads(sys.argv[-1])
        where = Path(asked[4])
        print(json.dumps(in_process(Cases(asked[0], where), asked[1], asked[2], asked[3], where / "at")))
    else:
        run("fuzz_gguf", __doc__, measure, add=_options)
