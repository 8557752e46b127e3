"""One job's handover from nodes that die to their standbys, as one of its members takes part in it.

Whoever loses a link tells the driver; the driver, or for a dead driver the customer, signs a takeover, tells it to all
who stay and all who enter, and publishes it. Members check it against the plan and redirect their edges.

A link that is lost is no node that is dead: as long as nobody can know, the node has a moment to be heard of again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from nodewire.errors import LinkLost, NodewireError, NoProvider, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import LOCAL, Plan
from nodewire.protocol.takeover import LOST, Takeover, assigned, hedges, present
from nodewire.wire.awake import timeout_awake
from nodewire.wire.frames import Document
from nodewire.wire.link import Link
from nodewire.wire.mailbox import JobMailbox
from nodewire.wire.routing import routes_of

ENTER_S = 2.0
"""Within which a standby must be reached."""
RETURN_S = 3.0
"""Within which a node must be reached again that may be well, and say that it holds the job."""
MAX_RETURNS = 8
"""Of one node in a job: who comes and goes keeps it from its end, which must not be free."""

_log = logging.getLogger("nodewire.wire")


class Links(Protocol):
    """The node, as far as this needs it."""

    public: str

    async def link(self, public: str, addresses: Sequence[str]) -> Link: ...

    def open_link(self, peer: str) -> Link | None: ...

    async def holds(self, public: str, addresses: Sequence[str], request: str, patience_s: float) -> bool:
        """Whether the node can be reached and says that it holds the job."""


class Kept(Protocol):
    """The links that this node has to keep for the job."""

    def keep(self, peer: str) -> None: ...

    def let_go(self, peer: str) -> None: ...


class Handover:
    """`takeover` is the newest that was accepted, None before the first."""

    def __init__(
        self,
        keys: Keys,
        request: str,
        plan: Plan,
        manifest: Manifest,
        mailbox: JobMailbox,
        node: Links,
        addresses: Mapping[str, Sequence[str]],
        kept: Kept,
        *,
        open_chunk: Callable[[], int],
        changed: Callable[[Takeover], Awaitable[None]],
        publish: Callable[[Takeover], Awaitable[None]],
        takeover: Takeover | None = None,
    ) -> None:
        """`addresses` of providers and standbys; `open_chunk` says which chunk has not been closed; `changed` is told
        every takeover before its edges are redirected, `publish` those that are signed here."""
        self.takeover = takeover
        self._keys = keys
        self._request = request
        self._plan = plan
        self._manifest = manifest
        self._mailbox = mailbox
        self._node = node
        self._addresses = addresses
        self._kept = kept
        self._open_chunk = open_chunk
        self._changed = changed
        self._publish = publish
        self.missed: set[str] = set()
        """Whom this node itself found to be gone."""
        self._turn = asyncio.Lock()
        self._doubted: set[str] = set()
        """Lost, and perhaps well."""
        self._returns: Counter[str] = Counter()

    @property
    def assigned(self) -> dict[str, str]:
        """Every task's provider now."""
        return assigned(self._plan, self.takeover)

    @property
    def driver(self) -> str:
        """Public key of the node that drives now: a provider, or the customer for itself."""
        provider = self.assigned[self._manifest.driver.name]
        return self._plan.customer if provider == LOCAL else provider

    @property
    def gone(self) -> set[str]:
        """Who has been replaced."""
        return {left for _, left, _, _ in self.takeover.replaced} if self.takeover is not None else set()

    def others(self) -> list[str]:
        """All members that are in the job now, those who compute along too, this node left out."""
        return [one for one in present(self._plan, self.takeover) if one != self._me]

    @property
    def hedges(self) -> dict[str, str]:
        """By task who computes it along now."""
        return hedges(self._plan, self.takeover)

    @property
    def _me(self) -> str:
        return self._keys.public

    async def lost(self, peer: str, error: NodewireError) -> None:
        """This node's link to `peer` has ended.

        The job ends here and everywhere if the customer is gone, or who must be replaced has no standby.
        """
        if not self._is_in(peer):
            return
        if peer in self._addresses:
            self._kept.keep(peer)
        if peer != self._plan.customer and not self._may_replace(peer):
            await self._tell_driver(peer)
        elif peer not in self._doubted and not (isinstance(error, LinkLost) and await self._is_back(peer)):
            if not self._is_in(peer):
                return
            if peer == self._plan.customer:
                self._mailbox.cancel(LinkLost(peer, f"the customer is gone: {error}"))
            elif self._may_replace(peer):
                await self._replace(peer)

    def _is_in(self, peer: str) -> bool:
        return peer not in self.gone and peer in (*self.assigned.values(), self._plan.customer)

    async def _is_back(self, peer: str) -> bool:
        """Whether a node that was lost can be reached again and has the job; at once if nobody is where it was."""
        if self._returns[peer] >= MAX_RETURNS:
            return False
        self._doubted.add(peer)
        try:
            is_back = await self._node.holds(peer, self._addresses.get(peer, ()), self._request, RETURN_S)
        finally:
            self._doubted.discard(peer)
        self._returns[peer] += is_back
        return is_back

    async def _tell_driver(self, peer: str) -> None:
        if self.driver == peer:
            return
        try:
            await self._mailbox.control(self.driver, {"t": LOST, "peer": peer})
        except NodewireError as failure:
            _log.info("job %s: %s is lost, and the driver: %s", self._request[:8], peer[:8], failure)

    async def heard(self, peer: str, document: Document) -> None:
        """A member sent a control document; those that are not about handovers mean nothing here.

        Raises:
            BadInput, NotAllowed, BadSignature: a takeover that is none.
        """
        if document.get("t") == LOST:
            suspect = document.get("peer")
            if isinstance(suspect, str) and self._may_replace(suspect):
                if suspect == peer:  # it says that it cannot
                    await self._replace(peer)
                    return
                link = self._node.open_link(suspect)
                if link is not None:
                    await link.is_alive()  # one that is not loses the link, which is what counts
            return
        takeover = Takeover.from_control(document)
        if takeover is None or takeover == self.takeover:
            return
        takeover.check(self._request, self._plan, self._manifest, self.takeover)
        if takeover.outranks(self.takeover, self._plan.customer):
            await self.accept(takeover)
        elif self.takeover is not None and takeover.signer == peer:
            await self._mailbox.control(peer, self.takeover.stale())
        if document["t"] == "stale" and self._me in (self._plan.customer, self.driver):
            await self._issue(set(), known=(takeover,))

    async def accept(self, takeover: Takeover) -> None:
        """Go over to a checked takeover: from now on its assignment counts."""
        self.takeover = takeover
        if self._me not in present(self._plan, takeover):
            self._mailbox.replaced()
        await self._changed(takeover)
        routes = routes_of(self._manifest, self._plan, takeover, self._me)
        self._mailbox.take_over(takeover.attempt, routes)
        for peer in self.gone:
            self._kept.let_go(peer)
        consumers = {c for r in routes.values() if r.producer == self._me for c in (*r.consumers, *r.aside)}
        for peer in consumers & self._addresses.keys() - {self._me}:
            self._kept.keep(peer)

    def _may_replace(self, peer: str) -> bool:
        """Whether it is this node that signs when `peer` is gone: the driver, or for it the customer."""
        if peer not in self.assigned.values() or peer == self._me:
            return False
        return self._me == (self._plan.customer if peer == self.driver else self.driver)

    async def _replace(self, peer: str) -> None:
        _log.info("job %s: %s is gone, its standby enters", self._request[:8], peer[:8])
        self.missed.add(peer)
        await self._issue({peer})

    async def _issue(self, gone: set[str], known: Sequence[Takeover] = ()) -> None:
        """Sign a takeover, follow it, and tell it to all who stay and enter; who cannot be told is gone, too."""
        async with self._turn:
            if gone and gone <= self.gone:  # by another takeover, in the meantime
                return
            while True:
                before = [one for one in (self.takeover, *known) if one is not None]
                try:
                    takeover = Takeover.issue(
                        self._keys,
                        request=self._request,
                        plan=self._plan,
                        gone=gone,
                        known=before,
                        chunk=self._open_chunk(),
                    )
                except (NoProvider, NotAllowed) as error:
                    self._mailbox.cancel(LinkLost(next(iter(gone), ""), f"gone, and {error}"))
                    return
                await self.accept(takeover)
                gone = await self._tell(takeover)
                if not gone:
                    break
        await self._publish(takeover)

    async def _tell(self, takeover: Takeover) -> set[str]:
        """Send the takeover to everybody; the standbys that cannot be reached.

        Who stays and has no link just now is lost too, and replaced next.
        """
        document = {**takeover.control(), "job": self._request}
        entering = {entered for _, _, entered, _ in takeover.replaced}
        called = []
        for peer in self.others():
            if peer in entering or (self._node.open_link(peer) is None and peer not in self._mailbox.aside):
                called.append(self._call(peer, document))
            else:
                await self._mailbox.control(peer, takeover.control())
        return {peer for peer in await asyncio.gather(*called) if peer in entering}

    async def _call(self, peer: str, document: Document) -> str | None:
        """Send a document to a peer without link; the peer if it cannot be reached."""
        try:
            async with timeout_awake(ENTER_S):
                link = self._node.open_link(peer) or await self._node.link(peer, self._addresses.get(peer, ()))
            link.send_control(document)
        except (NodewireError, TimeoutError) as error:
            _log.info("job %s: %s cannot be told of its takeover: %r", self._request[:8], peer[:8], error)
            return peer
        return None
