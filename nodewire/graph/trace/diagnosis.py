"""Why a module cannot be a program, in one sentence: which part of it, of what class, at which line, what to change.

What can be seen before it is traced is looked for first, by name; then what its export says, or was told by its code.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.export.graph_signature import InputKind

from nodewire.errors import BadInput, BadTask
from nodewire.graph.trace.places import Place, own, parts_of, raised, traced

if TYPE_CHECKING:
    from nodewire.graph.trace.guards import Guard

_DATA_DEPENDENT = "it branches on a tensor's value, or makes a tensor as large as its values say: use torch.where"
_NUMBER = "it makes a number of a tensor's value (float, int, item, tolist): compute with the tensor itself"
_NUMPY = "numpy cannot be traced: use torch's own operators"
_PACKS = "keeps its weights packed or quantized, and a task's are plain tensors: register the model as it was before"
_TRAINING = "is in training mode, in which it may draw random numbers: call model.eval()"
_SCRIPTED = "is TorchScript, which cannot be traced: give the module that it was made of"
_HIDDEN = "holds modules where the model does not see their weights: use torch.nn.ModuleList or ModuleDict"
_PACKED = "packs a sequence, and lengths' values would say how large tensors are: give it the padded batch, and mask it"
_LOOPS = (
    "goes through a sequence of varying length step by step, which no program does: give it one length in all examples"
)
_FIXED = "a size that is said to vary meets one that is fixed: give it one value in all examples, or cut the other: "
_KEEPS = "is changed by a call, and a task keeps nothing between calls: make it an input and an output, or leave it be"
_GIVEN = "is an input that a call writes into, and a task's inputs stay as they are: work on a clone()"
_DRAWS = "it draws random numbers: take them as an input, or tell dropout training=self.training"
_COMPLEX = "it computes with complex numbers: compute with real and imaginary parts"
_WRITES = "it writes into a part of a tensor: make a new one by torch.where or torch.cat"
_QUANTIZES = "it is of a quantized model: register the model as it was before"
_CONVOLVES = (
    "it is a convolution over volumes: express it by conv2d, or by reshapes and linear where steps do not overlap"
)
_OTHERS = "express it by operators of the whitelist"

_IS_NUMPY = re.compile(r"\bnp\.|numpy", re.IGNORECASE)
_IS_NUMBER = re.compile(r"\bfloat\(|\bint\(|\.item\(|\.tolist\(")
_IS_PACKED = re.compile(r"pack|failed to unpack the object")
_IS_FIXED = re.compile(r"must match|[Ee]xpected .*(size|shape)|invalid for input of size")
_IS_SYMBOL = re.compile(r"\bs\d+\b")
_BY_NAME: Mapping[str, re.Pattern[str]] = {
    _DRAWS: re.compile(r"rand|bernoulli|dropout|normal_functional|multinomial|exponential|uniform|poisson"),
    _COMPLEX: re.compile(r"complex|fft|polar|real|imag|conj"),
    _WRITES: re.compile(r"_scatter|scatter|index_put|index_copy|index_add|index_fill|copy"),
    _CONVOLVES: re.compile(r"convolution"),
    _QUANTIZES: re.compile(r"quantize|quantized|_int_mm|int4"),
}


def check(module: torch.nn.Module) -> None:
    """What can be said before tracing.

    Raises:
        BadInput: a part is in training mode.
        BadTask: a part is quantized, scripted, or holds modules that are not its own.

    """
    known = {id(part) for part in module.modules()}
    for path, part in module.named_modules():
        place = Place(path, type(part).__name__)
        if isinstance(part, torch.jit.ScriptModule):
            raise BadTask(path or "model", f"{_SCRIPTED}{place}")
        if _is_packed(part):
            raise BadTask(path or "model", f"{_PACKS}{place}")
        for name, hidden in _held_modules(part):
            if id(hidden) not in known and next(hidden.parameters(), None) is not None:
                raise BadTask(f"{path}.{name}".removeprefix("."), f"{_HIDDEN}{place}")
    for path, part in module.named_modules():
        if part.training:
            raise BadInput(path or "model", _TRAINING)


def check_exported(exported: torch.export.ExportedProgram, names: Sequence[str]) -> None:
    """What its operators say before they are decomposed; `names` are the inputs'.

    Raises:
        BadTask: it writes into a tensor that outlives the call.

    """
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    given = iter(names)
    named = {name: next(given) for name, spec in specs.items() if spec.kind == InputKind.USER_INPUT}
    for fx in exported.graph.nodes:
        for source in _written(fx):
            place = traced(fx)
            if source in named:
                raise BadTask(named[source], f"{_GIVEN}{place}")
            if source in specs:
                raise BadTask(own(str(specs[source].target)), f"{_KEEPS}{place}")


def diagnosed(error: Exception, module: torch.nn.Module, asked: Sequence[Guard], most: Mapping[str, int]) -> BadTask:
    """What to say of an error of export: the guard that is behind it if there is one, else where it arose."""
    place = raised(error, parts_of(module))
    if "Constraints violated" in str(error):
        refusals = ((guard, guard.refusal(most)) for guard in asked)
        guard, refusal = next(((one, said) for one, said in refusals if said), (None, None))
        if guard is not None and isinstance(module.get_submodule(guard.place.path), torch.nn.RNNBase):
            return BadTask(guard.place.path or "model", f"{_LOOPS}{guard.place}")
        if refusal is not None:
            return refusal
    if isinstance(module.get_submodule(place.path), torch.nn.RNNBase) and _IS_PACKED.search(f"{error} {place.line}"):
        return BadTask(place.path or "model", f"{_PACKED}{place}")
    return BadTask(place.path or "model", f"cannot be exported: {_why(error, place.line)}{place}")


def unlisted(op: str, place: Place) -> str:
    """What to say of an operator that is not of the whitelist."""
    name = op.split(".")[1] if op.count(".") > 1 else op
    why = next((why for why, pattern in _BY_NAME.items() if pattern.search(name)), _OTHERS)
    return f"uses {op}, which no task may: {why}{place}"


def _is_packed(part: torch.nn.Module) -> bool:
    tensors = (*part.parameters(recurse=False), *part.buffers(recurse=False))
    return (
        "quantized" in type(part).__module__.split(".")
        or any(isinstance(value, torch.ScriptObject) for value in vars(part).values())
        or any(one.is_quantized or type(one.data) is not torch.Tensor for one in tensors)
    )


def _held_modules(part: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules in the lists and maps of a part, by the attribute's name."""
    for name, value in vars(part).items():
        if name == "_modules":
            continue
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for one in inside:
            if isinstance(one, torch.nn.Module):
                yield name, one


def _written(fx: torch.fx.Node) -> Iterator[str]:
    """Names of the placeholders whose memory a node writes into."""
    schema = getattr(fx.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for formal, arg in zip(schema.arguments, fx.args, strict=False):
        if formal.is_write and isinstance(arg, torch.fx.Node):
            while arg.op != "placeholder" and (before := _aliased(arg)) is not None:
                arg = before
            if arg.op == "placeholder":
                yield arg.name


def _aliased(fx: torch.fx.Node) -> torch.fx.Node | None:
    """What a node is a view of, or the same as."""
    if fx.target is operator.getitem:
        return fx.args[0]  # type: ignore[return-value]
    schema = getattr(fx.target, "_schema", None)
    if schema is None or not any(one.alias_info is not None for one in schema.returns):
        return None
    for formal, arg in zip(schema.arguments, fx.args, strict=False):
        if formal.alias_info is not None and isinstance(arg, torch.fx.Node):
            return arg
    return None


def _why(error: Exception, line: str) -> str:
    text, kind = str(error), type(error).__name__
    if _IS_NUMPY.search(line) or _IS_NUMPY.search(text):
        return _NUMPY
    if "DataDependent" in kind or "data-dependent" in text:
        return _NUMBER if _IS_NUMBER.search(line) else _DATA_DEPENDENT
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if "Constraints violated" in text:
        said = next((line for line in lines if line.startswith("- ")), lines[0])
        return f"a size that is said to vary may not: {said[:240]}; give it one value in all examples"
    advice = _FIXED if _IS_FIXED.search(lines[0]) and _IS_SYMBOL.search(lines[0]) else ""
    return f"{advice}{kind}: {lines[0][:240]}"
