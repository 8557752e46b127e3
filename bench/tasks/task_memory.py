"""What split models take of memory, beside what was predicted: `python -m bench.tasks.task_memory [--json] [NAME ...]`.

Each model (random weights from its configuration) is split under a target that makes several tasks of it. Every task is
run at the largest sizes it admits, twice:

- here, under torch's own allocator events: the peak, weights and inputs included, beside the predicted one;
- in a worker as a provider starts it, capped at its warm baseline plus exactly the target.

`live` leaves the weights out of both: what the model of liveness and workspaces (graph/program/workspace.py) has to
answer for. `decoder` is another model's stages, of layers with sessions' pages (bench/tasks/stage_memory.py).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.report import Report, run
from bench.tasks import stage_memory
from bench.tasks.task_models import MODELS, Built
from bench.tools.cpu_allocator import Allocated
from bench.training.train_memory import status
from nodewire.errors import NodewireError
from nodewire.graph.cut.decomposition import decompose
from nodewire.graph.program.format import NAMES, Program
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.liveness import corners, walk
from nodewire.graph.program.verification import VerifiedProgram
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker.client import WorkerProcess
from nodewire.worker.sandbox.rights import RESERVE_BYTES
from processes.progress import say

WITHIN = 0.05
QUICK = ("bert", "llama")
DECODER = "decoder"


def worst(made: VerifiedProgram) -> dict[str, int]:
    """The sizes at which a task is predicted to take most."""
    return max(corners(made.program), key=lambda sizes: walk(made.program, sizes, 2**62).peak_bytes)


def inputs_of(program: Program, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    made = {}
    for one in program.inputs:
        shape = [sizes[d] if isinstance(d, str) else d for d in one.shape]
        if one.dtype.is_floating_point:
            made[one.name] = torch.randn(shape, generator=drawn).to(one.dtype)
        else:
            made[one.name] = torch.randint(0, min(one.below or 2, 64), shape, generator=drawn).to(one.dtype)
    return made


def here(made: VerifiedProgram, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Predicted and measured peak of a task at its largest sizes, bytes."""
    program, sizes = made.program, worst(made)
    held = {one.name: weights[one.name] for one in program.weights}
    inputs = inputs_of(program, sizes)
    runner = Interpreter(program, held)
    runner(inputs, sizes)
    with Allocated() as allocated:
        outputs = {name: value.contiguous() for name, value in runner(inputs, sizes).items()}
    arrived = sum(tensor.nbytes for tensor in inputs.values())
    live = walk(program, sizes, 2**62).peak_bytes
    del outputs
    return {
        "sizes": sizes,
        "weight_bytes": made.weight_bytes,
        "predicted_live": live,
        "measured_live": allocated.peak_bytes + arrived,
    }


async def capped(made: VerifiedProgram, weights: Mapping[str, torch.Tensor], target_bytes: int) -> dict[str, Any]:
    """A task in a worker with exactly the target: what it took at its peak, or why it failed."""
    program = made.program
    with tempfile.TemporaryDirectory(prefix="nw-memory-") as folder:
        root = Path(folder)
        (root / "program").write_bytes(program.encode())
        save_file({one.name: weights[one.name].contiguous() for one in program.weights}, root / "weights")
        worker = await WorkerProcess.start("kinds.k8843_worker", Limits(target_bytes), readable=[root])
        try:
            empty = status(worker.hello.pid)["VmData"]
            files = [root / "weights"] if program.weights else []
            await worker.load("task", "graph", root / "program", files)
            session = await worker.open("task", "s", {})
            for seq, sizes in enumerate(corners(program)):
                inputs = inputs_of(program, sizes)
                for edge in dict.fromkeys(one.edge for one in program.inputs):
                    arrays = tuple(array(inputs[one.name]) for one in program.inputs if one.edge == edge)
                    await session.receive(Frame(edge, seq, arrays, {}))
            taken = status(worker.hello.pid)
            return {"taken": max(taken["VmData"] - empty, 0), "error": "", "reserve": RESERVE_BYTES}
        except NodewireError as error:
            return {"taken": 0, "error": f"{error.code}: {error}"[:200]}
        finally:
            await worker.stop()


def array(tensor: torch.Tensor) -> Array:
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return Array(NAMES[tensor.dtype], tuple(tensor.shape), memoryview(raw))


def split(built: Built) -> tuple[dict[str, VerifiedProgram], int, dict[str, torch.Tensor]]:
    """A model's tasks, the target they were made for, and their weights by the tasks' names for them."""
    done = decompose(built.program, built.shapes, built.target_bytes, built.least_volume)
    weights = dict(built.weights)
    for name, rows in done.ranges.items():
        weights[name] = built.weights[rows.source][rows.first : rows.last]
    return dict(done.tasks), built.target_bytes, weights


async def measure(report: Report, options: argparse.Namespace) -> None:
    names = list(options.names or (*(QUICK if report.quick else MODELS), DECODER))
    if DECODER in names:
        names.remove(DECODER)
        await _stages(report)
        if not names:
            return
    worst_whole = worst_live = 0.0
    failed: list[str] = []
    tasks_run = 0
    for name in names:
        tasks, target, weights = split(MODELS[name]())
        found = {}
        for task, made in tasks.items():
            one = here(made, weights)
            whole = (one["predicted_live"] + made.weight_bytes) / (one["measured_live"] + made.weight_bytes)
            live = one["predicted_live"] / one["measured_live"]
            one |= {"predicted_of_measured": round(whole, 4), "live_of_measured": round(live, 4)}
            one["worker"] = await capped(made, weights, target)
            if one["worker"]["error"]:
                failed.append(f"{name} {task}: {one['worker']['error']}")
            worst_whole, worst_live = max(worst_whole, abs(whole - 1)), max(worst_live, abs(live - 1))
            found[task] = one
            tasks_run += 1
        report.arms[name] = {"target_bytes": target, "tasks": found}
        ratios = [one["live_of_measured"] for one in found.values()]
        say(f"{name}: {len(found)} tasks under {target} bytes, live predicted/measured {min(ratios)} to {max(ratios)}")
    report.arms["failed"] = failed
    report.line("tasks", tasks_run, ">", len(names))
    report.line("peak_off_by", round(worst_whole, 4), "<=", WITHIN)
    report.line("live_off_by", round(worst_live, 4), "<=", WITHIN)
    report.line("over_the_target_in_a_capped_worker", len(failed), "==", 0)


async def _stages(report: Report) -> None:
    """What a decoder's stages are predicted to take, and take."""
    said = {name: stage_memory.foreseen(name) for name in stage_memory.FORESEEN}
    taken = await stage_memory.measured(quick=report.quick)
    report.arms[DECODER] = {"foreseen": said, "measured": taken}
    say(f"decoder: predicted of weights and KV {[one['of_weights_and_kv'] for one in said.values()]}")
    say(f"decoder: measured of predicted {[one['measured_of_predicted'] for one in taken.values()]}")
    first = said[stage_memory.FORESEEN[0]]
    report.line("llama_8b_cards_of_8_gb", first["tasks"], "<=", 4)
    report.line("llama_8b_of_weights_and_kv", first["of_weights_and_kv"], "<=", 1.15)
    report.line("stages_that_failed", sum(bool(one["error"]) for one in taken.values()), "==", 0)
    if not report.quick:
        ratios = [one["measured_of_predicted"] for one in taken.values()]
        report.line("stage_measured_of_predicted", max(ratios), "<=", 1 + WITHIN)
        report.line("stage_predicted_of_measured", round(1 / max(min(ratios), 1e-9), 4), "<=", 1 + WITHIN)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="some models")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run("task_memory", __doc__, measure, add=_options)
