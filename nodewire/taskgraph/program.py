"""A graph task's program as who does not run it reads it: sizes, bounds of integers, operators. nips/26.

No torch, and nothing is checked that does not matter here: what loads a program (`nodewire.graph.program.format`) does
that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodewire.errors import BadTask, BadVersion
from nodewire.protocol.encoding import canonical
from nodewire.protocol.tensors.frame import MAX_RANK

VERSION = 1
MAX_BYTES = 4 * 2**20
MAX_VALUES = 2**19
"""Lists, maps and their entries in a program: what bounds the memory that reading it takes."""
MAX_DIMS, MAX_PORTS, MAX_NODES = 3, 64, 16_384
_LOOK_UP = "aten.embedding.default"
_RESHAPED = {f"aten.{name}" for name in ("view.default", "reshape.default", "unsqueeze.default", "clone.default")}
_MOST = {"dims": MAX_DIMS, "inputs": MAX_PORTS, "outputs": MAX_PORTS, "weights": MAX_NODES, "nodes": MAX_NODES}
"""Entries of each; no provider loads a program with more."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: `value` is what the nodes call it; integers lie in [0, below) where `below` is not 0."""

    edge: str
    tensor: str
    shape: tuple[int | str, ...]
    value: str
    below: int = 0


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """`nodes` are [name, operator, args, kwargs] as they stand in the document."""

    dims: dict[str, int]
    volume: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: dict[str, tuple[int, ...]]
    nodes: tuple[tuple[str, str, list[Any], dict[str, Any]], ...]

    @classmethod
    def decode(cls, data: bytes) -> GraphProgram:
        """Raises BadTask, BadVersion, TooLarge."""
        document = canonical.decode(data, max_bytes=MAX_BYTES, max_values=MAX_VALUES)
        if not isinstance(document, dict):
            raise BadTask("program", "not a map")
        if document.get("v") != VERSION:
            raise BadVersion.from_versions(document.get("v"), VERSION)
        for field, most in _MOST.items():
            if not isinstance(found := document.get(field), list | dict) or len(found) > most:
                raise BadTask("program", f"{field} are not at most {most}")
        try:
            return cls(
                dims={str(name): int(most) for name, most in document["dims"].items()},
                volume=int(document["volume"]),
                inputs=tuple(_port(one, one["tensor"], int(one["below"])) for one in document["inputs"]),
                outputs=tuple(_port(one, one["value"], 0) for one in document["outputs"]),
                weights={str(one["name"]): _sizes(one["shape"]) for one in document["weights"]},
                nodes=tuple(_node(one) for one in document["nodes"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadTask("program", "not of the form that a graph program has") from error

    def below(self, port: Port) -> int:
        """What the integers of an input must be less than, as far as it is known: 0 where it is not.

        That is what the input says itself, and the rows of each table in which all of them are looked up, in whatever
        shape.
        """
        found = [port.below] if port.below else []
        same = {port.value}
        for name, operator, args, _ in self.nodes:
            refs = [one.get("ref") if isinstance(one, dict) else None for one in args[:2]]
            if operator in _RESHAPED and refs and refs[0] in same:
                same.add(name)
            elif operator == _LOOK_UP and len(refs) == 2 and refs[1] in same and self.weights.get(str(refs[0])):
                found.append(self.weights[str(refs[0])][0])
        return min(found, default=0)


def _port(raw: dict[str, Any], value: Any, below: int) -> Port:
    shape = raw["shape"]
    if not isinstance(shape, list) or len(shape) > MAX_RANK or any(type(n) not in (int, str) for n in shape):
        raise ValueError("shape")
    return Port(str(raw["edge"]), str(raw["tensor"]), tuple(shape), str(value), below)


def _sizes(raw: list[Any]) -> tuple[int, ...]:
    if len(raw) > MAX_RANK:
        raise ValueError("shape")
    return tuple(map(int, raw))


def _node(raw: Any) -> tuple[str, str, list[Any], dict[str, Any]]:
    name, operator, args, kwargs = raw
    if not (
        isinstance(name, str) and isinstance(operator, str) and isinstance(args, list) and isinstance(kwargs, dict)
    ):
        raise ValueError("node")
    return name, operator, args, kwargs
