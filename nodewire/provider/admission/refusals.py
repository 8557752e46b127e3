"""Refusals that a provider tells. Relays keep each one, so they have a part of a day's room, whoever asks for more."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from nodewire.core.budget import Budget
from nodewire.errors import BadInput, NodewireError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodewire.nostr.event import Event
    from nodewire.provider.job_counters import Figures

log = logging.getLogger("nodewire.provider")

BYTES_PER_DAY = 8 * 1024**2
"""The room of a day's refusals, some 14,000: a 32nd of what our relay lets a key store. The rest is for paid work."""
BURST_BYTES = BYTES_PER_DAY // 4
"""At once, as relays count."""


class Refusals:
    """The refusals of one half of a provider (inference, training)."""

    def __init__(
        self,
        publish: Callable[[Event], Awaitable[None]],
        figures: Figures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish = publish
        self._figures = figures
        self._budget = Budget(BYTES_PER_DAY / 86_400, BURST_BYTES, clock)

    async def tell(self, refusal: Event) -> None:
        """Publish a refusal, if there is room for it today; else it is logged and counted."""
        if not self._budget.spend("", len(refusal.to_json())):
            self._figures.untold += 1
            log.info("job %s: the refusal is not told: today's room for refusals is full", refusal.tag("e"))
            return
        try:
            await self._publish(refusal)
        except NodewireError as failure:
            log.warning("feedback: %s", failure)


def is_answered(request: Event, error: NodewireError, public: str) -> bool:
    """Whether who sent a request hears that a glance refused it.

    It does not if the request is malformed, lacks the ad's work, or does not name the provider `public`.
    """
    return not isinstance(error, BadInput) and public in request.values("p")
