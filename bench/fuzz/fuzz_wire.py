"""Malformed frames and handshakes: `python -m bench.fuzz.fuzz_wire [--json] [--quick] [--seed N]`: `make fuzz-wire`.

- decoder: streams of frames, spoilt by seeded choices (bench.fuzz.wire.spoilt_streams), are read by the bare Decoder
  and by a plain reader that shares no code with it; both must find the same, and end at the same place.
- node: such streams come over a link to a Node (bench.fuzz.wire.readers) from a peer that produces on one edge of a
  job. What comes out of the job's mailbox must be what the streams hold under that edge's right names, in order; of
  others' frames in that job nothing else may come, and in another job all of theirs must.
- auth, certificate, greeting: handshakes that are not what they must be (bench.fuzz.wire.strangers), over TLS and
  through shared memory: none may be let in, and every tenth, which is right, must be.
- floods: what a peer may do to fill a node's memory (bench.fuzz.wire.floods), each in a process of its own, against
  twice what the wire says that it keeps.

A stream counts as one frame however many in it are spoilt. Every case must end in a typed error or be valid. Cases
run in processes of their own under a limit of memory. A fault is printed with its arm and number:
`--only ARM --first NUMBER --cases 1` runs it again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.fuzz.wire import floods, spoilt_streams, streams
from bench.fuzz.wire.readers import Fault, Reader, decoded
from bench.fuzz.wire.strangers import Doors
from bench.report import Report, run
from bench.tools.apart import CHILD, Died, apart
from processes.progress import say

CASES = {"decoder": 700_000, "node": 300_000, "auth": 4_500, "certificate": 4_000, "greeting": 1_500}
QUICK_CASES = {"decoder": 4_000, "node": 2_000, "auth": 100, "certificate": 100, "greeting": 60}
BATCH = {"decoder": 50_000, "node": 25_000, "auth": 750, "certificate": 1_000, "greeting": 500}
HANDSHAKES = ("auth", "certificate", "greeting")
FAIR = 10
"""Of so many handshakes one is right; they are not counted."""
HEADROOM_BYTES = 512 * 2**20
GROWN_BYTES = 32 * 2**20
"""That one case may add to a process's largest resident size."""
_TOGETHER = 8  # handshakes at a time

Case = Callable[[int, random.Random, tuple[str, bytes]], Awaitable[str]]


async def cases(arm: str, first: int, count: int, seed: int) -> dict[str, Any]:
    """What became of an arm's cases first .. first + count - 1."""
    faults: list[str] = []
    kinds: Counter[str] = Counter()
    grown_kb = delivered = 0
    async with AsyncExitStack() as stack:
        case, reader = await _case(arm, stack)
        _limit_memory()
        limit = asyncio.Semaphore(_TOGETHER)

        async def one(number: int) -> None:
            nonlocal grown_kb
            async with limit:
                rng = random.Random(f"{seed} {arm} {number}")
                stream = ("", b"") if arm in HANDSHAKES else spoilt_streams.spoilt(rng)
                before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                try:
                    kinds[await case(number, rng, stream)] += 1
                except Fault as fault:
                    faults.append(f"{arm} {number}: {fault}")
                except Exception as error:  # noqa: BLE001 - any exception is a finding
                    faults.append(f"{arm} {number}: {type(error).__name__}: {str(error)[:160]}")
                more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
                grown_kb = max(grown_kb, more_kb)
                if more_kb * 1024 > GROWN_BYTES:
                    faults.append(f"{arm} {number}: {more_kb} KiB more")

        if arm in HANDSHAKES:
            await asyncio.gather(*(one(number) for number in range(first, first + count)))
        else:
            for number in range(first, first + count):
                await one(number)
        delivered = reader.delivered if reader is not None else 0
    return {
        "cases": count, "faulty": len(faults), "faults": faults[:20], "kinds": dict(kinds.most_common()),
        "grown_kb": grown_kb, "delivered": delivered,
    }  # fmt: skip


async def _case(arm: str, stack: AsyncExitStack) -> tuple[Case, Reader | None]:
    """What runs a case, and the node that it is run on."""
    if arm in HANDSHAKES:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nw-")))
        doors = await stack.enter_async_context(Doors(folder))

        async def shaken(number: int, rng: random.Random, _: tuple[str, bytes]) -> str:
            return await doors.case(arm, rng, fair=number % FAIR == 0)

        return shaken, None
    if arm == "decoder":

        async def read(number: int, rng: random.Random, spoilt: tuple[str, bytes]) -> str:
            return f"{spoilt[0]}: {decoded(rng, spoilt[1]) or 'valid'}"

        return read, None
    node = await stack.enter_async_context(Reader())
    for pieces, packed in zip(streams.STREAMS, streams.PACKED, strict=True):
        if streams.is_harmless(pieces):
            await node.whole(random.Random(0), packed)

    async def sent(number: int, rng: random.Random, spoilt: tuple[str, bytes]) -> str:
        return f"{spoilt[0]}: {await node.case(rng, spoilt[1]) or 'linked'}"

    return sent, node


def _limit_memory() -> None:
    gc.collect()
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM_BYTES, now + HEADROOM_BYTES))


# From outside.


async def cases_apart(arm: str, first: int, count: int, seed: int, timeout_s: float = 1_800.0) -> dict[str, Any]:
    """`cases`, or with the name of a flood that, in a process of its own; where it died, all are faults."""
    try:
        return dict(await apart("bench.fuzz.fuzz_wire", [arm, first, count, seed], timeout_s))
    except Died as died:
        return {"cases": count, "faulty": count, "faults": [f"{arm} from {first} on: {died}"], "kinds": {},
                "grown_kb": 0, "delivered": 0, "grown_bytes": None}  # fmt: skip


async def measure(report: Report, options: argparse.Namespace) -> None:
    counts = QUICK_CASES if report.quick else CASES
    arms = [arm for arm in counts if options.only in ("", arm)]
    together = asyncio.Semaphore(os.cpu_count() or 1)

    async def batch(arm: str, first: int, count: int) -> dict[str, Any]:
        async with together:
            return await cases_apart(arm, first, count, report.seed)

    for arm in arms:
        wanted = options.cases or counts[arm]
        # So many that are spoilt, beside those that are right.
        count = -(-wanted * FAIR // (FAIR - 1)) if arm in HANDSHAKES and not options.cases else wanted
        last = options.first + count
        batches = [(first, min(BATCH[arm], last - first)) for first in range(options.first, last, BATCH[arm])]
        found = await asyncio.gather(*(batch(arm, *one) for one in batches))
        report.arms[arm] = _summed(found)
        say(f"{arm}: {report.arms[arm]['cases']} cases, {report.arms[arm]['faulty']} faults")
    frames = sum(report.arms[arm]["cases"] for arm in arms if arm not in HANDSHAKES)
    right = sum(count for arm in arms for kind, count in report.arms[arm]["kinds"].items() if kind.endswith(".fair"))
    handshakes = sum(report.arms[arm]["cases"] for arm in arms if arm in HANDSHAKES) - right
    if not options.only:
        report.line("frames", frames, ">=", sum(counts[arm] for arm in counts if arm not in HANDSHAKES))
        report.line("handshakes", handshakes, ">=", sum(counts[arm] for arm in HANDSHAKES))
        report.line("right_handshakes", right, ">", 0)
        report.line("delivered_of_spoilt_streams", report.arms["node"]["delivered"], ">", 0)
    report.line("faults", sum(report.arms[arm]["faulty"] for arm in arms), "==", 0)
    grown_kb = max((report.arms[arm]["grown_kb"] for arm in arms), default=0)
    report.line("most_memory_of_a_case_kb", grown_kb, "<=", GROWN_BYTES // 1024)
    for name, flood in floods.FLOODS.items() if not options.only else ():
        grown = (await cases_apart(name, 0, 1, report.seed)).get("grown_bytes")
        report.arms.setdefault("floods", {})[name] = {"kept_bytes": flood.kept_bytes, "grown_bytes": grown}
        report.line(f"flood_{name}_bytes", grown, "<=", floods.bound(flood))


def _summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = sum((Counter(one["kinds"]) for one in found), Counter())
    return {
        **{key: sum(one[key] for one in found) for key in ("cases", "faulty", "delivered")},
        "grown_kb": max(one["grown_kb"] for one in found),
        "kinds": dict(sorted(kinds.items())),
        "faults": [line for one in found for line in one["faults"]][:20],
    }


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", choices=("", *CASES), help="one arm")
    parser.add_argument("--cases", type=int, default=0, help="how many of each arm")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of every arm")


def _child(arm: str, first: int, count: int, seed: int) -> dict[str, Any]:
    if arm in floods.FLOODS:
        return {"grown_bytes": asyncio.run(floods.grown(arm))}
    return asyncio.run(cases(arm, first, count, seed))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(_child(*json.loads(sys.argv[2]))))
        sys.exit()
    run("fuzz_wire", __doc__, measure, add=_options)
