"""The worker entry of the cheat `scaled`."""

from nodewire_faults.cheats import Scaled
from nodewire_faults.engine import load_with

load = load_with(Scaled)
