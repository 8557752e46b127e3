"""A PyTorch module becomes a program: exported once, with dynamic sizes, without running it on data.

`torch.export` (non-strict) records the module; `run_decompositions` makes it functional and decomposes only what no
task may use, so attention, linear and layer norm stay single operators, as fast as in the module. Parameters may lie on
the meta device: only their names and types go into the program.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nodewire.errors import BadInput, BadTask
from nodewire.graph.examples import Signature, named_tensors
from nodewire.graph.reading import KNOWN, Reader, Traced
from nodewire.graph.uncollected import uncollected
from nodewire.graph.whitelist import OPS

_TRACED_SIZES = (17, 19, 23, 13, 11, 7, 5, 3, 2)
"""A size that varies is traced at one of these: different ones, so that export takes none for another or a constant."""
_DATA_DEPENDENT = "it branches on a tensor's value, or makes a tensor as large as its values say: use torch.where"


def trace(
    module: torch.nn.Module,
    said: Signature,
    volume: int,
    *,
    buffers: Mapping[str, torch.Tensor] | None = None,
    outputs: Sequence[str] | None = None,
) -> Traced:
    """Export `module`, called as `said`; its outputs leave the program under their paths in what it returns.

    `buffers` has the values of buffers that lie on the meta device and are not among the weights. `outputs` names those
    that are wanted, all by default. A tensor that the module returns alone is `output`.

    Raises:
        BadInput: the module is in training mode, or does not return what `outputs` names.
        BadTask: it cannot be exported with these dims, or holds what the format cannot express; the field is the path
            of the module within the model where that is known, and the reason what to change.
    """
    for path, part in module.named_modules():
        if part.training:
            raise BadInput(
                path or "model", "is in training mode, in which it may draw random numbers: call model.eval()"
            )
    names: list[str] = []
    whole = _Whole(module, said, outputs, names)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
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
        with torch.no_grad(), uncollected():
            # What the library cannot prove of sizes it writes down as assertions, which the reader tries instead.
            exported = torch.export.export(
                whole,
                examples,
                dynamic_shapes=(dynamic,),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            exported = exported.run_decompositions(_decompositions())
    except BadInput:
        raise
    except Exception as error:  # the model's own code runs here, and may raise anything
        raise BadTask(_where(error, module) or "model", f"cannot be exported: {_why(error)}") from error
    return Reader(exported, module, said, volume, buffers or {}).read(names)


def _decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """The library's, for operators that no task may use."""
    table = torch.export.default_decompositions()
    return {op: table[op] for op in table if str(op) not in OPS and str(op) not in KNOWN}


class _Whole(torch.nn.Module):
    """The model with a flat list of tensors in and out; the names of those that come out are left in `names`."""

    def __init__(
        self, model: torch.nn.Module, said: Signature, outputs: Sequence[str] | None, names: list[str]
    ) -> None:
        super().__init__()
        self.model = model
        self.eval()
        self._run: Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]] = lambda tensors: _flat(
            said.call(model, {i.name: t for i, t in zip(said.inputs, tensors, strict=True)}), outputs, names
        )

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._run(tensors)


def _flat(returned: Any, outputs: Sequence[str] | None, names: list[str]) -> tuple[torch.Tensor, ...]:
    found = dict(named_tensors(returned))
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


def _where(error: BaseException, module: torch.nn.Module) -> str:
    """The path of the innermost module that was running when the error arose, "" if none was."""
    paths = {id(part): path for path, part in module.named_modules()}
    found = ""
    for one in _chain(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            found = paths.get(id(frame.f_locals.get("self")), "") or found
        if found:
            break
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it arose from, the first cause first."""
    chain, seen = [error], {id(error)}
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and id(before) not in seen:
        chain.append(before)
        seen.add(id(before))
    yield from reversed(chain)


def _why(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in str(error):
        return f"{_DATA_DEPENDENT}{_line(error)}"
    if "Constraints violated" in str(error):
        said = next((line for line in lines if line.startswith("- ")), lines[0])
        return f"a size that is said to vary may not: {said[:240]}; give it one value in all examples"
    return f"{kind}: {lines[0][:240]}{_line(error)}"


def _line(error: BaseException) -> str:
    """Where in the model's own code it arose."""
    for one in _chain(error):
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            if "/torch/" not in frame.filename and not frame.filename.startswith("<"):
                return f" ({Path(frame.filename).name}:{frame.lineno}: {(frame.line or '')[:80]})"
    return ""
