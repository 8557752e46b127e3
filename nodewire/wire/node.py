"""A node: one Nostr identity, its links to other nodes, and the jobs that run over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.wire.evidence.pull import PULL, Holder, Pulls
from nodewire.wire.job.latency_query import LatencyQuery
from nodewire.wire.job.mailbox import CANCEL, ERROR, RESUME, JobMailbox
from nodewire.wire.job.presence_query import PresenceQuery
from nodewire.wire.job.registry import Jobs
from nodewire.wire.link.link_manager import ANYBODY, Ladder, LinkPolicy, Links
from nodewire.wire.link.persistent_link import PersistentLink
from nodewire.wire.measure.survey import PACE_S, Survey

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from nodewire.errors import NodewireError
    from nodewire.nostr.keys import Keys
    from nodewire.wire.framing.frames import Document
    from nodewire.wire.job.channel_spec import JobChannelSpec
    from nodewire.wire.link.happy_eyeballs import Way
    from nodewire.wire.link.link import Link, Rung


class Node:
    """Listens, dials, and keeps at most one link to each peer.

    `on_control(peer, document)` is given what is no open job's; `holder` decides what those who pull get, of whom the
    policy's judges may at any time. `expect(public key)`: who may have us meet it at a splice, beside the judges and
    who is in a job with us. `ladder`, once set, knows the ways to peers that no address leads to.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        on_control: Callable[[str, Document], None] = lambda peer, document: None,
        holder: Holder | None = None,
        expect: Callable[[str], bool] = lambda peer: False,
        policy: LinkPolicy = ANYBODY,
        survey_s: float = PACE_S,
    ) -> None:
        """`survey_s`: how often links are looked at, in seconds (`survey`)."""
        self.public = keys.public
        self.survey = Survey(keys.public, pace_s=survey_s, unix_s=policy.unix_s)
        self._admit = policy.admit
        self._on_control = on_control
        self._judges = policy.judges
        self._expect = expect
        self._pulls = Pulls(self, holder, policy.judges)
        self._jobs = Jobs(self, policy.patience.early_s)
        self._presence = PresenceQuery(self._jobs.get)
        self._pacing = LatencyQuery(self._jobs.get)
        self._links = Links(keys, self, self._linked, policy)
        # Frames come and go without a stop here.
        self.open_link = self._links.open.get
        self.data_begins, self.data_ends, self.credit = self._jobs.data_begins, self._jobs.data_ends, self._jobs.credit

    @property
    def peers(self) -> Mapping[str, Link]:
        """The open links by public key."""
        return self._links.open

    @property
    def turned_away(self) -> Mapping[str, int]:
        """How many came and got no link, by why (`wire.link.link_manager`)."""
        return self._links.turned_away

    @property
    def half_open(self) -> int:
        """Connections that have not proven themselves yet."""
        return len(self._links.strangers)

    @property
    def ladder(self) -> Ladder | None:
        return self._links.ladder

    @ladder.setter
    def ladder(self, ladder: Ladder) -> None:
        self._links.ladder = ladder

    async def listen(self, host: str = "0.0.0.0", port: int = 0) -> str:  # noqa: S104 - peers are strangers
        """Accept links on an address (port 0: any free one), and say which. Raises OSError."""
        return await self._links.listen(host, port)

    async def link(self, public: str, addresses: Sequence[str]) -> Link:
        """The link to `public`: the one that is open, or a new one to the first address that proves to be it.

        Raises:
            BadPeer: somebody else answers at the addresses.
            NotAllowed, Busy: it does not admit us.
            LinkLost, TimedOut: no address answers.
            BadInput: no address, over 16, or a malformed one.

        """
        return await self._links.link(public, addresses)

    def keep(
        self,
        public: str,
        addresses: Sequence[str],
        failed: Callable[[NodewireError], None] = lambda error: None,
    ) -> PersistentLink:
        """Have a link to `public`, and another one whenever it is lost, until the result is closed.

        `failed` is told why, if the first one cannot be had at once.
        """
        return PersistentLink(self, public, addresses, failed)

    def open_job(self, channel: JobChannelSpec) -> JobMailbox:
        """The mailbox of a job on this node.

        Raises:
            NotAllowed: the job is open already.
            TooLarge: too many routes, or a limit over 256 MiB.

        """
        return self._jobs.open(channel)

    async def holds(self, public: str, addresses: Sequence[str], request: str, patience_s: float) -> bool | None:
        """Whether the node `public` says that it holds the job (`wire.job.presence_query`).

        None if it does not answer in time.

        Without addresses it is for the node to come.
        """
        reaching = self.link(public, addresses) if addresses else self.reach(public)
        return await self._presence.ask(reaching, public, request, patience_s)

    async def pace(self, public: str, addresses: Sequence[str], request: str, patience_s: float) -> int | None:
        """What the node `public` says that its part of a turn of the job takes, in microseconds.

        It is asked by `wire.job.latency_query`.
        """
        reaching = self.link(public, addresses) if addresses else self.reach(public)
        return await self._pacing.ask(reaching, public, request, patience_s)

    async def close(self) -> None:
        """End all links and stop listening."""
        await self._links.close()

    # What a ladder calls (`wire.nat`).

    def expects(self, peer: str) -> bool:
        """Whether `peer` may ask to be met: a job, or this node itself, wants a link to it."""
        return self._admit(peer) and (
            self._links.is_dialling(peer)
            or peer in self._judges
            or self._expect(peer)
            or any(peer in job.members for job in self._jobs)
        )

    async def secure(self, peer: str, connection: socket.socket, rung: Rung) -> Link:
        """A link to `peer` over a connection to whoever it is, as the end that dials.

        Raises:
            BadPeer: somebody else is there.
            NotAllowed, Busy: `peer` does not admit us.
            LinkLost, TimedOut: whoever it is does not answer.

        """
        return await self._links.secure(peer, connection, rung)

    async def serve(self, peer: str, connection: socket.socket, rung: Rung) -> Link:
        """As `secure`, as the end that is dialled. The link is among `peers` when this returns."""
        return await self._links.serve(peer, connection, rung)

    async def meet(self, peer: str, way: Way) -> None:
        """Link to `peer`, who has asked for it, as the end that dials; not if there is a link that lives."""
        await self._links.meet(peer, way)

    # What mailboxes call.

    async def reach(self, peer: str) -> Link:
        """The open link to `peer`; one that is not there yet may come while `dial_s` lasts. Raises LinkLost."""
        return await self._links.reach(peer)

    def forget(self, job: JobMailbox) -> None:
        self._jobs.forget(job)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._links.run(work)

    def end_job(self, job: JobMailbox) -> None:
        for peer in job.members:
            if (link := self.open_link(peer)) is not None:
                link.allowance.excuse(job.granted.get(peer, 0))
                link.leave(job.request)
                link.discard(job.request)

    # What links call.

    def control(self, link: Link, document: Document) -> None:
        if any(one.handle(link, document) for one in (self._presence, self._pacing, self.survey)):
            return
        if self._jobs.control(link, document):
            return
        if document["t"] == PULL:
            self.run(self._pulls.asked(link.peer, document))
        elif document["t"] not in (ERROR, CANCEL, RESUME):
            self._on_control(link.peer, document)

    def lost(self, link: Link, error: NodewireError) -> None:
        if self._links.ended(link):
            self._jobs.lost(link, error, here=self._links.is_closed)

    def _linked(self, link: Link) -> None:
        self.run(self.survey.follow(link))
        self._jobs.linked(link)
        self._presence.linked(link)
