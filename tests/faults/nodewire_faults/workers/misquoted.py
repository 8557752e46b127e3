"""The worker entry of the cheat `misquoted`."""

from nodewire_faults.cheats import Misquoted
from nodewire_faults.engine import load_with

load = load_with(Misquoted)
