"""The worker entry of `wary`: whoever asks for much work does its own."""

from nodewire_faults.cheats import Honest
from nodewire_faults.engine import load_with

load = load_with(Honest)
