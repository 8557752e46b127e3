"""The worker entry of the cheat `stale`: an answer before, of this session or another, is put out again."""

from nodewire_faults.cheats import Stale, Tensors
from nodewire_faults.engine import load_with

_ANSWERS: dict[str, list[Tensors]] = {}

load = load_with(lambda: Stale(_ANSWERS))
