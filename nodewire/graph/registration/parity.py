"""A registration's tasks beside the model itself, on calls that it was not traced with: a trace shows one way through.

State outside of the model's modules, a global that is looked at, a weight copied from the wrong place: none of it fails
while a model is traced, cut and written. So the tasks are run as they were written, one at a time, and so is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch

from nodewire.core.heap import uncollected
from nodewire.errors import BadTask, NodewireError
from nodewire.graph.registration import in_process
from nodewire.graph.trace.examples import Signature, named_tensors
from nodewire.graph.trace.module_state import ModuleState
from nodewire.taskgraph.program import GraphProgram

if TYPE_CHECKING:
    from nodewire.graph.registration.streamed_weights import StreamedWeights
    from nodewire.kind import Registration

Tensors = Mapping[str, torch.Tensor]
Eager = Callable[[Tensors], Tensors]
"""What the model itself makes of a call's inputs. It may raise anything."""
BOUNDS = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""How far an output may be off, of its largest value: sums in another order, through many layers."""
_NEARLY_ALL = 0.9
"""Of numbers of 8 or 11 bits so many must be within: where two experts are alike, rounding chooses."""
_AGAIN = "is another when the same call is made again: it draws numbers, or reads what is kept outside of its modules"
_OTHER = "a trace shows one way through the code: look for what it reads besides its inputs and weights"


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far an output was from the model's own, of its largest value, and in which."""

    name: str = ""
    by: float = 0.0


def eager(
    module: torch.nn.Module, said: Signature, outputs: Sequence[str] | None, mode: StreamedWeights | None = None
) -> Eager:
    """The module as it stands, which is left as it was; `mode` has its weights if they are not its own."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))

    def call(given: Tensors) -> Tensors:
        held = ModuleState(module)
        try:
            with torch.no_grad(), mode or nullcontext():
                copies = {name: one.to(device if mode is None else "cpu", copy=True) for name, one in given.items()}
                found = named_tensors(said.call(module, copies))
        finally:
            held.restore()
        return {name: found[name] for name in outputs or found}

    return call


def compare(made: Registration, model: Eager, calls: Iterable[Tensors]) -> str:
    """A line for the report. The first call is one that the model takes; of others it may refuse any.

    Raises:
        BadTask: an output of the tasks is not the model's.

    """
    done, furthest = 0, Deviation()
    with uncollected():
        for number, given in enumerate(calls):
            try:
                wanted = _run(model, given)
            except BadTask:
                if number:
                    continue
                raise
            done += 1
            furthest = max(furthest, _compared(made, given, wanted), key=lambda off: off.by)
    by = f"off by {furthest.by:.1e} of the largest value" if furthest.by else "bit for bit the same"
    return f"beside the model itself in {done} call{'s' * (done != 1)}: {by}"


def check_again(model: Eager, given: Tensors) -> None:
    """Raises BadTask: the same call has another result when it is made again, or none."""
    first, second = _run(model, given), _run(model, given)
    for name, tensor in first.items():
        if off(tensor, second[name]) > _bound(tensor):
            raise BadTask(name, _AGAIN)


def _run(model: Eager, given: Tensors) -> Tensors:
    try:
        return model(given)
    except Exception as error:  # the model's own code runs here, and may raise anything
        first = (str(error).splitlines() or [""])[0]
        raise BadTask("model", f"does not run on the examples: {type(error).__name__}: {first[:240]}") from error


def others(said: Signature, shown: Sequence[Tensors]) -> Iterator[Tensors]:
    """Calls to compare on: the largest of the examples, and another of half its sizes with its values mixed."""
    drawn = torch.Generator().manual_seed(1)
    largest = max(shown, key=lambda one: sum(tensor.numel() for tensor in one.values()))
    yield largest
    yield {i.name: _mixed(_halved(largest[i.name], i.shape), drawn) for i in said.inputs}


def drawn(made: Registration, said: Signature) -> Tensors:
    """A small call of a model without examples: integers that its tables have rows for, ones where there is none."""
    below: dict[str, int] = {}
    sizes = {dim: min(most, size) for (dim, most), size in zip(said.dims.items(), (2, 5, 3), strict=False)}
    for task in made.manifest.tasks:
        if task.engine == "graph":
            program = GraphProgram.decode(made.blobs[task.program.sha256].read_bytes())
            for dim in reversed(sizes):
                if prod(sizes.values()) > program.volume:
                    sizes[dim] = 1
            for port in program.inputs:
                if found := program.below(port):
                    below[port.tensor] = min(found, below.get(port.tensor, found))
    generator = torch.Generator().manual_seed(1)
    call = {}
    for one in said.inputs:
        shape = [sizes[n] if isinstance(n, str) else n for n in one.shape]
        if one.dtype.is_floating_point:
            call[one.name] = torch.randn(shape, generator=generator).to(one.dtype)
        else:
            values = torch.randint(0, below[one.name], shape, generator=generator) if one.name in below else None
            call[one.name] = (torch.ones(shape) if values is None else values).to(one.dtype)
    return call


def _compared(made: Registration, given: Tensors, wanted: Tensors) -> Deviation:
    sizes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in given.items())
    try:
        found = in_process.evaluate(made.manifest, given, lambda task: in_process.load(made, task))
    except NodewireError as error:
        raise BadTask(error.field, f"{error.reason}; the model itself takes {sizes}") from error
    furthest = Deviation()
    for name, tensor in wanted.items():
        by = off(tensor, found[name])
        if by > _bound(tensor):
            raise BadTask(name, f"of the tasks is off by {by:.1e} of its largest value, for {sizes}: {_OTHER}")
        furthest = max(furthest, Deviation(name, by), key=lambda one: one.by)
    return furthest


def off(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """The largest difference, of the largest value wanted; infinite for another type or shape."""
    wanted, found = wanted.detach().cpu(), found.cpu()
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return float("inf")
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(wanted, found) else float("inf")
    a, b = wanted.double(), found.double()
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs().nan_to_num(float("inf")))
    if not apart.any():
        return 0.0
    largest = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max())
    if not largest:
        return float("inf")
    by = apart / largest
    if wanted.dtype != torch.float32:
        by = by.flatten().sort().values[: max(1, int(by.numel() * _NEARLY_ALL))]
    return float(by.max())


def _bound(tensor: torch.Tensor) -> float:
    return BOUNDS.get(tensor.dtype, 0.0)


def _halved(tensor: torch.Tensor, shape: Sequence[int | str]) -> torch.Tensor:
    for axis, size in enumerate(shape):
        if isinstance(size, str):
            tensor = tensor.narrow(axis, 0, (tensor.shape[axis] + 1) // 2)
    return tensor


def _mixed(tensor: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """Numbers about as large as they were; integers and truths that were there, in another order."""
    if tensor.is_floating_point():
        noise = torch.randn(tensor.shape, generator=drawn) * max(1.0, float(tensor.float().std(correction=0)))
        return tensor + noise.to(tensor)
    order = torch.randperm(tensor.numel(), generator=drawn)
    return tensor.flatten()[order].reshape(tensor.shape)
