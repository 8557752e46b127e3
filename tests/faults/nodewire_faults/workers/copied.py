"""The worker entry of the cheat `copied`: who copies commitments does no work either."""

from nodewire_faults.cheats import Skipped
from nodewire_faults.engine import load_with

load = load_with(Skipped)
