"""The worker entry of the cheat `nan`."""

from nodewire_faults.cheats import Nan
from nodewire_faults.engine import load_with

load = load_with(Nan)
