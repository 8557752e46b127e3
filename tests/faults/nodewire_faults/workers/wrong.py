"""The worker entry of the cheat `wrong`."""

from nodewire_faults.cheats import Wrong
from nodewire_faults.engine import load_with

load = load_with(Wrong)
