"""What a model's code asks of sizes while it is traced, and where: export keeps what it was asked, but not by whom."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nodewire.errors import BadTask
from nodewire.graph.trace.places import Place, call_place, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from nodewire.graph.trace.examples import Signature

_TRIED = 12
"""Sizes of each dim at which a guard is tried, smallest and largest among them."""
_NOTES = "_log_guard"
_SOURCE = re.compile(r"\[(\d+)\]\.size\(\)\[(\d+)\]")
_PINNED = "which is said to vary: compute with x.shape, without int(), range() or a loop; or give it one value in all"


@dataclass(frozen=True, slots=True)
class Guard:
    """`asked` must hold of sizes; `dims` are its symbols' names; `late`: nobody enforces it."""

    asked: Any
    dims: Mapping[Any, str]
    place: Place
    late: bool

    @property
    def pins(self) -> bool:
        """Whether it leaves a size no choice."""
        return isinstance(self.asked, sympy.Eq)

    def refusal(self, most: Mapping[str, int]) -> BadTask | None:
        """What to say if it does not hold at all sizes up to `most`."""
        at = counterexample(self.asked, self.dims, most)
        if at is None:
            return None
        said = self.asked.xreplace({symbol: sympy.Symbol(name) for symbol, name in self.dims.items()})
        if isinstance(said, sympy.Eq) and said.lhs.is_Symbol and said.rhs.is_Integer:
            why = f"makes a constant of {said.lhs}, {_PINNED} examples"
        else:
            why = f"cannot run at {at}: it needs {said}; compute the same at every size, or let sizes vary less"
        return BadTask(self.place.path or "model", f"{why}{self.place}")


@contextmanager
def guards(module: torch.nn.Module, said: Signature) -> Iterator[Sequence[Guard]]:
    """What is asked while the body runs, in order."""
    found: list[Guard] = []
    parts = parts_of(module)
    before = getattr(ShapeEnv, _NOTES, None)  # torch's own, and nobody's promise: without it places are not named
    if before is None:
        yield found
        return

    def noted(self: ShapeEnv, prefix: str, g: Any, forcing_spec: bool) -> None:
        if "suppressed" not in prefix and (dims := _dims(self, g, said)):
            found.append(Guard(g, dims, call_place(parts), late=self.frozen))
        before(self, prefix, g, forcing_spec)

    setattr(ShapeEnv, _NOTES, noted)
    try:
        yield found
    finally:
        setattr(ShapeEnv, _NOTES, before)


def counterexample(asked: Any, dims: Mapping[Any, str], most: Mapping[str, int]) -> str | None:
    """Sizes at which something asked does not hold ("batch 2, length 3"), of those that are tried; None: it holds."""
    symbols = sorted(dims, key=str)
    for sizes in product(*(_spread(most[dims[one]]) for one in symbols)):
        if asked.xreplace(dict(zip(symbols, map(sympy.Integer, sizes), strict=True))) == sympy.false:
            return ", ".join(f"{dims[one]} {size}" for one, size in zip(symbols, sizes, strict=True))
    return None


def _dims(env: ShapeEnv, asked: Any, said: Signature) -> dict[Any, str]:
    """The symbols of what is asked, if all of them are sizes of inputs; else none."""
    found: dict[Any, str] = {}
    for symbol in asked.free_symbols:
        sources = [source.name for source in env.var_to_sources.get(symbol, ())]
        place = next((match for name in sources if (match := _SOURCE.search(name))), None)
        dim = said.inputs[int(place[1])].shape[int(place[2])] if place else None
        if not isinstance(dim, str):
            return {}
        found[symbol] = dim
    return found


def _spread(most: int) -> list[int]:
    """Sizes from 2 (what holds at 1 too, broadcasting apart) to `most`, denser where they are small."""
    steps = {round(2 * (most / 2) ** (k / (_TRIED - 1))) for k in range(_TRIED)}
    return sorted({2, 3, *steps, max(most - 1, 2)} & set(range(2, most + 1))) or [most]
