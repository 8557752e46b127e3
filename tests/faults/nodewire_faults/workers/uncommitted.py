"""The worker entry of the cheat `uncommitted`: who commits to nothing does its work."""

from nodewire_faults.cheats import Honest
from nodewire_faults.engine import load_with

load = load_with(Honest)
