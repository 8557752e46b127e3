"""A provider's daemon that has been left unpaid by many, changed from outside."""

from __future__ import annotations

from nodewire.provider.admission.free_chunks import FREE_OF_WORK, FreeChunks


def expect_no_payment() -> None:
    """From now on this process asks as much work as if it had been left unpaid by 64 times more than it minds."""
    FreeChunks.unpaid = property(lambda self: 64 * FREE_OF_WORK)  # type: ignore[assignment, method-assign]
