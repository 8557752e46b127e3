"""A manifest as an event (kind 38840). nips/02-manifests.md.

The content is the manifest itself while it fits an event; a larger one is a blob that the `blob` tag cites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadEvent, BadHash, BadTag
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.model.manifest import Manifest

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_INLINE_BYTES = 48_000


def build(keys: Keys, manifest: Manifest, *, created_at: int, blob_sha256: str, servers: tuple[str, ...]) -> Event:
    """The event; `blob_sha256` cites the manifest's canonical msgpack, which stands on the Blossom `servers`."""
    text = manifest.to_json()
    tags = [
        ["d", manifest.name],
        ["k", str(manifest.kind)],
        ["x", manifest.digest()],
        ["blob", blob_sha256],
        ["mode", manifest.mode],
        *(["server", server] for server in servers[:8]),
    ]
    content = text if len(text) <= MAX_INLINE_BYTES else ""
    return _event.sign(keys, kinds.MANIFEST, created_at=created_at, content=content, tags=tags)


def address(event: Event) -> str:
    return f"{kinds.MANIFEST}:{event.pubkey}:{event.tag('d') or ''}"


def parse(event: Event, blob: bytes | None = None) -> Manifest:
    """The manifest of `event`, from its content or from the cited `blob` where the content is empty.

    Raises:
        BadEvent, BadTag, BadManifest, BadVersion, TooLarge: with the field at fault.
        BadHash: the manifest is not the one that the event's `x` tag cites.

    """
    if event.kind != kinds.MANIFEST:
        raise BadEvent("kind", f"{event.kind} is not a manifest")
    if event.content:
        manifest = Manifest.parse(event.content)
    elif blob is not None:
        manifest = Manifest.unpack(blob)
    else:
        raise BadEvent("content", "empty; the manifest is in the cited blob")
    if manifest.name != event.tag("d"):
        raise BadTag("d", "not the manifest's name")
    if manifest.digest() != event.tag("x"):
        raise BadHash("x", "not the manifest's digest")
    return manifest
