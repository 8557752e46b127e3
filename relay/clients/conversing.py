"""One client's conversation: what each of its messages means and what it is answered (NIP-01, 42, 45).

Messages are taken one after another. EVENTs do not wait for each other's commit; a REQ is answered up to its EOSE
before the next message is read, so that a client cannot ask faster than it reads.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from nodewire.core.budget import Budget
from nodewire.errors import BadInput, BadSignature, NodewireError, TimedOut, Unsupported
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip01, nip40, nip42
from relay.clients import authenticating
from relay.clients.fanout import Fanout, Subscription, weight
from relay.counting import Counts, prefix
from relay.events import deleting
from relay.events.indexing import letters
from relay.events.querying import Reader
from relay.events.storing import Job, Outcome, Writer
from relay.policing import Policy, Visit, refusal
from relay.turns import working

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from nodewire.nostr.event import Event
    from relay.clients.sending import Outbox
    from relay.events.reading import Archive
    from relay.limits import Config

_LOG = logging.getLogger("relay.conversing")
_MOST_WAITING = 10_000  # live events held back for one subscription while its stored ones are sent
_NOBODY = "mute: nobody listens"


class House(Protocol):
    """What a conversation needs of the relay that it takes place in."""

    config: Config
    policies: Sequence[Policy]
    writer: Writer
    archive: Archive
    fanout: Fanout[Conversation]
    clock: Callable[[], float]
    counts: Counts
    work: Budget
    address_growth: Budget
    """In stored bytes; so is the next."""
    key_growth: Budget
    standing: Counter[str]
    """By address, what its open subscriptions weigh (`fanout.weight`)."""

    def broadcast(self, event: Event, json: str, seq: int | None) -> int:
        """Tell everybody who listens; how many subscriptions did."""


class Conversation:
    """The relay's side of one connection.

    `url` is the relay's, as the client dialled it. `path` is the client's address (its origin) and a name of the
    connection.
    """

    def __init__(self, house: House, outbox: Outbox, url: str, path: tuple[str, str]) -> None:
        self._house, self._outbox, self._url, self._path = house, outbox, url, path
        self._subscriptions: dict[str, Subscription[Conversation]] = {}
        self._challenge = authenticating.new_challenge()
        self._authed: set[str] = set()
        limits = house.config.limits
        self._messages = Budget(limits.messages_per_s, limits.messages_burst, asyncio.get_running_loop().time)
        self._bad_signatures = 0
        self._unanswered = asyncio.Semaphore(limits.unanswered_events)

    def begin(self) -> None:
        self._say(nip01.RelayAuth(self._challenge))

    @property
    def origin(self) -> str:
        """The client's address."""
        return self._path[0]

    def end(self) -> None:
        for name in list(self._subscriptions):
            self._unsubscribe(name)

    def cut(self, reason: str) -> None:
        """End the connection."""
        self._outbox.cut(reason)

    async def hear(self, text: str) -> None:
        """Take one message of the client and see to its answer.

        Raises:
            LinkLost: the client was cut off meanwhile.

        """
        await working.pay(self._house.work, self._path[0], working.of_message(len(text)), self._house.counts)
        try:
            array = nip01.decode(text, max_bytes=self._house.config.limits.frame_bytes)
        except BadInput as error:
            self._house.counts.refusals["invalid"] += 1
            self._say(nip01.Notice(f"invalid: {error}"))
            return
        if not self._messages.spend(""):
            self._refuse(array, "rate-limited: too many messages, slow down")
            return
        try:
            message = nip01.parse_client(array)
        except BadInput as error:
            prefix = "unsupported" if isinstance(error, Unsupported) else "invalid"
            self._refuse(array, f"{prefix}: {error}")
            return
        match message:
            case nip01.ClientEvent(event):
                await self._publish(event)
            case nip01.Req(name, filters):
                await self._subscribe(name, filters)
            case nip01.Close(name):
                self._unsubscribe(name)
            case nip01.ClientCount(name, filters):
                await self._count(name, filters)
            case nip01.ClientAuth(event):
                self._authenticate(event)

    def deliver(self, subscription: Subscription[Conversation], event: Event, json: str, seq: int | None) -> bool:
        """A live event for one of this client's subscriptions; whether the client may see it."""
        if not authenticating.may_see(event, self._authed, self._house.config.wraps_need_auth):
            return False
        if subscription.waiting is None:
            if seq is None or seq > subscription.seen:
                self._outbox.post(_event_frame(subscription.name, json))
        elif len(subscription.waiting) < _MOST_WAITING:
            subscription.waiting.append((seq, json))
        else:
            self._outbox.cut(f"more than {_MOST_WAITING} events happened while stored ones were read")
        return True

    async def _publish(self, event: Event) -> None:
        house, began_ns = self._house, time.perf_counter_ns()
        json = event.to_json()
        size = len(json.encode())
        if size > house.config.limits.event_bytes:
            reason = f"invalid: an event of {size} bytes, at most {house.config.limits.event_bytes}"
            self._answer(event, Outcome(False, reason), began_ns)
            return
        visit = Visit(int(house.clock()), self._authed, house.config)
        if refused := refusal(event, visit, house.policies):
            self._answer(event, Outcome(False, refused), began_ns)
            return
        try:
            events.verify(event)
        except BadInput as error:
            self._answer(event, Outcome(False, f"invalid: {error}"), began_ns)
            self._punish(error)
            return
        if nip01.is_ephemeral(event.kind):
            heard = house.broadcast(event, json, None)
            self._charge(working.of_deliveries(heard))
            self._answer(event, Outcome(True, "" if heard else _NOBODY), began_ns)
            return
        reason = self._has_stored_too_much(event)
        if reason and event.kind != deleting.KIND:
            self._answer(event, Outcome(False, reason), began_ns)
            return
        indexed = len(letters(event.tags))
        self._charge(working.of_tags(indexed) + working.of_deletions(indexed if event.kind == deleting.KIND else 0))
        await self._unanswered.acquire()
        stored = partial(self._stored, event, json, began_ns)
        house.writer.submit(Job(event, json, nip40.parse(event.tags), stored, reason))

    def _stored(self, event: Event, json: str, began_ns: int, outcome: Outcome) -> None:
        self._unanswered.release()
        self._answer(event, outcome, began_ns)
        if outcome.seq is not None:
            if outcome.grew > 0:
                self._house.address_growth.charge(self._path[0], outcome.grew)
                self._house.key_growth.charge(event.pubkey, outcome.grew)
            self._charge(working.of_deliveries(self._house.broadcast(event, json, outcome.seq)))

    def _has_stored_too_much(self, event: Event) -> str:
        """Why the address or the key may not store more now; empty if it may."""
        limits = self._house.config.limits
        if self._house.address_growth.available(self._path[0]) <= 0:
            return f"rate-limited: your address may store {limits.address_bytes_per_day} bytes a day"
        if self._house.key_growth.available(event.pubkey) <= 0:
            return f"rate-limited: a key may store {limits.key_bytes_per_day} bytes a day"
        return ""

    async def _subscribe(self, name: str, filters: Sequence[nip01.Filter]) -> None:
        self._unsubscribe(name)  # a REQ under a name in use replaces what stood there
        limits = self._house.config.limits
        if len(self._subscriptions) >= limits.subscriptions:
            self._say(nip01.ClosedMessage(name, f"rate-limited: {limits.subscriptions} subscriptions are open"))
            return
        if refused := self._refuses(filters):
            self._say(nip01.ClosedMessage(name, refused))
            return
        heavy, standing = weight(filters), self._house.standing
        await working.pay(self._house.work, self.origin, working.of_values(heavy), self._house.counts)
        if standing[self.origin] + heavy > limits.standing_values:
            reason = f"rate-limited: your address has {limits.standing_values} values in its filters, close some"
            self._say(nip01.ClosedMessage(name, reason))
            return
        # The subscription is live before the query looks, and what the query saw is not sent again: no gap, no double.
        subscription = Subscription(self, name, filters, weight=heavy)
        self._subscriptions[name] = subscription
        standing[self.origin] += heavy
        self._house.fanout.add(subscription)
        self._house.counts.subscriptions += 1
        try:
            reader = self._reader()
            found = await self._house.archive.find(filters, reader)
            subscription.seen = found.seen
            page, left = found.first, found.seqs
            while True:
                price = working.of_answer(len(page.jsons), sum(map(len, page.jsons)))
                await working.pay(self._house.work, self._path[0], price, self._house.counts)
                for json in page.jsons:
                    await self._outbox.put(_event_frame(name, json))
                left = left[page.length :]
                if not left:
                    break
                page = await self._house.archive.load(left, reader)
        except (TimedOut, sqlite3.Error) as error:
            self._unsubscribe(name)
            self._say(nip01.ClosedMessage(name, _unanswerable(error)))
            return
        await self._outbox.put(nip01.Eose(name).to_json())
        waiting, subscription.waiting = subscription.waiting or [], None
        for seq, json in waiting:
            if seq is None or seq > subscription.seen:
                self._outbox.post(_event_frame(name, json))

    def _unsubscribe(self, name: str) -> None:
        if subscription := self._subscriptions.pop(name, None):
            self._house.fanout.remove(subscription)
            self._house.counts.subscriptions -= 1
            self._house.standing[self.origin] -= subscription.weight
            if not self._house.standing[self.origin]:
                del self._house.standing[self.origin]

    async def _count(self, name: str, filters: Sequence[nip01.Filter]) -> None:
        if refused := self._refuses(filters):
            self._say(nip01.ClosedMessage(name, refused))
            return
        try:
            self._say(nip01.RelayCount(name, await self._house.archive.count(filters, self._reader())))
        except (TimedOut, sqlite3.Error) as error:
            self._say(nip01.ClosedMessage(name, _unanswerable(error)))

    def _authenticate(self, event: Event) -> None:
        now_s = int(self._house.clock())
        try:
            nip42.check(event, relay_url=self._url, challenge=self._challenge, now_s=now_s)
            events.verify(event)
        except BadInput as error:
            self._ok(event, Outcome(False, f"invalid: {error}"))
            self._punish(error)
            return
        most = self._house.config.limits.keys
        if len(self._authed | {event.pubkey}) > most:
            self._ok(event, Outcome(False, f"rate-limited: {most} keys have authenticated on this connection"))
            return
        self._authed.add(event.pubkey)
        self._ok(event, Outcome(True, ""))

    def _reader(self) -> Reader:
        hidden = authenticating.WRAPS if self._house.config.wraps_need_auth else frozenset[int]()
        return Reader(int(self._house.clock()), frozenset(self._authed), hidden, self._path)

    def _charge(self, amount: float) -> None:
        """Charge the client's address; it waits for that before its next message."""
        self._house.work.charge(self._path[0], amount)

    def _punish(self, error: BadInput) -> None:
        """A wrong signature costs more than its check; of many the connection ends."""
        if isinstance(error, BadSignature):
            self._charge(working.BAD_SIGNATURE)
            self._bad_signatures += 1
            if self._bad_signatures >= self._house.config.limits.bad_signatures:
                self._house.counts.refusals["bad-signatures"] += 1
                self._outbox.cut(f"{self._bad_signatures} events with wrong signatures")

    def _refuses(self, filters: Sequence[nip01.Filter]) -> str | None:
        config = self._house.config
        if len(filters) > config.limits.filters:
            return f"unsupported: {len(filters)} filters, at most {config.limits.filters}"
        return authenticating.refusal(filters, self._authed, config.wraps_need_auth)

    def _refuse(self, array: Sequence[Any], reason: str) -> None:
        """Answer a message that is not taken, in the form that its verb asks for, as far as it can be read."""
        self._house.counts.refusals[prefix(reason)] += 1
        match array:
            case ["EVENT" | "AUTH", {"id": str(id_)}, *_] if len(id_) <= 64:
                self._say(nip01.Ok(id_, False, reason))
            case ["REQ" | "COUNT", str(name), *_] if 0 < len(name) <= nip01.MAX_SUB_ID_CHARS:
                self._say(nip01.ClosedMessage(name, reason))
            case _:
                self._say(nip01.Notice(reason))

    def _answer(self, event: Event, outcome: Outcome, began_ns: int) -> None:
        """The OK to an EVENT that was read at `began_ns` (`time.perf_counter_ns`)."""
        us = (time.perf_counter_ns() - began_ns) // 1_000
        self._house.counts.answered(outcome.accepted, outcome.message, us)
        self._ok(event, outcome)

    def _ok(self, event: Event, outcome: Outcome) -> None:
        self._say(nip01.Ok(event.id, outcome.accepted, outcome.message))

    def _say(self, message: nip01.RelayMessage) -> None:
        self._outbox.post(message.to_json())


def _event_frame(name: str, json: str) -> str:
    return f'["EVENT",{orjson.dumps(name).decode()},{json}]'


def _unanswerable(error: NodewireError | sqlite3.Error) -> str:
    if isinstance(error, TimedOut):
        return f"error: {error}"
    _LOG.error("a query failed: %s", error)
    return "error: the query failed"
