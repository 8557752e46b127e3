"""A PyTorch module becomes a program: exported once, with dynamic sizes, without running it on data.

`torch.export` (non-strict) records the module; `run_decompositions` makes it functional and decomposes only what no
task may use, so attention, linear and layer norm stay single operators, as fast as in the module. Parameters may lie on
the meta device: only their names and types go into the program.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.export import _trace

from nodewire.core.heap import uncollected
from nodewire.errors import BadInput, BadTask, NodewireError
from nodewire.graph.program.warning_filter import unwarned
from nodewire.graph.program.whitelist import OPS
from nodewire.graph.trace.diagnosis import check, check_exported, diagnosed
from nodewire.graph.trace.examples import Signature, named_tensors
from nodewire.graph.trace.guards import Guard, guards
from nodewire.graph.trace.hooks import hook
from nodewire.graph.trace.module_state import ModuleState, leave, read_by_the_next
from nodewire.graph.trace.reader import KNOWN, Reader, TracedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nodewire.graph.program.format import Program

_TRACED_SIZES = (17, 19, 23, 13, 11, 7, 5, 3, 2)
"""A size that varies is traced at one of these: different ones, so that export takes none for another or a constant."""
_SYMBOLS = logging.getLogger("torch.fx.experimental.symbolic_shapes")


def trace(
    module: torch.nn.Module,
    said: Signature,
    volume: int,
    *,
    buffers: Mapping[str, torch.Tensor] | None = None,
    outputs: Sequence[str] | None = None,
) -> TracedModel:
    """Export `module`, called as `said`; its outputs leave the program under their paths in what it returns.

    `buffers` has the values of buffers that lie on the meta device and are not among the weights. `outputs` names those
    that are wanted, all by default. A tensor that the module returns alone is `output`.

    Raises:
        BadInput: the module is in training mode, or does not return what `outputs` names.
        BadTask: it cannot be exported with these dims, holds what the format cannot express, or reads what a call left
            on `self`; the field is the path within the model where that is known, and the reason what to change.

    """
    check(module)
    hook(module)

    def once() -> tuple[TracedModel, Sequence[str]]:
        whole = _Whole(module, said, outputs)
        with guards(module, said) as asked:
            exported = _exported(whole, said, asked)
        for guard in asked:
            if guard.late and guard.pins and (refusal := guard.refusal(said.dims)):
                raise refusal
        return Reader(exported, module, said, volume, buffers or {}, asked).read(whole.seen.names), whole.seen.changed

    made, changed = once()
    if changed:
        _check_unread(module, made.program, changed, lambda: once()[0].program)
    return made


def _check_unread(
    module: torch.nn.Module, first: Program, changed: Sequence[str], again: Callable[[], Program]
) -> None:
    """Raises BadTask: a call reads what the one before left in the attributes `changed`."""
    held = ModuleState(module)
    leave(module, changed)
    try:
        same = again() == first
    except BadTask as error:
        raise error if error.field in changed else read_by_the_next(changed[0]) from None
    finally:
        held.restore()
    if not same:
        raise read_by_the_next(changed[0])


def _exported(whole: _Whole, said: Signature, asked: Sequence[Guard]) -> torch.export.ExportedProgram:
    """The functional program of a module; `asked` is what its code asks of sizes meanwhile."""
    device = next((p.device for p in whole.model.parameters()), torch.device("cpu"))
    sizes = _sizes(said.dims)
    symbols = {
        dim: torch.export.Dim(re.sub(r"\W", "_", dim), min=1, max=max(most, 2)) for dim, most in said.dims.items()
    }
    examples = tuple(
        torch.zeros([sizes[d] if isinstance(d, str) else d for d in i.shape], dtype=i.dtype, device=device)
        for i in said.inputs
    )
    dynamic = tuple({k: symbols[d] for k, d in enumerate(i.shape) if isinstance(d, str)} for i in said.inputs)
    try:
        with torch.no_grad(), uncollected(), _quiet():
            # What the library cannot prove of sizes it writes down as assertions, which the reader tries instead.
            exported = torch.export.export(
                whole,
                examples,
                dynamic_shapes=(dynamic,),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            check_exported(exported, [one.name for one in said.inputs])
            made: torch.export.ExportedProgram = exported.run_decompositions(_decompositions())
            return made
    except NodewireError:
        raise
    except Exception as error:  # noqa: BLE001 - the model's own code runs here, and may raise anything
        refusal = diagnosed(error, whole.model, asked, said.dims)
    raise refusal


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's words on its own inner workings, and its dumps of what it could not export."""
    level = _SYMBOLS.level
    _SYMBOLS.setLevel(logging.ERROR)
    own = vars(_trace)
    # It prints the graph so far; with stderr redirected instead, nobody could show progress.
    own["print"] = lambda *_, **__: None
    try:
        with unwarned():
            yield
    finally:
        del own["print"]
        _SYMBOLS.setLevel(level)


def _decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """The library's, for operators that no task may use; its own of a roll computes places of whole numbers."""
    table = torch.export.default_decompositions()
    found = {op: table[op] for op in table if str(op) not in OPS and str(op) not in KNOWN}
    return {**found, torch.ops.aten.roll.default: _rolled}


def _rolled(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Each dimension's end put before its beginning."""
    if not dims:
        return _rolled(x.flatten(), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if x.shape[dim] != 0 and (by := shift % x.shape[dim]) != 0:
            x = torch.cat((x.narrow(dim, x.shape[dim] - by, by), x.narrow(dim, 0, x.shape[dim] - by)), dim)
    return x


@dataclass(slots=True)
class _CallTrace:
    """Of a call of the model: names of the tensors that came out, and what it left on modules, where it is undone."""

    names: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


class _Whole(torch.nn.Module):
    """The model with a flat list of tensors in and out."""

    def __init__(self, model: torch.nn.Module, said: Signature, outputs: Sequence[str] | None) -> None:
        super().__init__()
        self.model = model
        self.eval()
        self.said, self.outputs, self.seen = said, outputs, _CallTrace()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = ModuleState(self.model)
        try:
            given = {i.name: t for i, t in zip(self.said.inputs, tensors, strict=True)}
            return _flat(self.said.call(self.model, given), self.outputs, self.seen.names)
        finally:
            self.seen.changed = held.changed()
            held.restore()


def _flat(returned: Any, outputs: Sequence[str] | None, names: list[str]) -> tuple[torch.Tensor, ...]:
    found = named_tensors(returned)
    for name in outputs or ():
        if name not in found:
            raise BadInput("outputs", f"{name[:80]!r} is not returned: {', '.join(found)}")
    names[:] = outputs or list(found)
    if not names:
        raise BadInput("model", "returns no tensor")
    return tuple(found[name] for name in names)


def _sizes(dims: Mapping[str, int]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for dim, most in dims.items():
        free = (size for size in _TRACED_SIZES if size <= most and size not in sizes.values())
        sizes[dim] = next(free, max(most, 2))
    return sizes
