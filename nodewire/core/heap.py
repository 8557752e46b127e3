"""The garbage collector, kept from a heap that stays.

A daemon's modules and models are some 100,000 objects when it is ready. To look at them all takes the collector 60 ms,
and a peer chooses when it does: a few documents of thousands of empty lists are enough.

Python has the collector look at every object again when the process ends, though all of it goes to the kernel then.
That is a third of a second where torch is loaded, and an eighth at a customer's command.
"""

from __future__ import annotations

import atexit
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """The collector rests inside: imports and traces make many objects that stay, and call it again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze() -> None:
    """Have the collector pass over what lives now, and look only at what is made after it."""
    gc.collect()
    gc.freeze()


def freeze_at_exit() -> None:
    """Have the collector pass over all that lives when the process ends."""
    atexit.register(gc.freeze)
