"""What is alive when: a program walked on the meta device, where tensors have types and no bytes.

Memory is counted by storage, as the allocator does: views cost nothing, and a storage lives until its last view dies.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from nodewire.errors import BadTask, OverMemory, TooLarge
from nodewire.graph.program.format import MAX_SIZE, SOME, Node, Program
from nodewire.graph.program.interpreter import Interpreter, Value
from nodewire.graph.program.workspace import workspace_bytes
from nodewire.protocol.tensors.frame import MAX_RANK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.graph.program.whitelist import Op

MAX_MADE = 65_536
"""Tensors that a stranger's program may make, the pieces of its splits among them."""


@dataclass(frozen=True, slots=True)
class Type:
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Walk:
    """A program's course at given sizes.

    `live_bytes[k]` is what is allocated while node k runs, weights excluded: the inputs, earlier results still to be
    used, its result, its workspace (workspace.py); `leaving_bytes` what is while the outputs that are views are copied.
    `types` has every tensor's dtype and shape by name. `flops` counts multiplications and additions of matrix products,
    one operation per element otherwise.
    """

    live_bytes: tuple[int, ...]
    leaving_bytes: int
    types: Mapping[str, Type]
    flops: int

    @property
    def peak_bytes(self) -> int:
        return max((self.leaving_bytes, *self.live_bytes))


def weight_bytes(program: Program) -> int:
    return sum(weight.nbytes for weight in program.weights)


def corners(program: Program) -> list[dict[str, int]]:
    """The largest sizes that `dims` and `volume` admit: every order of filling the dims up, rounded up.

    A program whose sizes grow with its dims has its peak at one of them: sums of products of dims are convex in the
    logarithms of the dims, so their maximum over {each <= its most, product <= volume} lies at a vertex. What data
    decide is at its most there.
    """
    found: list[dict[str, int]] = []
    for order in permutations(program.dims):
        left, sizes = program.volume, {}
        for name in order:
            sizes[name] = min(program.dims[name], left)
            left = max(1, math.ceil(left / sizes[name]))
        if program.takes_some:
            sizes[SOME] = program.volume
        if sizes not in found:
            found.append(sizes)
    return found


def walk(
    program: Program, sizes: Mapping[str, int], budget_bytes: int, threads: int = 1, *, longest_s: float | None = None
) -> Walk:
    """Run the program on the meta device with dims of `sizes`, and measure what `threads` threads would take.

    With `longest_s`, of processor time, it is a stranger's, and the walk itself is bounded.

    Raises:
        BadTask: an operator refuses its arguments, a rank over 8, a negative or overflowing size; names the node.
        OverMemory: weights and what is alive at a node exceed `budget_bytes`, or one value alone would (a view that
            repeats a few bytes counts in full: whoever reads it does that work); names the node.
        TooLarge: a stranger's makes more tensors than MAX_MADE, or takes longer than that; names the node.

    """
    _check_arriving(program, sizes, budget_bytes)
    tally = _Tally(program, budget_bytes, threads, longest_s)
    inputs = {
        i.name: torch.empty([sizes[d] if isinstance(d, str) else d for d in i.shape], dtype=i.dtype, device="meta")
        for i in program.inputs
    }
    tally.start(inputs)
    outputs = Interpreter(program, tally.weights, "meta")(inputs, sizes, tally.after)
    return Walk(tuple(tally.live), tally.leaving(outputs), tally.types, tally.flops)


def _check_arriving(program: Program, sizes: Mapping[str, int], budget_bytes: int) -> None:
    """Weights and inputs, in Python's numbers, which do not overflow."""
    held = weight_bytes(program)
    if held > budget_bytes:
        raise OverMemory(max(program.weights, key=lambda w: w.nbytes).name, f"{held} bytes of weights in all")
    for one in program.inputs:
        held += math.prod(sizes[d] if isinstance(d, str) else d for d in one.shape) * one.dtype.itemsize
        if held > budget_bytes:
            raise OverMemory(one.name, f"{held} bytes of weights and inputs, {budget_bytes} to be had")


class _Tally:
    """Counts storages as they come and go."""

    def __init__(self, program: Program, budget_bytes: int, threads: int, longest_s: float | None) -> None:
        self.weights = {w.name: torch.empty(w.shape, dtype=w.dtype, device="meta") for w in program.weights}
        self._weight_bytes = weight_bytes(program)
        self._budget, self._threads = budget_bytes, threads
        self._made, self._most = 0, MAX_SIZE if longest_s is None else MAX_MADE
        self._longest_s = longest_s or math.inf
        self._ends_s = time.thread_time() + self._longest_s
        self._lasting = {_key(t) for t in self.weights.values()}
        self._storages: dict[str, list[tuple[int, int]]] = {}
        self._users: dict[int, int] = {}
        self._now = 0
        self.live: list[int] = []
        self.types = {name: Type(t.dtype, tuple(t.shape)) for name, t in self.weights.items()}
        self.flops = 0

    def start(self, inputs: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in inputs.items():
            self._add(name, tensor)
        self._fits(next(iter(inputs), "inputs"), self._now)

    def after(self, node: Node, op: Op, given: Mapping[str, Value], result: Value, freed: Sequence[str]) -> None:
        tensors = _tensors(result)
        self._made += len(tensors)
        if self._made > self._most:
            raise TooLarge(node.name, f"the program makes more than {self._most} tensors")
        if time.thread_time() > self._ends_s:
            raise TooLarge(node.name, f"to look at the program so far took {self._longest_s:g} s")
        for tensor in tensors:
            if not tensor.is_meta:  # made of numbers alone, and so for real
                raise BadTask(node.name, f"{op.name} of no tensor")
            if tensor.dim() > MAX_RANK:
                raise BadTask(node.name, f"a result of rank {tensor.dim()}, at most {MAX_RANK}")
            if (whole := tensor.numel() * tensor.element_size()) > tensor.untyped_storage().nbytes():
                self._fits(node.name, whole)
        self._add(node.name, result)
        try:
            beside, flops = workspace_bytes(op, given, tensors, self._threads), flops_of(op, given, tensors)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            # Arguments that the meta device lets pass, a dim out of range among them; a kernel would refuse them.
            raise BadTask(node.name, f"{op.name}: {type(error).__name__}: {error}"[:160]) from error
        peak = self._now + beside
        self._fits(node.name, peak)
        if any(size > MAX_SIZE for tensor in tensors for size in tensor.shape):  # and empty, since it fits
            raise BadTask(node.name, f"a result larger than {MAX_SIZE} in a dimension")
        self.live.append(peak)
        self.flops += flops
        for name in freed:
            for key, nbytes in self._storages.pop(name, ()):
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._now -= nbytes

    def leaving(self, outputs: Mapping[str, torch.Tensor]) -> int:
        """What is alive while contiguous copies of the outputs are made, all of which leave together."""
        copies = {name: t.numel() * t.element_size() for name, t in outputs.items() if not t.is_contiguous()}
        peak = self._now + sum(copies.values())
        self._fits(next(iter(copies), "outputs"), peak)
        return peak

    def _add(self, name: str, value: Value) -> None:
        held = {_key(t): t.untyped_storage().nbytes() for t in _tensors(value)}
        held = {key: nbytes for key, nbytes in held.items() if key not in self._lasting}
        for key, nbytes in held.items():
            if key not in self._users:
                self._users[key] = 0
                self._now += nbytes
            self._users[key] += 1
        self._storages[name] = list(held.items())
        if isinstance(value, torch.Tensor):
            self.types[name] = Type(value.dtype, tuple(value.shape))

    def _fits(self, name: str, nbytes: int) -> None:
        if self._weight_bytes + nbytes > self._budget:
            raise OverMemory(name, f"{self._weight_bytes} bytes of weights and {nbytes} live, {self._budget} to be had")


def _tensors(value: Value) -> list[torch.Tensor]:
    return [t for t in (value if isinstance(value, list) else [value]) if isinstance(t, torch.Tensor)]


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def flops_of(op: Op, given: Mapping[str, Value], results: Sequence[torch.Tensor]) -> int:
    size = sum(t.numel() for t in results)
    match op.name.split(".")[1]:
        case "linear":
            return 2 * size * int(given["weight"].shape[-1])
        case "matmul" | "mm" | "bmm":
            return 2 * size * int(given["self"].shape[-1])
        case "addmm":
            return 2 * size * int(given["mat1"].shape[-1])
        case "scaled_dot_product_attention":
            return 4 * size * int(given["key"].shape[-2])
        case _ if op.name.startswith("py."):
            return 0
        case _:
            return size
