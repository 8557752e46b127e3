"""The cases of bench.fuzz.fuzz_tasks, in a process of its own: `python -m bench.fuzz.fuzz_tasks_child ARGUMENTS`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from safetensors.torch import save_file

from bench.fuzz import hostile_tasks as hostile
from bench.fuzz import mutations
from bench.fuzz.fuzz_tasks import CASE_S, GROWN_BYTES
from bench.fuzz.fuzz_train import FORBIDDEN
from bench.tools.cpu_allocator import Allocated
from nodewire.errors import NodewireError, WorkerFailed
from nodewire.graph import entry
from nodewire.graph.program.format import DTYPES, NAMES, Node, Output, Program
from nodewire.graph.program.interpreter import Interpreter, Value, bind, decided_values
from nodewire.graph.program.liveness import walk
from nodewire.graph.program.verification import verify, verify_weights
from nodewire.graph.program.whitelist import Op
from nodewire.kind import Limits
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker.client import WorkerProcess

BUDGET = 8 * 2**20
HEADROOM_BYTES = 2**30
SLACK_BYTES = 2_048
"""Of a measured peak: shapes, masks of four elements and the like, which no model needs to know of."""
MOST_FLOPS = 10**8
PARTS = {
    "program",
    "document",
    "v",
    "nodes",
    "inputs",
    "weights",
    "outputs",
    "dims",
    "volume",
    "slots",
    "pending",
    "edge",
}


class Fault(Exception):
    """What must not be."""


class Cases:
    """An arm's cases, and what became of them."""

    def __init__(self, arm: str, folder: Path) -> None:
        self.arm, self.folder = arm, folder
        self.violations: list[str] = []
        self.restrided: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.most_of_predicted = 0.0
        self.watched = ""
        self.aside_s = 0.0
        self.weights = hostile.tensors()
        self.file = folder / "weights"
        save_file(self.weights, self.file)
        self.good = self.file.read_bytes()
        self.seeds = [hostile.calls(random.Random(f"seed {n}")) for n in range(150)]
        self.seeds = [seed for seed in self.seeds if _is_valid(seed)][:30]
        self.encoded = [seed.encode() for seed in self.seeds]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Processor time of the check itself, which a case does not answer for."""
        began_s = time.process_time()
        try:
            yield
        finally:
            self.aside_s += time.process_time() - began_s

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watched:
            return
        opened = event == "open" and str(arguments[0]) != str(self.file)
        if opened or event in FORBIDDEN:
            self.violations.append(f"{self.watched}: {event} {str(arguments)[:100]}")

    def read(self, rng: random.Random, arm: str) -> str:
        """What a case was; raises NodewireError or Fault."""
        match arm:
            case "bytes":
                return self.program(mutations.of_bytes(rng, rng.choice(self.encoded), self.encoded), rng)
            case "document":
                return self.program(_changed(rng, rng.choice(self.seeds)), rng)
            case "calls":
                return self.program(_encoded(hostile.calls(rng)), rng)
            case "memory":
                program = hostile.calls(rng)
                return self.measured(Program.decode(_encoded(_sized(program, 512))))
            case "bombs":
                return self.program(hostile.bombs(rng), rng)
            case "weights":
                return self.stored(rng)
            case "frames":
                return self.frame(rng)
            case "manifests":
                return self.manifest(rng)
        raise ValueError(arm)

    def program(self, data: bytes, rng: random.Random) -> str:
        task = Program.decode(data)
        verified = verify(task, BUDGET)
        if verified.flops > MOST_FLOPS:
            return "not run"
        rows = {name: rng.choice((most, 1, 2, 0)) for name, most in task.dims.items()}
        sizes = {name: min(n, task.dims[name], task.volume) for name, n in rows.items()}
        if sum(sizes.values()) > 10_000:
            return "not run"
        with self.aside():
            self.as_promised(task, sizes)
        return "run"

    def as_promised(self, task: Program, sizes: Mapping[str, int]) -> None:
        inputs = _inputs(task, sizes)
        promised = _promised(task, sizes)
        bind(task, inputs)
        walk(task, sizes, BUDGET)
        made: dict[str, Value] = {}
        decided = decided_values(task)

        def after(node: Node, op: Op, given: Mapping[str, Value], result: Value, freed: Sequence[str]) -> None:
            made[node.name] = _copied(result)
            self.compare(node, op, promised[node.name], result, at_most=node.name in decided)

        runner = Interpreter(task, _weights(task), "cpu")
        runner(inputs, sizes, after)
        first = dict(made)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            runner(inputs, sizes, after)
        finally:
            torch.use_deterministic_algorithms(False)
        for name, value in first.items():
            if not _same(value, made[name]):
                raise Fault(f"{name}: differs from run to run")

    def compare(self, node: Node, op: Op, promised: list[Any], result: Value, at_most: bool = False) -> None:
        """`at_most`: data decide how many rows there are, and as many or fewer are promised."""
        tensors = _tensors(result)
        if len(tensors) > len(promised) or (len(tensors) < len(promised) and not at_most):
            raise Fault(f"{node.name}: {op.name} made {len(tensors)} tensors, promised {len(promised)}")
        for said, tensor in zip(promised, tensors, strict=False):
            fewer = len(said[1]) == tensor.dim() and all(n <= m for n, m in zip(tensor.shape, said[1], strict=True))
            if said[0] != tensor.dtype or not (said[1] == tuple(tensor.shape) or (at_most and fewer)):
                raise Fault(f"{node.name}: {op.name} made {tensor.dtype} {list(tensor.shape)}, promised {said}")
            if tensor.numel() and said[1] == tuple(tensor.shape) and said[2] != tensor.stride():
                self.restrided[op.name] += 1

    def measured(self, task: Program) -> str:
        sizes = dict(task.dims)
        inputs, weights = _inputs(task, sizes), _weights(task)
        verify(task, 2**26)
        course = walk(task, sizes, 2**26)
        runner = Interpreter(task, weights, "cpu")
        bind(task, inputs)
        runner(inputs, sizes)
        watched, self.watched = self.watched, ""
        with Allocated() as allocated:
            outputs = runner(inputs, sizes)
            outputs = {name: value.contiguous() for name, value in outputs.items()}
        self.watched = watched
        predicted = course.peak_bytes - sum(tensor.nbytes for tensor in inputs.values())
        if allocated.peak_bytes > predicted + SLACK_BYTES:
            evil = [node for node in task.nodes if node.name.startswith("evil")]
            raise Fault(f"{[n.op for n in evil]}: took {allocated.peak_bytes}, predicted {predicted}")
        self.most_of_predicted = max(self.most_of_predicted, allocated.peak_bytes / predicted)
        return "run"

    def stored(self, rng: random.Random) -> str:
        self.file.write_bytes(hostile.weights(rng, self.good))
        task = self.seeds[0]
        verify_weights(task, [self.file])
        loaded = entry.load("graph", task.encode(), [self.file], Limits(BUDGET))
        loaded.open("s", {})
        loaded.receive("s", Frame("in", 0, tuple(_inputs(task, task.dims).values()), {}))
        return "run"

    def frame(self, rng: random.Random) -> str:
        self.file.write_bytes(self.good)
        task = rng.choice(self.seeds)
        loaded = entry.load("graph", task.encode(), [self.file], Limits(BUDGET))
        loaded.open("s", {})
        loaded.receive("s", _frame(rng, task))
        return "run"

    def manifest(self, rng: random.Random) -> str:
        data = json.dumps(_MANIFEST).encode()
        data = (
            mutations.of_bytes(rng, data, [data])
            if rng.random() < 0.3
            else mutations.dumps(mutations.of_document(rng, _MANIFEST))
        )
        Manifest.parse(data)
        return "run"


_BLOB = {"sha256": "ab" * 32, "bytes": 1_000}
_EDGE = {"tensors": [{"name": "x", "dtype": "float32", "shape": ["b", 4]}], "dims": {"b": 8}, "bytes_per_position": 16}
_TASK = {"engine": "graph", "program": _BLOB, "weights": [_BLOB], "memory_bytes": 10**6, "slots": 4, "flops": 100}
_MANIFEST = {
    "v": 1,
    "name": "two",
    "mode": "run",
    "tasks": [{"name": "graph.0", **_TASK}, {"name": "graph.1", **_TASK}],
    "edges": [
        {"name": "customer.to.graph.0", "source": "customer", "target": "graph.0", **_EDGE},
        {"name": "graph.0.to.graph.1", "source": "graph.0", "target": "graph.1", **_EDGE},
        {"name": "scores", "source": "graph.1", "target": "customer", **_EDGE},
    ],
}


def _is_valid(program: Program) -> bool:
    try:
        verify(Program.decode(program.encode()), BUDGET)
    except NodewireError:
        return False
    return True


def _sized(program: Program, rows: int) -> Program:
    """The same program for more rows, its last call's result among the outputs if that has a plain type."""
    import dataclasses

    program = dataclasses.replace(program, dims={"b": rows}, volume=rows)
    try:
        types = walk(Program.decode(program.encode()), {"b": rows}, 2**26).types
    except NodewireError:
        return program
    evil = next((n.name for n in reversed(program.nodes) if n.name.startswith("evil") and n.name in types), None)
    if evil is None or types[evil].dtype not in NAMES:
        return program
    more = Output("evil", evil, types[evil].dtype, types[evil].shape, "result")
    return dataclasses.replace(program, outputs=(*program.outputs, more))


def _encoded(program: Program) -> bytes:
    try:
        return program.encode()
    except NodewireError:
        return b"\xc1"


def _changed(rng: random.Random, program: Program) -> bytes:
    try:
        return canonical.encode(mutations.of_document(rng, hostile.document(program), binary=True))
    except (NodewireError, ValueError):  # there are no such bytes
        return b"\xc1"


def _promised(task: Program, sizes: Mapping[str, int]) -> dict[str, list[Any]]:
    """dtype, shape and strides of every value, by the meta device."""
    said: dict[str, list[Any]] = {}

    def after(node: Node, op: Op, given: Mapping[str, Value], result: Value, freed: Sequence[str]) -> None:
        said[node.name] = [(t.dtype, tuple(t.shape), t.stride()) for t in _tensors(result)]

    inputs = {name: tensor.to("meta") for name, tensor in _inputs(task, sizes).items()}
    weights = {w.name: torch.empty(w.shape, dtype=w.dtype, device="meta") for w in task.weights}
    Interpreter(task, weights, "meta")(inputs, sizes, after)
    return said


def _inputs(task: Program, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    made = {}
    for one in task.inputs:
        shape = [sizes[size] if isinstance(size, str) else size for size in one.shape]
        most = min(one.below or 4, 4)
        made[one.name] = torch.rand(shape, generator=generator).mul(most).to(one.dtype)
    return made


def _weights(task: Program) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(12)
    return {w.name: torch.rand(w.shape, generator=generator).mul(3).to(w.dtype) for w in task.weights}


def _tensors(value: Value) -> list[torch.Tensor]:
    return [t for t in (value if isinstance(value, list) else [value]) if isinstance(t, torch.Tensor)]


def _copied(value: Value) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in _tensors(value)] if sum(t.numel() for t in _tensors(value)) < 2**18 else []


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.nan_to_num(7.25), b.nan_to_num(7.25)) for a, b in zip(one, other, strict=False))


def _frame(rng: random.Random, task: Program) -> Frame[torch.Tensor]:
    """Tensors of other sizes, dtypes, values or number than are due."""
    sizes = {name: rng.choice((0, 1, most, most + 1, 2 * most)) for name, most in task.dims.items()}
    tensors = list(_inputs(task, sizes).values())
    at = rng.randrange(len(tensors))
    match rng.randrange(8):
        case 0:
            tensors[at] = tensors[at].to(rng.choice(list(DTYPES.values())))
        case 1:
            tensors[at] = tensors[at].unsqueeze(0)
        case 2:
            del tensors[at]
        case 3:
            tensors.append(tensors[at])
        case 4:
            values = (-1, 8, 2**31, 2**62, -(2**63))
            tensors[at] = torch.full_like(tensors[at], rng.choice(values if tensors[at].dtype == torch.int64 else (1,)))
        case 5:
            tensors[at] = torch.full_like(tensors[at], float("nan")) if tensors[at].is_floating_point() else tensors[at]
    edge = rng.choice(("in", "in", "in", "", "result", "x" * 1_000))
    return Frame(edge, rng.choice((0, 1, 2**62)), tuple(tensors), {"chunk": 0})


async def in_workers(cases: Cases, first: int, count: int, seed: int, at: Path) -> dict[str, Any]:
    """Programs of all kinds, and weights, in a worker as a provider has it."""
    codes: Counter[str] = Counter()
    faults: list[str] = []
    valid = 0
    program_file, bad = cases.folder / "program", cases.folder / "bad"
    worker = await WorkerProcess.start(
        "kinds.k8843_worker", Limits(4 * BUDGET), readable=[cases.folder], arena_bytes=2**22
    )
    for number in range(first, first + count):
        _note(at, number)
        rng = random.Random(f"{seed} worker {number}")
        kind = rng.choice(("calls", "calls", "calls", "bombs", "weights", "bytes"))
        data = cases.encoded[0]
        if kind == "calls":
            data = _encoded(_sized(hostile.calls(rng), hostile.ROWS))
        elif kind == "bombs":
            data = hostile.bombs(rng)
        elif kind == "bytes":
            data = mutations.of_bytes(rng, rng.choice(cases.encoded), cases.encoded)
        program_file.write_bytes(data)
        bad.write_bytes(hostile.weights(rng, cases.good) if kind == "weights" else cases.good)
        try:
            await worker.load(str(number), "graph", program_file, [bad])
            session = await worker.open(str(number), "s", {})
            task = Program.decode(data)
            tensors = _inputs(task, task.dims)
            arrays = tuple(_array(tensors[one.name]) for one in task.inputs)
            answers = await session.receive(Frame("in", 0, arrays, {}))
            said = [(a.dtype, tuple(a.shape)) for frame in answers for a in frame.tensors]
            sizes = [tuple(task.dims[n] if isinstance(n, str) else n for n in o.shape) for o in task.outputs]
            due = [(NAMES[o.dtype], shape) for o, shape in zip(task.outputs, sizes, strict=True)]
            if sorted(said, key=str) != sorted(due, key=str):
                faults.append(f"worker {number}: {said}, promised {due}")
            valid += 1
        except WorkerFailed as error:
            faults.append(f"worker {number}: {error}")
            if not worker.alive:
                break
        except NodewireError as error:
            codes[error.code] += 1
    await worker.stop()
    if not worker.alive and faults and number + 1 < first + count:
        rest = await in_workers(cases, number + 1, first + count - number - 1, seed, at)
        codes.update(rest["codes"])
        valid, faults = valid + rest["valid"], faults + rest["faults"]
    typed = sum(codes.values())
    return {
        "cases": count, "valid": valid, "typed": typed, "named": typed, "faulty": len(faults), "faults": faults,
        "codes": dict(codes),
    }  # fmt: skip


def _note(at: Path, number: int) -> None:
    at.write_text(str(number))


def _array(tensor: torch.Tensor) -> Array:
    raw = tensor.contiguous().view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return Array(NAMES[tensor.dtype], tuple(tensor.shape), memoryview(raw.flatten().numpy()).cast("B"))


def in_process(cases: Cases, first: int, count: int, seed: int, at: Path) -> dict[str, Any]:
    codes: Counter[str] = Counter()
    faults: list[str] = []
    arm, valid, named = cases.arm, 0, 0
    slowest_s = grown_kb = 0.0
    for number in range(150):  # what is imported late
        warm = arm if arm in ("weights", "frames", "manifests") else "calls"
        _quietly(lambda n=number, warm=warm: cases.read(random.Random(f"warm {n}"), warm))
    sys.addaudithook(cases.hook)
    _limit_memory()
    descriptor = os.open(at, os.O_WRONLY)
    for number in range(first, first + count):
        os.pwrite(descriptor, f"{number:<12}".encode(), 0)
        rng = random.Random(f"{seed} {cases.arm} {number}")
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cases.watched = f"{cases.arm} {number}" if cases.arm not in ("weights", "frames") else ""
        cases.aside_s, began_s = 0.0, time.process_time()
        try:
            cases.read(rng, arm)
            valid += 1
        except NodewireError as error:
            codes[error.code] += 1
            named += bool(error.field) and len(str(error)) < 1_000
        except (Fault, BaseException) as error:  # noqa: BLE001 - any exception is a finding
            faults.append(f"{cases.arm} {number}: {type(error).__name__}: {str(error)[:200]}")
        cases.watched = ""
        took_s = time.process_time() - began_s - cases.aside_s
        more_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        slowest_s, grown_kb = max(slowest_s, took_s), max(grown_kb, more_kb)
        if took_s > CASE_S:
            faults.append(f"{cases.arm} {number}: {took_s:.1f} s")
        if more_kb * 1024 > GROWN_BYTES:
            faults.append(f"{cases.arm} {number}: {more_kb} KiB more")
    return {
        "cases": count, "valid": valid, "typed": sum(codes.values()), "named": named, "faulty": len(faults),
        "faults": faults[:20], "violations": cases.violations[:20], "codes": dict(codes),
        "restrided": dict(cases.restrided), "slowest_s": round(slowest_s, 3), "grown_kb": grown_kb,
        "most_of_predicted": round(cases.most_of_predicted, 3),
    }  # fmt: skip


def _quietly(read: Callable[[], object]) -> None:
    try:
        read()
    except (NodewireError, Fault):
        return


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM_BYTES, now + HEADROOM_BYTES))


def main() -> None:
    arm, first, count, seed, folder = json.loads(sys.argv[2])
    torch.set_num_threads(1)
    cases, at = Cases(arm, Path(folder)), Path(folder) / "at"
    if arm == "worker":
        print(json.dumps(asyncio.run(in_workers(cases, first, count, seed, at))))
    else:
        print(json.dumps(in_process(cases, first, count, seed, at)))


if __name__ == "__main__":
    main()
