"""One node's membership in a job: its mailbox, its links to the other members, its part in their handovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from nodewire.errors import LinkLost, NodewireError, first_of
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.protocol import takeover as takeovers
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import Plan
from nodewire.protocol.takeover import Takeover
from nodewire.wire.handover import Handover
from nodewire.wire.keeping import KeptLink
from nodewire.wire.mailbox import Tape
from nodewire.wire.node import Node
from nodewire.wire.routing import routes_of


class Membership:
    """`mailbox` is open from the beginning. `routes` are the job's edges by name, as they are then."""

    def __init__(
        self,
        keys: Keys,
        request: str,
        plan: Plan,
        manifest: Manifest,
        node: Node,
        addresses: Mapping[str, Sequence[str]],
        *,
        grace_s: float,
        tape: Tape,
        keep_inputs: bool = False,
        takeover: Takeover | None = None,
        noticed: Callable[[], None] = lambda: None,
    ) -> None:
        """`addresses` of providers and standbys; `takeover`: the one by which this node enters; `noticed` is called
        when a link is lost.

        Raises:
            NotAllowed: the job is open here already.
        """
        # Only a generation goes on with a standby; a call of another model is made again.
        self.hands_over = manifest.mode == "generate"
        self.routes = routes_of(manifest, plan, takeover, keys.public)
        self._keys = keys
        self._request = request
        self._plan = plan
        self._manifest = manifest
        self._node = node
        self._addresses = addresses
        self._takeover = takeover
        self._noticed = noticed
        self._losses: asyncio.Queue[tuple[str, NodewireError]] = asyncio.Queue()
        self._kept: dict[str, KeptLink] = {}
        self.mailbox = node.open_job(
            request,
            self.routes,
            takeover.attempt if takeover is not None else 0,
            on_lost=self._lost if self.hands_over else None,
            grace_s=grace_s,
            tape=tape,
            keep_inputs=keep_inputs,
        )

    def handover(
        self,
        *,
        open_chunk: Callable[[], int],
        changed: Callable[[Takeover], Awaitable[None]],
        publish: Callable[[Event], Awaitable[None]],
    ) -> Handover:
        """This node's part in handovers; `changed` as in Handover, `publish` takes what is signed here as an event."""

        async def announce(takeover: Takeover) -> None:
            await publish(takeovers.build(self._keys, takeover, created_at=int(time.time())))

        return Handover(
            self._keys,
            self._request,
            self._plan,
            self._manifest,
            self.mailbox,
            self._node,
            self._addresses,
            self,
            open_chunk=open_chunk,
            changed=changed,
            publish=announce,
            takeover=self._takeover,
        )

    async def link(self, peer: str) -> None:
        """Reach a member, and again whenever its link is lost while the job goes on.

        One that cannot be reached at first is lost, and replaced if the job may go on without it.

        Raises:
            LinkLost: it may not.
        """
        if self.hands_over:
            self.keep(peer)
            return
        try:
            await self._node.link(peer, self._addresses[peer])
        except NodewireError as error:
            raise LinkLost(peer, str(error)) from error

    def keep(self, peer: str) -> None:
        """In a job with handover: dial a member, and again whenever its link is lost."""
        if peer not in self._kept:
            addresses = self._addresses.get(peer, ())
            self._kept[peer] = self._node.keep(peer, addresses, lambda error: self._lost(peer, error))

    def let_go(self, peer: str) -> None:
        """Dial a member no more: it was replaced."""
        if (kept := self._kept.pop(peer, None)) is not None:
            kept.close()

    async def follow_losses(self, handover: Handover) -> None:
        """Tell `handover` every loss, until cancelled; in the meantime links are kept. Raises as Handover.lost."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    group.create_task(handover.lost(*await self._losses.get()))
        except ExceptionGroup as failures:
            raise first_of(failures) from failures

    def close(self) -> None:
        """The job is over here: no link is dialled for it any more."""
        for peer in list(self._kept):
            self.let_go(peer)

    def _lost(self, peer: str, error: NodewireError) -> None:
        self._noticed()
        self._losses.put_nowait((peer, error))
