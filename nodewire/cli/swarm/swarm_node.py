"""`nodewire provider --swarm FILE`: this machine's layers, for those whom the file names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich.markup import escape

from nodewire.cli.swarm.swarm_options import key_of, require_key, state_of
from nodewire.config import WorkerConfig
from nodewire.errors import BadConfig, BadInput
from nodewire.net import host_port
from nodewire.protocol.encoding.validation_errors import in_words

if TYPE_CHECKING:
    from nodewire.swarm.file import NodeEntry

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What the options of the command say."""

    path: Path
    split: str
    key: Path | None
    state: Path | None
    model: Path | None
    listen: str
    worker: Mapping[str, Any]


async def start(stack: AsyncExitStack, lent: NodeOptions) -> dict[str, Any]:
    """Cut this node's part of the model, and serve it.

    Raises:
        Busy: another daemon works in its state folder.
        BadConfig, BadInput: the file, or an option, cannot be used.
        NodewireError: as `swarm_cut.cut` and `provider.static_swarm.start`.

    """
    from nodewire.cli.swarm.swarm_cut import cut
    from nodewire.nostr.keys import Keys
    from nodewire.provider.static_swarm import start as start_node
    from nodewire.store.state_lock import held
    from nodewire.swarm.file import SwarmFile
    from nodewire.swarm.member import SwarmProvider

    file = SwarmFile.read(lent.path, lent.split)
    key, state = require_key(lent.key or key_of("node"), "--key"), lent.state or state_of(file, "node")
    public = Keys.from_file(key).public
    here = file.check_member(public, lent.path)
    model = lent.model or file.model
    if model is None:
        raise BadInput("--model", "names this machine's copy of the model's folder: the file does not")
    listen = lent.listen or _listen(here)
    host_port.parse(listen, "--listen", least_port=0, error=BadConfig)
    config = SwarmProvider(lent.path, file, key, state, listen, _worker(lent.worker))
    stack.enter_context(held(state))
    manifest, blobs, folder = await cut(file.swarm, public, model, state / "cut")
    return await start_node(stack, config, manifest, blobs, folder)


def _worker(said: Mapping[str, Any]) -> WorkerConfig:
    """Raises BadInput: an option is not what it must be."""
    try:
        return WorkerConfig.model_validate({name: value for name, value in said.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"--{first['loc'][0]}", in_words(first)) from error


def _listen(here: NodeEntry) -> str:
    """All addresses of this machine, at the port that the file says; or only its own, if that is where others are."""
    host, port = host_port.parse(here.address, "address", error=BadConfig)
    return here.address if host in _LOOPBACK else f"0.0.0.0:{port}"


def ready(said: Mapping[str, Any]) -> str:
    return (
        f"[bold green]{escape(said['name'])}[/] of swarm {escape(said['swarm'])} is ready: {', '.join(said['tasks'])},"
        f" at {escape(said['listens'])}\n[dim]manifest {said['manifest']}; Ctrl-C stops it[/]"
    )
