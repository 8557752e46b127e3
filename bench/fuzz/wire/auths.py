"""What is said in place of AUTH in `bench.fuzz.fuzz_wire`, over TLS or through shared memory."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from bench.fuzz import mutations
from bench.fuzz.wire import plain_reader, streams
from nodewire.nostr import event as nostr_event
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.wire.framing import frames
from nodewire.wire.transport import identity


def auth(rng: random.Random, keys: Keys, listener: str, bound: bytes, *, fair: bool) -> tuple[str, bytes, Event]:
    """Kind, bytes, and the event that would be right."""
    event = identity.auth(keys, listener, bound, time.time())
    if fair:
        lead = frames.filler(rng.randrange(2_000)) if rng.random() < 0.3 else b""
        return "fair", lead + frames.control({"t": "auth", "event": event.to_json()}), event
    name = rng.choice(tuple(_AUTHS))
    return name, _AUTHS[name](rng, keys, event), event


def _document(event: Event | str) -> bytes:
    return frames.control({"t": "auth", "event": event if isinstance(event, str) else event.to_json()})


def _signed(keys: Keys, event: Event, **changed: Any) -> bytes:
    how = {"created_at": event.created_at, "tags": event.tags, "content": "", **changed}
    return _document(nostr_event.sign(keys, how.pop("kind", event.kind), **how))


def _text(rng: random.Random, keys: Keys, event: Event) -> bytes:
    changed = mutations.of_bytes(rng, event.to_json().encode(), streams.PACKED[:4])[:30_000]
    return _document(changed.decode("utf-8", "replace"))


def _event(rng: random.Random, keys: Keys, event: Event) -> bytes:
    changed = mutations.of_document(rng, json.loads(event.to_json()))
    return _document(mutations.dumps(changed)[:30_000].decode("utf-8", "replace"))


def _late(rng: random.Random, keys: Keys, event: Event) -> bytes:
    late_s = rng.choice((-1, 1)) * rng.choice((70, 3_600, 10**6))
    return _signed(keys, event, created_at=max(0, event.created_at + late_s))


def _forwarded(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Made for somebody else, for another channel, or for both."""
    other, channel = Keys.generate().public, rng.randbytes(40)
    listener = event.values("p")[0]
    made_for = rng.choice(((other, channel), (listener, channel)))
    return _document(identity.auth(keys, *made_for, time.time()))


def _tags(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Signed indeed, with tags that are not right."""
    tags = [list(tag) for tag in event.tags]
    at = rng.randrange(3)
    match rng.randrange(4):
        case 0:
            del tags[at]
        case 1:
            tags.insert(at, [tags[at][0], rng.choice(("", "00" * 32, "2"))])
        case 2:
            tags[at][1] = rng.choice(("", tags[at][1].upper() + " ", tags[at][1][:-1], "0", "v" * 900))
        case 3:
            tags[at][0] = rng.choice(("e", "", "P"))
    return _signed(keys, event, tags=tags)


def _anothers(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Somebody's name under our signature, or our name under somebody's."""
    other = Keys.generate()
    shown = nostr_event.sign(other, event.kind, created_at=event.created_at, tags=event.tags).as_dict()
    mine = event.as_dict()
    for name in rng.choice((("sig",), ("pubkey",), ("pubkey", "id"), ("id",), ("id", "sig"))):
        mine[name] = shown[name]
    return _document(json.dumps(mine))


def _kind(rng: random.Random, keys: Keys, event: Event) -> bytes:
    return _signed(keys, event, kind=rng.choice((0, 1, 22242, 28841, 65_535)))


def _large(rng: random.Random, keys: Keys, event: Event) -> bytes:
    return _signed(keys, event, content="x" * rng.choice((1_800, 2_048, 3_900, 30_000)))


def _lead(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Something else, and then the right one."""
    first = (
        frames.ping(1),
        frames.pong(1),
        frames.credit(streams.JOB, streams.PRODUCED, 0, 5),
        b"".join(piece.pack() for piece in streams.STREAMS[rng.randrange(4)]),
        frames.control({"t": rng.choice(("welcome", "hello", "pull", "cancel"))}),
        b"".join(frames.filler(100) for _ in range(40)),
        frames.filler(5_000),
        plain_reader.PREFIX.pack(1, plain_reader.CONTROL, 0, 0, 5_000),
    )
    return rng.choice(first) + _document(event)


def _document_bytes(rng: random.Random, keys: Keys, event: Event) -> bytes:
    return mutations.of_bytes(rng, _document(event), streams.PACKED[:4])[:30_000]


_AUTHS: Mapping[str, Callable[[random.Random, Keys, Event], bytes]] = {
    "text": _text, "event": _event, "late": _late, "forwarded": _forwarded, "tags": _tags, "anothers": _anothers,
    "kind": _kind, "large": _large, "lead": _lead, "bytes": _document_bytes,
}  # fmt: skip


def is_right(stream: bytes, event: Event) -> bool | None:
    """Whether changes have left the right event there, first and within what a stranger may send; None if other
    bytes follow, so that a link which is opened may end at once."""
    found, _ = plain_reader.read(stream[:4_096])
    if not found or not isinstance(found[0], tuple) or found[0][0] != "control" or found[0][1].get("t") != "auth":
        return False
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        said = json.loads(found[0][1]["event"])
        if all(said.get(name) == value for name, value in event.as_dict().items()):
            return True if len(found) == 1 and plain_reader.is_whole(stream) else None
    return False
