"""The worker entry of the cheat `second`: its driver chooses other tokens."""

from nodewire_faults.cheats import Honest
from nodewire_faults.choice import choose_with, second_best
from nodewire_faults.engine import load_with

choose_with(second_best)
load = load_with(Honest)
