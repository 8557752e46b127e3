"""The worker entry of the cheat `skipped`."""

from nodewire_faults.cheats import Skipped
from nodewire_faults.engine import load_with

load = load_with(Skipped)
