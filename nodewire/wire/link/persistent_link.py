"""A link that is kept: dialled again whenever it is lost, until it is not wanted any more."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import NodewireError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from nodewire.wire.link.link import Link

PAUSE_S = 0.25
"""Between a dial that failed and the next, doubled each time up to `LONGEST_PAUSE_S`. A link that is lost is dialled at
once; the next one, if it does not last longer than this, as if it had failed."""
LONGEST_PAUSE_S = 2.0

_log = logging.getLogger("nodewire.wire")


class Links(Protocol):
    """The node, as far as this needs it."""

    async def link(self, public: str, addresses: Sequence[str]) -> Link: ...

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Until the node is closed."""


class PersistentLink:
    """Dials `addresses` of the key `public` (hex) until the node is closed; made by `Node.keep`.

    `failed` gets the error of the first dial alone.
    """

    def __init__(
        self, links: Links, public: str, addresses: Sequence[str], failed: Callable[[NodewireError], None]
    ) -> None:
        self._task = links.run(self._keep(links, public, tuple(addresses), failed))

    async def _keep(
        self, links: Links, public: str, addresses: Sequence[str], failed: Callable[[NodewireError], None]
    ) -> None:
        pause_s, dials, clock = 0.0, 0, asyncio.get_running_loop().time
        while True:
            dials += 1
            try:
                link = await links.link(public, addresses)
            except NodewireError as error:
                _log.debug("%s is out of reach: %s", public[:8], error)
                if dials == 1:
                    failed(error)
                pause_s = max(pause_s, PAUSE_S)
            else:
                began_s = clock()
                await link.over.wait()
                pause_s = 0.0 if clock() - began_s > PAUSE_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, PAUSE_S), LONGEST_PAUSE_S)

    def close(self) -> None:
        """Let the link be lost when it is; it goes on as long as it does."""
        self._task.cancel()
