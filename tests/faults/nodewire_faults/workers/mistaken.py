"""The worker entry of the cheat `mistaken`: its driver chooses other tokens."""

from nodewire_faults.cheats import Honest
from nodewire_faults.choice import choose_with, one_of_64
from nodewire_faults.engine import load_with

choose_with(one_of_64)
load = load_with(Honest)
