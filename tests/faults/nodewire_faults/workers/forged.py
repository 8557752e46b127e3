"""The worker entry of the cheat `forged`: it is the daemon that cheats."""

from nodewire_faults.cheats import Honest
from nodewire_faults.engine import load_with

load = load_with(Honest)
