"""The worker entry of the cheat `short`."""

from nodewire_faults.cheats import Short
from nodewire_faults.engine import load_with

load = load_with(Short)
