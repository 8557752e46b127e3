"""One node's membership in a job: its mailbox, and its links to the other members as long as the job goes on.

A link that is lost is no node that is dead. As long as nobody can know, the node has a moment to be heard of again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.errors import Busy, LinkLost, NodewireError, NotAllowed, first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodewire.protocol.model.manifest import Manifest
    from nodewire.wire.job.channel_spec import JobChannelSpec
    from nodewire.wire.link.persistent_link import PersistentLink
    from nodewire.wire.node import Node

RETURN_S = 3.0
"""Within which a node must be reached again that may be well, and say that it holds the job."""
MAX_RETURNS = 8
"""Of one node in a job: one that comes and goes keeps the job from its end, which must not be free."""

_log = logging.getLogger("nodewire.wire")


class Membership:
    """`mailbox` is open from the beginning. `routes` are the job's edges by name."""

    def __init__(
        self,
        channel: JobChannelSpec,
        manifest: Manifest,
        node: Node,
        addresses: Mapping[str, Sequence[str]],
        *,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """`channel` is that of the job, of which this object has the lost members.

        `addresses` are those of providers; `on_loss` is called when a link is lost.

        Raises:
            NotAllowed: the job is open here already.

        """
        # Only a generation outlives its links; a call of another model is made again.
        self.relinks = manifest.mode == "generate"
        self.routes = channel.routes
        self.lost_here: set[str] = set()
        """Members that this node itself found to be gone."""
        self._request = channel.request
        self._node = node
        self._addresses = addresses
        self._on_loss = on_loss
        self._losses: asyncio.Queue[tuple[str, NodewireError]] = asyncio.Queue()
        self._doubted: set[str] = set()
        """Lost, and perhaps well."""
        self._returns: Counter[str] = Counter()
        self._kept: dict[str, PersistentLink] = {}
        self.mailbox = node.open_job(replace(channel, on_lost=self._lost if self.relinks else None))

    async def link(self, peer: str) -> None:
        """Reach a member, and again whenever its link is lost while a generation goes on.

        Raises:
            LinkLost: the member of a call cannot be reached.

        """
        if self.relinks:
            self._keep(peer)
            return
        try:
            await self._node.link(peer, self._addresses[peer])
        except NodewireError as error:
            raise LinkLost(peer, str(error)) from error

    async def follow_losses(self) -> None:
        """Look after every member whose link is lost, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    group.create_task(self._look_after(*await self._losses.get()))
        except ExceptionGroup as failures:
            raise first_of(failures) from failures

    def close(self) -> None:
        """The job is over here: no link is dialled for it any more."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    async def _look_after(self, peer: str, error: NodewireError) -> None:
        """The link to a member has ended: the job does, too, unless the member comes back and has it."""
        if peer in self._doubted:
            return
        self._keep(peer)
        # A provider whose process stands still is replaced at once. In a customer's place there is nobody.
        is_awaited = isinstance(error, LinkLost) or peer not in self._addresses
        holds = await self._holds(peer) if is_awaited else None
        if holds:
            return
        reason = f"gone: {error}" if holds is None else "there, and holds the job no more"
        if holds is None and not isinstance(error, Busy | NotAllowed):  # who says that is there
            self.lost_here.add(peer)
        _log.info("job %s: %s is %s", self._request[:8], peer[:8], reason)
        self.mailbox.cancel(LinkLost(peer, reason))

    async def _holds(self, peer: str) -> bool | None:
        """Whether a member that was lost has the job; None if it is gone, at once if nobody is where it was."""
        if self._returns[peer] >= MAX_RETURNS:
            return None
        self._doubted.add(peer)
        try:
            holds = await self._node.holds(peer, self._addresses.get(peer, ()), self._request, RETURN_S)
        finally:
            self._doubted.discard(peer)
        self._returns[peer] += holds is True
        return holds

    def _keep(self, peer: str) -> None:
        """Dial a member whose address is known, and again whenever its link is lost."""
        addresses = self._addresses.get(peer)
        if addresses and peer not in self._kept:
            self._kept[peer] = self._node.keep(peer, addresses, lambda error: self._lost(peer, error))

    def _lost(self, peer: str, error: NodewireError) -> None:
        self._on_loss()
        self._losses.put_nowait((peer, error))
