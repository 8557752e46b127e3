"""Ciphertexts that stand in the event that cites them: small weights and results need no blob server. nips/34.

The tag is ["inline", base64]; what it holds has the hash and size of the blob that the event cites, or it is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING

from nodewire.errors import BadHash, BadTag

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.protocol.model.manifest import BlobRef

TAG = "inline"
MAX_BYTES = 45_056
"""Of a ciphertext: with the rest of its event that is under 64 KB."""
_EVENT_BYTES = 64_000
"""Of an event with such a tag; some relays count more than its JSON."""


def tag(data: bytes, beside_bytes: int) -> list[list[str]]:
    """The tag for `data` in an event that has about `beside_bytes` without it; none if it would be too large."""
    if len(data) > MAX_BYTES or 4 * -(-len(data) // 3) + beside_bytes > _EVENT_BYTES:
        return []
    return [[TAG, base64.b64encode(data).decode()]]


def find_bytes(event: Event, blob: BlobRef) -> bytes | None:
    """The bytes of `blob` if they stand in `event`.

    Raises:
        BadTag, BadHash: what stands there is not base64, or not the blob.

    """
    text = event.tag(TAG)
    if text is None:
        return None
    if blob.bytes > MAX_BYTES or len(text) != 4 * -(-blob.bytes // 3):
        raise BadTag(TAG, f"{len(text)} characters for {blob.bytes} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadTag(TAG, "not base64") from error
    if len(data) != blob.bytes or hashlib.sha256(data).hexdigest() != blob.sha256:
        raise BadHash(TAG, "not the blob that the event cites")
    return data
