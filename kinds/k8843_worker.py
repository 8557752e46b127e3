"""The worker entry of kind 8843: hands a task to the engine that its manifest names. Imported by workers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadTask
from nodewire.graph import entry as graph
from nodewire.llm import entry as llm
from nodewire.protocol.model.manifest import REFERENCE_ENGINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nodewire.kind import Actor, Limits

_ENGINES: dict[str, Callable[[str, bytes, Sequence[Path], Limits], Actor]] = {
    "decoder.driver": llm.load,
    "decoder.stage": llm.load,
    REFERENCE_ENGINE: llm.load,
    "encoder.driver": graph.load,
    "graph": graph.load,
}


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The loaded task. Raises BadTask, BadHash, OverMemory before memory is taken."""
    if engine not in _ENGINES:
        raise BadTask("engine", f"{engine[:40]!r} is not one of {', '.join(_ENGINES)}")
    return _ENGINES[engine](engine, program, weights, limits)
