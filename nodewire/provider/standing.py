"""Jobs in which this provider is a standby, ready to enter; and takeovers of jobs that have not begun here yet."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from nodewire.errors import NodewireError
from nodewire.kind import Params
from nodewire.nostr.event import Event
from nodewire.nostr.nip01 import Filter
from nodewire.nostr.relaying import Relaying
from nodewire.protocol import kinds, takeover
from nodewire.protocol.job import Request, Ticket
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.takeover import Takeover

MAX_STANDING = 1_024
"""The newest are kept: a job that is longer under way than so many others takes is begun anew by its customer."""
_FETCH_S = 2.0


@dataclass(frozen=True, slots=True)
class Standing:
    """A checked job that this provider may be called into."""

    event: Event
    """The request's."""
    ticket: Ticket
    request: Request
    manifest: Manifest
    params: Params


class Standby:
    """What this provider stands by for, and who called it before it was ready; both by request."""

    def __init__(self) -> None:
        self._ready: OrderedDict[str, Standing] = OrderedDict()
        self._calls: OrderedDict[str, tuple[str, Takeover]] = OrderedDict()
        self._left: OrderedDict[str, None] = OrderedDict()

    def stand_by(self, job: Standing) -> tuple[str, Takeover] | None:
        """Be ready for a job; who has called for it already (peer and takeover)."""
        self._ready[job.request.id] = job
        while len(self._ready) > MAX_STANDING:
            self._ready.popitem(last=False)
        return self._calls.pop(job.request.id, None)

    def leave(self, request: str) -> None:
        """This provider computed a job along, and does not any more: it cannot enter."""
        self._left[request] = None
        while len(self._left) > MAX_STANDING:
            self._left.popitem(last=False)

    def has_left(self, request: str) -> bool:
        return request in self._left

    def called(self, peer: str, call: Takeover) -> Standing | None:
        """A takeover of a job that is not open here; the job if it is one to enter, else the call is kept."""
        if call.request in self._ready:
            return self._ready.pop(call.request)
        known = self._calls.get(call.request)
        if known is None or known[1].attempt <= call.attempt:
            self._calls[call.request] = peer, call
        while len(self._calls) > MAX_STANDING:
            self._calls.popitem(last=False)
        return None

    def call_for(self, request: str) -> tuple[str, Takeover] | None:
        """What came for a job before it began here."""
        return self._calls.pop(request, None)


async def check(call: Takeover, request: Request, manifest: Manifest, relays: Relaying) -> None:
    """Check a takeover with all that it goes on from, which relays have.

    Raises:
        BadPlan, NotAllowed, BadSignature: it is not one that this job's standbys and signers allow.
    """
    try:
        call.check(request.id, request.plan, manifest)
        return
    except NodewireError:
        if call.attempt == 1:
            raise
    authors = frozenset({request.customer, *request.plan.members()})
    wanted = Filter(kinds=frozenset({kinds.TAKEOVER}), authors=authors, tags={"e": frozenset({request.id})})
    earlier = []
    for event in await relays.fetch_all([wanted], timeout_s=_FETCH_S):
        try:
            earlier.append(takeover.parse(event))
        except NodewireError:
            continue
    before = (one for one in earlier if one.attempt < call.attempt)
    call.check(request.id, request.plan, manifest, takeover.newest(before, request.id, request.plan, manifest))
