"""What stands already where a manifest is to be published: an address has one, which the next replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nodewire.cli.output import counted
from nodewire.errors import NodewireError, NotAllowed, NotFound
from nodewire.protocol import kinds
from nodewire.protocol.model.manifest import Manifest

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.pool import Pool
    from nodewire.store.blobs import Blobs

Replace = Annotated[
    bool, typer.Option("--replace", help="Replace another model of yours that stands there under that name.")
]
_WAYS = "--replace has it replaced; another name leaves it"


async def published(pool: Pool, author: str, name: str) -> Event | None:
    """The newest manifest's event of an author under a name. Raises RelayRefused, TimedOut: no relay answers."""
    from nodewire.market import addressed

    try:
        return await addressed(pool, f"{kinds.MANIFEST}:{author}:{name}", kinds.MANIFEST)
    except NotFound:
        return None


async def check_replaced(there: Event, blobs: Blobs, manifest: Manifest, *, by_size: bool = False) -> None:
    """Raises NotAllowed: what stands there is another model than `manifest` describes, or cut otherwise.

    `by_size`: of its weights only the sizes are known yet.
    """
    from nodewire.market import read_manifest
    from nodewire.protocol.model import manifest_event

    if there.tag("x") == manifest.digest():
        return
    try:
        former = await read_manifest(there, blobs)
        if _sizes(manifest) == _sizes(former) if by_size else manifest.is_model_of(former):
            return
        said = _described(former)
    except NodewireError as error:
        said = f"a manifest that cannot be read ({error})"
    raise NotAllowed(
        "--replace",
        f"{manifest_event.address(there)} is {said}, which would be replaced by"
        f" {_described(manifest, is_whole=not by_size)}: other weights,"
        f" another architecture, or other pieces. {_WAYS} (--name)",
    )


def check_free(there: Event, digest: str) -> None:
    """Before it is known what will be published: raises NotAllowed unless what stands there is `digest`."""
    from nodewire.protocol.model import manifest_event

    if there.tag("x") != digest:
        raise NotAllowed(
            "--replace",
            f"{manifest_event.address(there)} is another model (digest {(there.tag('x') or '')[:12]}),"
            f" which the trained one would replace. {_WAYS} (the recipe's)",
        )


def _sizes(manifest: Manifest) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(task.engine, task.program.sha256, tuple(blob.bytes for blob in task.weights)) for task in manifest.tasks}


def _described(manifest: Manifest, *, is_whole: bool = True) -> str:
    size = f"{counted(len(manifest.tasks), 'task')}, {manifest.weight_bytes / 1e6:,.1f} MB of weights"
    return f"a model to {manifest.mode} ({size}{f', digest {manifest.digest()[:12]}' if is_whole else ''})"
