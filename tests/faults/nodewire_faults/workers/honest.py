"""The worker entry of cheats of the daemon: the worker does its work."""

from nodewire_faults.cheats import Honest
from nodewire_faults.engine import load_with

load = load_with(Honest)
