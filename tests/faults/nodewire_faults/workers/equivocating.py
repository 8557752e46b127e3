"""The worker entry of the cheat `equivocating`: who sends otherwise than it commits to does its work."""

from nodewire_faults.cheats import Honest
from nodewire_faults.engine import load_with

load = load_with(Honest)
