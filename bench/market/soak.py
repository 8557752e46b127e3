"""What grows while a market works: `python -m bench.market.soak [--json] [--quick] [--seconds N]`, or `make soak`.

One customer buys short generations, chunks of which are sampled, one after another from honest providers with bonds.
Every few seconds every process is looked at: relay, simulated Lightning network, four oracles, providers and their
workers, and the customer, which is this one. The first third of the time warms everything up (caches fill, spools reach
what they keep for ten epochs). Growth is the median of the last sixth less the median of the sixth after the warm-up,
of each role the process that grew most.

Acceptance: what a process should give back (memory, files, threads, tasks, spooled frames) may grow by a little
in all and by next to nothing a job. What is kept on purpose (books, evidence, blobs) may grow by so much a job and
by so much an epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.report import Report, run, spread
from bench.tools.jobs import PROMPTS, generate
from bench.tools.task_counter import FOLDER, objects, tasks
from nodewire import Customer
from processes.market import Market, ProviderSetup
from processes.progress import say

COUNTED = (sys.executable, "-m", "bench.tools.task_counter")
SECONDS, QUICK_SECONDS = 600, 90
EVERY_S = 2.0
TOKENS = 24
JOB_S = 60.0
BOND_SATS = 20_000
CUSTOMER = "ada"
MANY = 200
"""So many more objects of a type are told of, which says where to look."""
LEVELS = ("rss_kb", "files", "threads", "tasks", "spool_kb")
"""What should come to rest. `tasks` are asyncio's."""
KEPT = ("books_kb", "blobs_kb", "log_kb")
"""What is kept: in SQLite databases, blobs on disk, what is logged."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may come on top after the warm-up: in all, for each job, for each epoch."""

    once: float
    job: float = 0.0
    epoch: float = 0.0

    def of(self, jobs: int, epochs: float) -> float:
        return self.once + self.job * jobs + self.epoch * epochs


BOUNDS: Mapping[str, Bound] = {
    "rss_kb": Bound(6_000, job=4),
    "files": Bound(128),  # so many a spool keeps open
    "threads": Bound(4),
    "tasks": Bound(24),
    "spool_kb": Bound(2_000),
    "books_kb": Bound(2_000, job=64, epoch=64),
    "blobs_kb": Bound(1_000, job=32, epoch=64),
    "log_kb": Bound(64, job=2, epoch=2),
}


@dataclass(slots=True)
class Sample:
    """What the processes were at a moment: by process, by measure. `names` has the tasks by coroutine."""

    at_s: float
    jobs: int
    seen: dict[str, dict[str, float]]
    names: dict[str, dict[str, int]] = field(default_factory=dict)


def role_of(process: str) -> str:
    """`oracle` for oracle-3, `worker` for a process that a provider started."""
    name = process.partition("/")
    return "worker" if name[1] else name[0].partition("-")[0]


def grown(samples: Sequence[Sample]) -> tuple[dict[str, dict[str, tuple[float, str]]], int, float]:
    """By role and measure the growth and whose it was; the jobs and the seconds that it took.

    A process that is not there all the time (a worker that was replaced) is left out.
    """
    begun = samples[len(samples) // 3 :]
    part = max(1, len(begun) // 4)
    early, late = begun[:part], begun[-part:]
    jobs = round(median(one.jobs for one in late) - median(one.jobs for one in early))
    seconds = median(one.at_s for one in late) - median(one.at_s for one in early)
    found: dict[str, dict[str, tuple[float, str]]] = defaultdict(dict)
    for process in set.intersection(*(set(one.seen) for one in (*early, *late))):
        for measure in early[0].seen[process]:
            values = [[one.seen[process].get(measure, 0.0) for one in half] for half in (early, late)]
            more = median(values[1]) - median(values[0])
            known = found[role_of(process)].get(measure)
            if known is None or more > known[0]:
                found[role_of(process)][measure] = (more, process)
    return found, jobs, seconds


class Looker:
    """Looks at the processes of a market from outside, and at this one."""

    def __init__(self, market: Market, counts: Path) -> None:
        self._market, self._counts = market, counts
        self._began = time.monotonic()

    async def look(self, jobs: int) -> Sample:
        pids = self._ask(signal.SIGUSR1)
        await asyncio.sleep(0.5)  # they answer when their loops come to it
        seen, names = {}, {}
        for name, pid in pids.items():
            names[name] = self._told(pid, "tasks")
            seen[name] = {**_process(pid), "tasks": sum(names[name].values()), **self._disk(name)}
            for number, worker in enumerate(sorted(_descendants(pid))):
                seen[f"{name}/{number}"] = _process(worker)
        names[CUSTOMER] = tasks()
        seen[CUSTOMER] = {**_process(os.getpid()), "tasks": sum(names[CUSTOMER].values()), **self._disk(CUSTOMER)}
        return Sample(time.monotonic() - self._began, jobs, seen, names)

    async def objects(self) -> dict[str, dict[str, int]]:
        """What every process has of objects, by type."""
        pids = self._ask(signal.SIGUSR2)
        await asyncio.sleep(3)
        return {**{name: self._told(pid, "objects") for name, pid in pids.items()}, CUSTOMER: objects()}

    def _ask(self, number: signal.Signals) -> dict[str, int]:
        pids = {name: p.pid for name, p in self._market.processes.items() if p.returncode is None}
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def _told(self, pid: int, kind: str) -> dict[str, int]:
        try:
            return dict(json.loads((self._counts / f"{pid}.{kind}.json").read_text()))
        except FileNotFoundError:
            return {}

    def _disk(self, name: str) -> dict[str, float]:
        folder = self._market.folder
        places = {
            "relay": [folder / "relay.db", folder / "relay.db-wal", folder / "blobs"],
            "simnet": [folder / "simnet.db", folder / "simnet.db-wal"],
        }
        if name.startswith("oracle-"):
            places[name] = [folder / "committee" / name]
        found = dict.fromkeys(("books_kb", "blobs_kb", "spool_kb"), 0.0)
        for path in _files(places.get(name, [folder / name])):
            kind = "spool_kb" if "spool" in path.parts else "books_kb" if _is_book(path) else "blobs_kb"
            with suppress(FileNotFoundError):
                found[kind] += (_used_bytes(path) if kind == "books_kb" else path.stat().st_size) / 1024
        with suppress(FileNotFoundError):
            found["log_kb"] = (folder / f"{name}.log").stat().st_size / 1024
        return found


def _files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        else:
            yield from (path for path in place.rglob("*") if path.is_file())


def _is_book(path: Path) -> bool:
    return any(part in path.name for part in (".db", ".sqlite"))


def _used_bytes(path: Path) -> int:
    """What a SQLite database's pages hold, those in its log too, of which the file itself has any number."""
    if path.suffix not in (".db", ".sqlite"):
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1)) as db:
            pages, free, size = (
                int(db.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
    except sqlite3.Error:
        return path.stat().st_size
    return (pages - free) * size


def _process(pid: int) -> dict[str, float]:
    """Nothing of one that has gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            said = dict(line.split(":", 1) for line in file)
        return {
            "rss_kb": float(said["VmRSS"].split()[0]),
            "threads": float(said["Threads"]),
            "files": float(len(os.listdir(f"/proc/{pid}/fd"))),
        }
    except (OSError, KeyError):
        return {}


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in map(int, file.read().split()):
                    found |= {child} | _descendants(child)
    return found


async def measure(report: Report, options: argparse.Namespace) -> None:
    seconds = options.seconds or (QUICK_SECONDS if report.quick else SECONDS)
    rng = random.Random(report.seed)
    with tempfile.TemporaryDirectory(prefix="nodewire-soak-") as root:
        counts = Path(root) / "counts"
        counts.mkdir()
        os.environ[FOLDER] = str(counts)
        async with Market(
            Path(root) / "market",
            providers=options.providers,
            committee=("--verify-rate", "20%"),
            setup=ProviderSetup(bond_sats=BOND_SATS),
            program=COUNTED,
        ) as market:
            try:
                await _soak(report, market, counts, rng, seconds)
            finally:
                if options.keep:
                    shutil.copytree(market.folder, options.keep, dirs_exist_ok=True)


class Jobs:
    """Generations that one customer buys one after another, and what came of them so far."""

    def __init__(self, customer: Customer, model: str, rng: random.Random) -> None:
        self.done = 0
        self.errors = Counter[str]()
        self.took_s: list[float] = []
        self._customer, self._model, self._rng = customer, model, rng
        self._terms = customer.terms.model_copy(update={"verify": "sampled"})

    async def buy(self) -> None:
        """Buy one; after an error, pause."""
        prompt = self._rng.choice(PROMPTS)
        job = await generate(self._customer, self._model, prompt, TOKENS, timeout_s=JOB_S, terms=self._terms)
        if job.error:
            self.errors[job.error.partition(":")[0]] += 1
            await asyncio.sleep(1)
        else:
            self.done += 1
            self.took_s.append(time.monotonic() - job.asked)


class Watch:
    """Looks at all processes every few seconds; once it is warm, and at the end, at their objects."""

    def __init__(self, looker: Looker, jobs: Jobs, warm_s: float) -> None:
        """`warm_s`: when the warm-up is over, by the monotonic clock."""
        self.samples: list[Sample] = []
        self.before: dict[str, dict[str, int]] = {}
        """The objects after the warm-up, by process."""
        self._looker, self._jobs, self._warm_s = looker, jobs, warm_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self.before and time.monotonic() > self._warm_s:
                self.before = await self._looker.objects()
            self.samples.append(await self._looker.look(self._jobs.done))
            await asyncio.sleep(EVERY_S)


async def _soak(report: Report, market: Market, counts: Path, rng: random.Random, seconds: float) -> None:
    async with market.customer(CUSTOMER) as customer:
        looker = Looker(market, counts)
        say(f"jobs for {seconds:.0f} s")
        jobs = Jobs(customer, str(market.models["pycoder"]["address"]), rng)
        until = time.monotonic() + seconds
        watch = Watch(looker, jobs, time.monotonic() + seconds / 3)
        looking = asyncio.create_task(watch.run())
        try:
            while time.monotonic() < until and not looking.done():
                await jobs.buy()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        if not looking.cancelled():
            looking.result()
        after = await looker.objects()
    _report(report, market, jobs, watch, after)


def _report(report: Report, market: Market, jobs: Jobs, watch: Watch, after: Mapping[str, Mapping[str, int]]) -> None:
    """`after`: the objects at the end, by process."""
    samples, failed = watch.samples, sum(jobs.errors.values())
    say(f"{jobs.done} jobs, {failed} failed")
    found, measured, span_s = grown(samples)
    epochs = span_s / market.epoch_s
    report.arms["soak"] = {
        "jobs": jobs.done,
        "failed": dict(jobs.errors),
        "job_s": spread(jobs.took_s),
        "measured": {"jobs": measured, "seconds": round(span_s, 1), "epochs": round(epochs, 1)},
        "bounds": {name: asdict(bound) for name, bound in BOUNDS.items()},
        "growth": {
            role: {
                measure: {
                    "grew": round(more, 1),
                    "a_job": round(more / max(measured, 1), 2),
                    "at_last": round(samples[-1].seen.get(process, {}).get(measure, 0.0), 1),
                    "process": process,
                }
                for measure, (more, process) in sorted(of_role.items())
            }
            for role, of_role in sorted(found.items())
        },
        "more_tasks": _more(samples[len(samples) // 3].names, samples[-1].names, 3),
        "more_objects": _more(watch.before, after, MANY),
    }
    report.line("jobs", measured, ">=", 10)
    report.line("failed", failed, "<=", jobs.done * 0.02)
    for measure in (*LEVELS, *KEPT):
        bound = BOUNDS[measure]
        worst = max((of_role[measure][0], role) for role, of_role in found.items() if measure in of_role)
        say(f"{measure}: {worst[1]} grew by {worst[0]:.1f}")
        report.line(measure, round(worst[0], 1), "<=", round(bound.of(measured, epochs), 1))


def _more(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]], least: int
) -> dict[str, dict[str, int]]:
    """By process, of what there are at least so many more after than before, the most first; at most ten."""
    found = {}
    for process, counts in after.items():
        more = {name: count - before.get(process, {}).get(name, 0) for name, count in counts.items()}
        most = sorted((name for name, count in more.items() if count >= least), key=lambda name: -more[name])
        if most:
            found[process] = {name: more[name] for name in most[:10]}
    return found


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=0, help=f"how long; {SECONDS}, or {QUICK_SECONDS} with --quick"
    )
    parser.add_argument("--providers", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="copy the market's logs, books and blobs there at the end")


if __name__ == "__main__":
    run("soak", __doc__, measure, add=_options)
