"""The worker entry of the cheat `colder`: its driver chooses other tokens."""

from nodewire_faults.cheats import Honest
from nodewire_faults.choice import choose_with, colder
from nodewire_faults.engine import load_with

choose_with(colder)
load = load_with(Honest)
