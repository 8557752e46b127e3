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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fuzz import mutations
from bench.report import Report, run
from bench.tools.apart import CHILD, Died, apart
from processes.progress import say

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


@dataclass(frozen=True, slots=True)
class Target:
    """What is read: `seeds` are well-formed, `mutate` changes one of them, `read` raises or returns."""

    seeds: Sequence[Any]
    mutate: Callable[[random.Random, Any], Any]
    read: Callable[[Any], None]


def targets() -> dict[str, Target]:
    """All of them, by name. Everything that reading needs is imported here."""
    import torch

    from nodewire.errors import BadInput
    from nodewire.nostr import event as events
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.job import feedback
    from nodewire.protocol.model.manifest import BlobRef
    from nodewire.store import sealed_blobs
    from nodewire.training.engine import data, state
    from nodewire.training.engine.families import initial
    from nodewire.training.engine.update import compression as compress
    from nodewire.training.protocol import audit, round_close, trainer_ad
    from nodewire.training.protocol import result as delivery
    from nodewire.training.protocol import round as rounds
    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.result import DeliveryDetails, Progress
    from nodewire.training.protocol.round import Round, RoundTicket, ShardAssignment
    from nodewire.training.protocol.trainer_ad import Trainer
    from tests.kinds.digits import TOML
    from tests.training.engine import recipes

    torch.set_num_threads(1)
    me, other = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
    known = [recipes.recipe(name) for name in recipes.NAMES]
    small = recipes.recipe("mlp")
    hash_, at = "ab" * 32, 1_700_000_000

    def sums_of(recipe: Recipe) -> None:
        assert recipe.memory_bytes() > 0 and recipe.flops_per_round() > 0 and recipe.upload_bytes() > 0
        assert recipe.trained() == sum(map(_product, recipe.shapes().values()))
        assert len(recipe.digest()) == 64
        again = Recipe.unpack(recipe.pack())
        assert again == recipe and rounds.work_gflop(recipe, recipe.steps) >= 0
        try:
            rounds.check_supported(recipe)
        except BadInput:
            return

    def a_ticket(recipe: Recipe) -> RoundTicket:
        keys = {"theta_key": "01" * 32, "theta_sha256": hash_, "shard_key": "02" * 32, "shard_sha256": hash_}
        return RoundTicket(request="0" * 64, index=0, salt="5a" * 32, recipe=recipe.document(), **keys)

    blob = BlobRef(sha256=hash_, bytes=100)
    shard_of = [
        ShardAssignment(
            index=index, provider=keys.public, data=blob, steps=20, gflop=3, price_msat=1_000, deposit_msat=250,
            ticket=a_ticket(small).seal(),
        )
        for index, keys in enumerate((me, other))
    ]  # fmt: skip
    round_ = Round(
        job=rounds.job_of(me.public, "5a" * 32), round=3, seal=rounds.seal_of(hash_, "5a" * 32), theta=blob,
        shards=tuple(shard_of), previous="ee" * 32, deadline_s=60,
    )  # fmt: skip
    said, content = rounds.tags_and_content(round_, relays=("ws://r",))
    request = events.sign(me, 8841, created_at=at, tags=said, content=content)
    opening = DeliveryDetails(
        key="01" * 32, sha256=hash_, bytes=5_000, samples=640, losses=(1, 2, 3), states=(hash_,) * 4
    )
    commitment = opening.commitment(other.public, request.id, 3, 0)
    goods = delivery.Goods(commitment, blob, 750, "x")
    result = delivery.build(other, 8841, request.id, me.public, goods, created_at=at)
    shown = [audit.SnapshotCiphertext(segment=n, blob=blob, key="03" * 32, sha256=hash_) for n in range(3)]
    due = feedback.Due(0, 0, 1, 250, hash_)
    say_due = feedback.build(other, request.id, me.public, "payment-required", created_at=at, due=due, kind=8841)
    ad = Trainer(
        name="ada", kinds=(8840, 8841), families=("mlp",), msat_per_pflop=5, gflops=50, memory_bytes=10**9,
        most_bytes=10**8, concurrency=2, lnurl="https://ada.example/pay",
    )  # fmt: skip
    counted = round_close.CountedResult(
        request=request.id, provider=other.public, index=0, result=result.id, commitment=commitment
    )
    close = round_close.Close(job=round_.job, round=3, nonce="0c" * 32, results=(counted,), others=("0d" * 32,))
    closed = round_close.build(me, 8841, close, created_at=at)
    asked = audit.ask(me, 8841, request.id, other.public, closed.id, [0, 1, 5], created_at=at)
    ad_event = trainer_ad.build(other, ad, created_at=at)

    def ticket(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if not rounds.is_ticket(text):
            return
        read = RoundTicket.parse(text)
        assert len(read.seal()) == 64
        sums_of(Recipe.from_document(read.recipe))

    def event_read(parse: Callable[[events.Event], object]) -> Callable[[bytes], None]:
        def read(data: bytes) -> None:
            parse(events.parse_unverified(data))

        return read

    def opened(data: bytes) -> None:
        read = DeliveryDetails.parse(data)
        assert len(read.commitment(other.public, request.id, 3, 0)) == 64

    def updates(**compression: Any) -> Target:
        recipe = recipes.recipe("mlp", compression=compression)
        generator = torch.Generator().manual_seed(3)
        deltas = [
            {name: torch.randn(shape, generator=generator) * scale for name, shape in recipe.shapes().items()}
            for scale in (0.01, 0.0, 1e30)
        ]

        def read(data: bytes) -> None:
            delta = compress.unpack(data, recipe.shapes(), recipe.compression)
            assert {name: tuple(tensor.shape) for name, tensor in delta.items()} == recipe.shapes()
            assert all(bool(torch.isfinite(tensor).all()) for tensor in delta.values())

        return _files([compress.pack(delta, recipe.compression)[0] for delta in deltas if _fits(delta)], read)

    def _fits(delta: Any) -> bool:
        return all(float(tensor.abs().max()) < 2.0**64 for tensor in delta.values())

    def shards(name: str) -> Target:
        recipe = recipes.recipe(name)
        packed = [one.packed for one in data.split(recipes.made(recipe)[0], 8, recipe).shards[:2]]

        def read(data_: bytes) -> None:
            shard = data.Shard.unpack(data_, recipe)
            for batch in data.batches(shard, recipe, 0, 0, 0, 2):
                assert len(batch[0]) == recipe.batch

        return _files(packed, read)

    theta = state.pack(initial(small))
    hidden = list(sealed_blobs.seal([theta], "07" * 32))
    scratch = os.memfd_create("fuzz")

    def unsealed(data: bytes) -> None:
        os.ftruncate(scratch, 0)
        os.pwrite(scratch, data, 0)
        assert b"".join(sealed_blobs.unseal(Path(f"/proc/self/fd/{scratch}"), "07" * 32)) == theta

    documents = [json.loads(recipe.to_json()) for recipe in known]
    binary = [recipe.pack() for recipe in known]
    long = TOML + '[outer]\nmethod = "nesterov"\n[compression]\nmethod = "int4"\n[audit]\nfraction = 0.5\n[hardware]\n'
    return {
        "recipe.toml": Target(
            [TOML, long],
            mutations.of_toml,
            lambda text: sums_of(Recipe.from_toml(text.encode("utf-8", "replace").decode())),
        ),
        "recipe.json": _documents(documents, lambda data: sums_of(Recipe.parse(data))),
        "recipe.msgpack": _bytes(binary, lambda data: sums_of(Recipe.unpack(data))),
        "recipe.packed": Target(
            documents,
            lambda rng, one: _packed(mutations.of_document(rng, one)),
            lambda data: sums_of(Recipe.unpack(data)),
        ),
        "recipe.document": Target(
            documents,
            lambda rng, one: mutations.of_document(rng, one, binary=True),
            lambda document: sums_of(Recipe.from_document(document)),
        ),
        "update.f32": updates(method="f32"),
        "update.int8": updates(method="int8"),
        "update.int4": updates(method="int4", block=128),
        "update.topk8": updates(method="topk", bits=8, fraction="0.25"),
        "update.topk2": updates(method="topk", bits=2, fraction="0.25"),
        "shard.arrays": shards("mlp"),
        "shard.bytes": shards("decoder"),
        "shard.tokens": shards("decoder-bpe"),
        "shard.pairs": shards("encoder"),
        "theta": _files([theta], lambda data: _finite(state.unpack(data, state.types(small.shapes()), field="theta"))),
        "blob.sealed": _bytes([b"".join(hidden)], unsealed),
        "ticket": _documents([json.loads(a_ticket(recipe).to_json()) for recipe in known], ticket),
        "request": _events([request], event_read(rounds.parse)),
        "result": _events([result], event_read(delivery.parse)),
        "result.opening": _documents([json.loads(opening.to_json())], opened),
        "progress": _documents([{"v": 1, "step": 5, "loss": 1_000}], lambda data: void(Progress.parse(data))),
        "feedback": _events([say_due], event_read(feedback.parse)),
        "round.closed": _events([closed], event_read(round_close.parse)),
        "audit.asked": _events([asked], event_read(audit.parse)),
        "audit.showing": _documents(
            [json.loads(audit.AuditAnswer(shown=tuple(shown)).to_json())],
            lambda data: void(audit.AuditAnswer.parse(data)),
        ),
        "trainer.ad": _events([ad_event], event_read(trainer_ad.parse)),
    }


def void(_: object) -> None:
    """What was read is of no more use."""


def _finite(tensors: Any) -> None:
    assert all(tensor.numel() for tensor in tensors.values())


def _product(shape: Sequence[int]) -> int:
    made = 1
    for n in shape:
        made *= n
    return made


def _packed(document: Any) -> bytes:
    from nodewire.errors import NodewireError
    from nodewire.protocol.encoding import canonical

    try:
        return canonical.encode(document)
    except (NodewireError, ValueError):  # a float, or nested too deeply: there are no such bytes
        return b"\xc1"


def _bytes(seeds: Sequence[bytes], read: Callable[[bytes], None]) -> Target:
    return Target(seeds, lambda rng, one: mutations.of_bytes(rng, one, seeds), read)


def _files(seeds: Sequence[bytes], read: Callable[[bytes], None]) -> Target:
    return Target(seeds, lambda rng, one: mutations.of_safetensors(rng, one, seeds), read)


def _documents(seeds: Sequence[Any], read: Callable[[bytes], None]) -> Target:
    """JSON: mostly the document is changed, sometimes its bytes."""
    texts = [json.dumps(one).encode() for one in seeds]

    def mutate(rng: random.Random, one: Any) -> bytes:
        if rng.random() < 0.25:
            return mutations.of_bytes(rng, rng.choice(texts), texts)
        return mutations.dumps(mutations.of_document(rng, one))

    return Target(seeds, mutate, read)


def _events(seeds: Sequence[Any], read: Callable[[bytes], None]) -> Target:
    """Events' JSON; where the content is a document, that one is changed, too."""
    documents = [json.loads(one.to_json()) for one in seeds]
    texts = [json.dumps(one).encode() for one in documents]

    def mutate(rng: random.Random, one: Any) -> bytes:
        choice = rng.random()
        if choice < 0.2:
            return mutations.of_bytes(rng, rng.choice(texts), texts)
        if choice < 0.6 and one["content"].startswith("{"):
            content = mutations.dumps(mutations.of_document(rng, json.loads(one["content"]))).decode("utf-8", "replace")
            return mutations.dumps({**one, "content": content})
        if choice < 0.8:
            return mutations.dumps({**one, "tags": mutations.of_document(rng, one["tags"])})
        return mutations.dumps(mutations.of_document(rng, one))

    return Target(documents, mutate, read)


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
    from nodewire.errors import NodewireError

    known = targets()
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
