"""What is alive when: a program walked on the meta device, where tensors have types and no bytes.

Memory is counted by storage, as the allocator does: views cost nothing, and a storage lives until its last view dies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch

from nodewire.errors import BadTask, OverMemory
from nodewire.graph.format import MAX_RANK, MAX_SIZE, SOME, Node, Program
from nodewire.graph.interpret import Interpreter, Value
from nodewire.graph.whitelist import Op

ATTENTION = "aten.scaled_dot_product_attention.default"


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
    used, its result, its workspace. `types` has every tensor's dtype and shape by name. `flops` counts multiplications
    and additions of matrix products, one operation per element otherwise.
    """

    live_bytes: tuple[int, ...]
    types: Mapping[str, Type]
    flops: int

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes, default=0)


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
        sizes[SOME] = program.volume
        if sizes not in found:
            found.append(sizes)
    return found


def walk(program: Program, sizes: Mapping[str, int], budget_bytes: int) -> Walk:
    """Run the program on the meta device with dims of `sizes`, and measure.

    Raises:
        BadTask: an operator refuses its arguments, a rank over 8, a negative or overflowing size; names the node.
        OverMemory: weights and what is alive at a node exceed `budget_bytes`, or one value alone would (a view that
            repeats a few bytes counts in full: whoever reads it does that work); names the node.
    """
    tally = _Tally(program, budget_bytes)
    inputs = {
        i.name: torch.empty([sizes[d] if isinstance(d, str) else d for d in i.shape], dtype=i.dtype, device="meta")
        for i in program.inputs
    }
    tally.start(inputs)
    Interpreter(program, tally.weights, "meta")(inputs, sizes, tally.after)
    return Walk(tuple(tally.live), tally.types, tally.flops)


class _Tally:
    """Counts storages as they come and go."""

    def __init__(self, program: Program, budget_bytes: int) -> None:
        self.weights = {w.name: torch.empty(w.shape, dtype=w.dtype, device="meta") for w in program.weights}
        self._weight_bytes = weight_bytes(program)
        self._budget = budget_bytes
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
        for tensor in tensors:
            if tensor.dim() > MAX_RANK:
                raise BadTask(node.name, f"a result of rank {tensor.dim()}, at most {MAX_RANK}")
            self._fits(node.name, tensor.numel() * tensor.element_size())
            if any(size > MAX_SIZE for size in tensor.shape):  # and empty, so that it fits
                raise BadTask(node.name, f"a result larger than {MAX_SIZE} in a dimension")
        self._add(node.name, result)
        peak = self._now + workspace_bytes(op, given)
        self._fits(node.name, peak)
        self.live.append(peak)
        self.flops += flops_of(op, given, tensors)
        for name in freed:
            for key, nbytes in self._storages.pop(name, ()):
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._now -= nbytes

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


def workspace_bytes(op: Op, given: Mapping[str, Value]) -> int:
    """What a kernel allocates beside its result: attention's float copy of a boolean mask, and its log-sum-exp."""
    if op.name != ATTENTION:
        return 0
    query: torch.Tensor = given["query"]
    mask: torch.Tensor | None = given.get("attn_mask")
    sums = query.numel() // max(1, query.shape[-1]) * 4
    return sums + (mask.numel() * query.element_size() if mask is not None and mask.dtype == torch.bool else 0)


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
