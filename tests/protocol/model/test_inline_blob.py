"""What stands in an event in place of a blob is the blob that the event cites, or it is refused."""

from __future__ import annotations

import base64
import hashlib

import pytest

from nodewire.errors import BadHash, BadTag
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.protocol.model import inline_blob
from nodewire.protocol.model.manifest import BlobRef

KEYS = Keys.generate()
DATA = bytes(range(256)) * 150


def ref(data: bytes) -> BlobRef:
    return BlobRef(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def carrying(tags: list[list[str]]) -> events.Event:
    return events.sign(KEYS, 8840, created_at=1, tags=tags)


def test_what_goes_in_comes_out_and_fits_an_event():
    event = carrying(inline_blob.tag(DATA, 2_000))
    assert inline_blob.find_bytes(event, ref(DATA)) == DATA
    assert len(event.to_json()) < events.MAX_BYTES
    assert inline_blob.find_bytes(carrying([]), ref(DATA)) is None


@pytest.mark.parametrize(("data", "beside"), [(bytes(inline_blob.MAX_BYTES + 1), 0), (DATA, 60_000)])
def test_what_does_not_fit_has_no_tag(data, beside):
    assert inline_blob.tag(data, beside) == []


def test_the_largest_fits_an_event():
    beside = 64_000 - 4 * -(-inline_blob.MAX_BYTES // 3)
    assert beside > 3_000
    assert len(carrying(inline_blob.tag(bytes(inline_blob.MAX_BYTES), beside)).to_json()) + beside < events.MAX_BYTES


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (base64.b64encode(DATA[:-1] + b"\0").decode(), BadHash),
        (base64.b64encode(DATA + DATA).decode(), BadTag),
        ("*" * (4 * -(-len(DATA) // 3)), BadTag),
        ("", BadTag),
    ],
)
def test_another_blob_is_refused(text, error):
    with pytest.raises(error):
        inline_blob.find_bytes(carrying([["inline", text]]), ref(DATA))
