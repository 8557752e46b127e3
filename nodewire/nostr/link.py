"""One relay's side of a pool: subscriptions, publications and AUTH over a connection that comes and goes. Sans-I/O.

Whoever owns the socket calls `up` with a way to send, `receive` for every message, and `down` when it ends.
Subscriptions are sent again on every `up`; publications wait for it. With keys, every challenge is answered (NIP-42),
and what was refused with "auth-required" is tried once more after the relay's OK. A subscription that the relay ended
for a passing reason is asked for again after a pause.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from nodewire.errors import BadInput, Busy, LinkLost, RelayRefused, TooLarge, Unsupported
from nodewire.nostr.nips import nip01, nip42
from nodewire.nostr.nips.nip01 import ClosedMessage, Eose, Filter, Notice, Ok, RelayAuth, RelayCount, RelayEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_INVALID = 100  # malformed messages and false events on one connection, after which it is not worth keeping
MAX_CHALLENGES = 16  # answered on one connection
MAX_WORDS_CHARS = 200  # of a relay's own words that are kept
RETRY_CLOSED_S = 10.0
# Reasons to end a subscription that say nothing against asking again; every other is a refusal.
_PASSING = frozenset({"", "error", "rate-limited"})

LinkState = Literal["connecting", "connected", "waiting", "closed"]
Standing = Literal["pending", "eose", "closed", "refused", "unreachable"]
Answer = Ok | RelayCount | ClosedMessage


_EVENT = re.compile(r'\s*\[\s*"EVENT"\s*,\s*"([^"\\]{1,64})"\s*,')
"""How an event begins whose rest cannot be read: with its subscription."""
_BEGIN_BYTES = 256


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay's health. `events` came, `invalid` messages or events were dropped; `reason` is the last failure."""

    url: str
    state: LinkState
    authenticated: bool
    connections: int
    events: int
    invalid: int
    reason: str
    notice: str


def check_taken(url: str, answer: Ok) -> None:
    """Check that a relay took an event.

    Raises:
        RelayRefused: it takes no such event, now or later.
        Busy: it does not take the event now ("rate-limited", "error", or no reason).

    """
    if not answer.accepted:
        kind = Busy if nip01.prefix(answer.message) in _PASSING else RelayRefused
        raise kind("relay", f"{url}: {answer.message[:MAX_WORDS_CHARS]}")


class Listener(Protocol):
    """Who subscribed."""

    def accept(self, event: Event, size: int) -> bool:
        """An event came in a message of `size` bytes; False if it is not what was asked for, or false in itself."""

    def lose(self) -> None:
        """A message came that may be an event of this subscription, and cannot be read."""

    def stand(self, url: str, standing: Standing, reason: str) -> None:
        """How far the relay is with this subscription."""


@dataclass(slots=True)
class _Entry:
    filters: tuple[Filter, ...]
    listener: Listener
    retried: bool = False  # after AUTH, on this connection
    parked: bool = False  # until AUTH is settled


class Link:
    """The protocol with the relay at `url`. It needs a running event loop, for its futures and pauses."""

    def __init__(
        self, url: str, keys: Keys | None, now_s: Callable[[], float], *, retry_closed_s: float = RETRY_CLOSED_S
    ) -> None:
        self.url = url
        self._keys = keys
        self._now_s = now_s
        self._retry_closed_s = retry_closed_s
        self._entries: dict[str, _Entry] = {}
        self._answers: dict[tuple[str, str], list[asyncio.Future[Answer]]] = {}
        self._send: Callable[[str], None] | None = None
        self._is_up = asyncio.Event()
        self._auth: asyncio.Future[bool] | None = None  # of this connection; False as well when it ends
        self._auth_id = ""
        self._challenges = 0
        self._invalid_here = 0
        self.status = RelayStatus(url, "connecting", False, 0, 0, 0, "", "")

    @property
    def is_hostile(self) -> bool:
        """Whether this connection has brought so much nonsense that it should be closed."""
        return self._invalid_here >= MAX_INVALID

    # The connection

    def up(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._auth = asyncio.get_running_loop().create_future()
        self._challenges = self._invalid_here = 0
        self._note(state="connected", authenticated=False, connections=self.status.connections + 1)
        for sub_id, entry in self._entries.items():
            entry.retried = entry.parked = False
            self._request(sub_id, entry)
        self._is_up.set()

    def exceed(self) -> None:
        """A message was too long to be read, which ends the connection."""
        self._invalid("a message that is too long to be read")
        for entry in self._entries.values():
            entry.listener.lose()

    def down(self, reason: str, *, final: bool = False) -> None:
        """The connection ended or could not be made; `final` if it will not be tried again."""
        self._is_up.clear()
        self._send = None
        self._auth_id = ""
        if self._auth is not None and not self._auth.done():
            self._auth.set_result(False)
        self._note(state="closed" if final else "waiting", authenticated=False, reason=reason[:MAX_WORDS_CHARS])
        for futures in self._answers.values():
            for future in futures:
                if not future.done():
                    future.set_exception(LinkLost(self.url, reason))
        for entry in list(self._entries.values()):
            entry.listener.stand(self.url, "unreachable", reason)

    # What the pool wants

    def subscribe(self, sub_id: str, filters: tuple[Filter, ...], listener: Listener) -> None:
        entry = self._entries[sub_id] = _Entry(filters, listener)
        if self._send is not None:
            self._request(sub_id, entry)
        elif self.status.state != "connecting":
            listener.stand(self.url, "unreachable", self.status.reason)

    def unsubscribe(self, sub_id: str) -> None:
        if self._entries.pop(sub_id, None) is not None and self._send is not None:
            self._send(nip01.Close(sub_id).to_json())

    async def publish(self, event: Event) -> Ok:
        """The relay's answer to `event`; waits for a connection, over as many as it takes. Callers set the limit."""
        ok = await self._ask(("event", event.id), nip01.ClientEvent(event).to_json())
        assert isinstance(ok, Ok)
        # Some relays say "duplicate" with false; the event is there, and that is what was wanted.
        return replace(ok, accepted=True) if nip01.prefix(ok.message) == "duplicate" else ok

    async def count(self, sub_id: str, filters: tuple[Filter, ...]) -> RelayCount | ClosedMessage:
        """The relay's count of stored events, or its refusal."""
        answer = await self._ask(("count", sub_id), nip01.ClientCount(sub_id, filters).to_json())
        assert not isinstance(answer, Ok)
        return answer

    async def _ask(self, key: tuple[str, str], message: str) -> Answer:
        retried_on = 0  # the connection on which it was sent again after AUTH
        while True:
            await self._is_up.wait()
            assert self._send is not None
            assert self._auth is not None
            connection, auth = self.status.connections, self._auth
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            waiting = self._answers.setdefault(key, [])
            waiting.append(future)
            try:
                self._send(message)
                answer = await future
            except LinkLost:
                continue
            finally:
                waiting.remove(future)
                if not waiting:
                    self._answers.pop(key, None)
            refused = isinstance(answer, ClosedMessage) or (isinstance(answer, Ok) and not answer.accepted)
            if not (refused and self._wants_auth(answer) and retried_on != connection):
                return answer
            retried_on = connection
            granted = await asyncio.shield(auth)
            if not granted and self.status.connections == connection and self._send is not None:
                return answer

    # What the relay says

    def _deliver(self, sub_id: str, event: Event, nbytes: int) -> None:
        """Give `event`, that came in a message of `nbytes`, to who subscribed to it."""
        entry = self._entries.get(sub_id)
        if entry is None:
            return  # sent before the relay read our CLOSE
        if entry.listener.accept(event, nbytes):
            self._note(events=self.status.events + 1)
        else:
            self._invalid("an event that is false, or was not asked for")

    def receive(self, data: str | bytes) -> None:
        try:
            message = nip01.parse_relay(data)
        except Unsupported:
            return  # another NIP's message, that nobody here asked for
        except BadInput as error:
            # Honest relays pass on events of strangers that are larger than what is read here.
            self._invalid(str(error), is_relays=not isinstance(error, TooLarge))
            self._lose(data[:_BEGIN_BYTES])
            return
        match message:
            case RelayEvent(sub_id, event):
                self._deliver(sub_id, event, len(data))
            case Eose(sub_id):
                if (entry := self._entries.get(sub_id)) is not None:
                    entry.listener.stand(self.url, "eose", "")
            case ClosedMessage(sub_id):
                self._closed(message)
            case Ok(event_id):
                if event_id == self._auth_id:
                    self._authenticated(message)
                self._answer(("event", event_id), message)
            case RelayCount(sub_id):
                self._answer(("count", sub_id), message)
            case RelayAuth(challenge):
                self._challenged(challenge)
            case Notice(text):
                self._note(notice=text[:MAX_WORDS_CHARS])

    def _closed(self, message: ClosedMessage) -> None:
        self._answer(("count", message.sub_id), message)
        entry = self._entries.get(message.sub_id)
        if entry is None:
            return
        if self._wants_auth(message) and not entry.retried:
            assert self._auth is not None
            entry.retried = True
            if not self._auth.done():
                entry.parked = True
                return
            if self._auth.result():
                self._request(message.sub_id, entry)
                return
        if nip01.prefix(message.message) in _PASSING:
            entry.listener.stand(self.url, "closed", message.message[:MAX_WORDS_CHARS])
            connection = self.status.connections
            asyncio.get_running_loop().call_later(self._retry_closed_s, self._again, message.sub_id, entry, connection)
        else:
            self._refuse(message.sub_id, message.message)

    def _challenged(self, challenge: str) -> None:
        self._challenges += 1
        if self._keys is None or self._send is None or self._challenges > MAX_CHALLENGES:
            return
        if self._auth is None or self._auth.done():
            self._auth = asyncio.get_running_loop().create_future()
        answer = nip42.build(self._keys, relay_url=self.url, challenge=challenge, now_s=int(self._now_s()))
        self._auth_id = answer.id
        self._send(nip01.ClientAuth(answer).to_json())

    def _authenticated(self, ok: Ok) -> None:
        assert self._auth is not None
        self._auth_id = ""
        self._note(authenticated=ok.accepted)
        if not self._auth.done():
            self._auth.set_result(ok.accepted)
        for sub_id, entry in list(self._entries.items()):
            if entry.parked:
                entry.parked = False
                if ok.accepted:
                    self._request(sub_id, entry)
                else:
                    self._refuse(sub_id, ok.message)

    def _wants_auth(self, answer: Answer) -> bool:
        return (
            self._keys is not None
            and isinstance(answer, Ok | ClosedMessage)
            and nip01.prefix(answer.message) == nip42.AUTH_REQUIRED
        )

    def _request(self, sub_id: str, entry: _Entry) -> None:
        assert self._send is not None
        entry.listener.stand(self.url, "pending", "")
        self._send(nip01.Req(sub_id, entry.filters).to_json())

    def _again(self, sub_id: str, entry: _Entry, connection: int) -> None:
        if self._entries.get(sub_id) is entry and self._send is not None and self.status.connections == connection:
            self._request(sub_id, entry)

    def _refuse(self, sub_id: str, reason: str) -> None:
        entry = self._entries.pop(sub_id)
        entry.listener.stand(self.url, "refused", reason[:MAX_WORDS_CHARS])

    def _lose(self, begin: str | bytes) -> None:
        """Tell who subscribed of a message that begins so, and cannot be read."""
        named = _EVENT.match(begin if isinstance(begin, str) else begin.decode("utf-8", "replace"))
        if named is not None and (entry := self._entries.get(named[1])) is not None:
            entry.listener.lose()

    def _answer(self, key: tuple[str, str], answer: Answer) -> None:
        for future in self._answers.get(key, ()):
            if not future.done():
                future.set_result(answer)

    def _invalid(self, reason: str, *, is_relays: bool = True) -> None:
        self._invalid_here += is_relays
        self._note(invalid=self.status.invalid + 1, reason=reason[:MAX_WORDS_CHARS])

    def _note(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
