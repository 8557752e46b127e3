"""The worker entry of the cheat `stale`."""

from nodewire_faults.cheats import Stale
from nodewire_faults.engine import load_with

load = load_with(Stale)
