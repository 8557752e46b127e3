"""The worker entry of the cheat `other`: honest computation with another model's weights."""

from nodewire_faults.cheats import Honest
from nodewire_faults.engine import exchange_weights, load_with, noisy

exchange_weights(noisy(0.1))
load = load_with(Honest)
