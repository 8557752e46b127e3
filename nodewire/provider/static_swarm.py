"""A provider of a swarm by a file: the market's, between people who know each other and pay nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodewire.config import Serve
from nodewire.core.stop import stop
from nodewire.errors import BadConfig, NotAllowed
from nodewire.kind import installed
from nodewire.net import host_port
from nodewire.nostr.keys import Keys, npub
from nodewire.pay.accounts.ledger import Ledger
from nodewire.plan.by_file import by_file
from nodewire.protocol.market.static_swarm import RollCall
from nodewire.protocol.model.text_rules import text_blobs
from nodewire.provider.admission.checks import Admission, AdmittedJob
from nodewire.provider.admission.withdrawals import Withdrawals
from nodewire.provider.inference.job_factory import JobResources
from nodewire.provider.inference.service import Provider
from nodewire.provider.outage import Outage, disk_check, ledger_check
from nodewire.provider.tasks.loader import specialize
from nodewire.provider.tasks.registry import Specializations
from nodewire.swarm.member import SwarmProvider, addresses
from nodewire.swarm.record import FileRecord
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.swarm.event_relay import LinkEventTransport
from nodewire.wire.swarm.inventory_exchange import InventoryExchange
from nodewire.wire.transport import congestion
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker import devices
from nodewire.worker.persistent_worker import maker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.swarm.file import SwarmFile

_PATIENCE_S = 30
_SWEEP_S = 10.0


class ByFile:
    """What a plan must be, by this node's own file (admission.Derive)."""

    most_partials = 0

    def __init__(self, file: SwarmFile) -> None:
        self._file, self._swarm = file, file.swarm
        self._digest = self._swarm.digest()

    @property
    def committee_digest(self) -> str:
        return self._digest

    async def plan(self, request: Request, manifest: Manifest) -> Plan:
        """Raises NotAllowed: the file does not name the customer."""
        if request.customer not in self._file.customers:
            raise NotAllowed("customer", "the swarm's file does not name it")
        return by_file(self._swarm, manifest, terms=request.plan.terms, customer=request.customer)


class NoProof:
    """Nothing is claimed and nothing sampled (proving.Proof): frames are kept as long as a job lasts."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    async def begins(self, job: AdmittedJob) -> None:
        return

    async def commit(self, plan: Plan, roots: Sequence[ChunkRoot]) -> None:
        return

    async def ended(self, request: str) -> None:
        self._spool.keep_until(request, time.time())

    async def run(self) -> None:
        while True:
            self._spool.sweep(time.time())
            await asyncio.sleep(_SWEEP_S)


class SwarmLinks:
    """A node that admits the members of its swarm, and what goes over its links beside jobs.

    `provider` is set before anybody can come.
    """

    def __init__(self, keys: Keys, config: SwarmProvider, inventory: Mapping[str, bytes]) -> None:
        """`inventory`: the documents that members are shown, by name."""
        file = config.file
        members = {*file.customers, *(node.npub for node in file.nodes)}
        self.provider: Provider | None = None
        self.transport = LinkEventTransport(keys.public, addresses(file))
        self.node = Node(
            keys,
            policy=LinkPolicy(
                admit=members.__contains__,
                transport=TcpTls(config.congestion or None, allow_private=True),
                beside=SameHost(keys),
            ),
            on_control=self._handle,
        )
        self.transport.links = self.node
        self._inventory = InventoryExchange(self.node.open_link, inventory)

    def _handle(self, peer: str, document: Mapping[str, Any]) -> None:
        if self.transport.handle(peer, document) or self._inventory.handle(peer, document):
            return
        if self.provider is not None:
            self.provider.controlled(peer, document)


async def start(
    stack: AsyncExitStack, config: SwarmProvider, manifest: Manifest, blobs: Mapping[str, Path], folder: Path
) -> dict[str, Any]:
    """Start a node of a swarm; returns its ready line with `wait`. `folder` holds the `blobs` of its part of the model.

    Raises:
        BadConfig: the file does not name this node, or another copy of the model than this one; it cannot listen.
        BadTask, OverMemory, WorkerFailed: its part of the model cannot be loaded.

    """
    congestion.check(config.congestion)
    await devices.check(config.worker.device)
    keys, file = Keys.from_file(config.key), config.file
    here = file.check_member(keys.public, config.path)
    swarm, digest = file.swarm, manifest.digest()
    if swarm.manifest not in (None, digest):
        raise BadConfig(str(config.path), f"names manifest {swarm.manifest}, this copy of the model is cut to {digest}")
    record = FileRecord(file, manifest, blobs)
    ledger = Ledger(config.state / "ledger.db")
    stack.callback(ledger.close)
    ledger.interrupted()
    make = maker(stack, replace(config.worker.limits, secrets=(str(config.key),)), folder, batch=config.worker.batch)
    tasks = tuple(task for task, public in swarm.places().items() if public == keys.public)
    wanted = Serve(manifest=swarm.address, digest=digest, tasks=tasks, price_msat=0, slots=file.slots)
    served = Specializations(await specialize(record, (wanted,), installed(), make, {}))
    links = SwarmLinks(keys, config, await _inventory(record, tasks))
    stack.push_async_callback(links.node.close)
    spool = Spool(config.state / "spool", config.spool_bytes)
    stack.callback(spool.close)
    outage = Outage(
        [disk_check(config.state), ledger_check(ledger)], lambda: served.pause(is_paused=outage.cause is not None)
    )
    provider = Provider(
        JobResources(
            keys=keys,
            public_record=record,
            node=links.node,
            ledger=ledger,
            admission=Admission(keys.public, ByFile(file), ledger, served.manifest, 0, file.lookahead),
            withdrawals=Withdrawals(),
            spool=spool,
            proof=NoProof(spool),
            patience_s=_PATIENCE_S,
        ),
        relays=links.transport,
        held=served,
        outage=outage,
    )
    links.provider = provider
    running = asyncio.create_task(provider.run())
    stack.push_async_callback(stop, running)
    await asyncio.sleep(0)  # it follows what comes before anybody can come
    return {
        "ready": "provider",
        "swarm": file.name,
        "npub": npub(keys.public),
        "public": keys.public,
        "name": here.called,
        "listens": await _listen(links.node, config.listen),
        "tasks": list(tasks),
        "manifest": digest,
        "wait": running,
    }


async def _inventory(record: FileRecord, tasks: Sequence[str]) -> dict[str, bytes]:
    """The documents that this node shows, by name. Raises NotFound: a blob of its tasks is not there."""
    manifest = record.cut
    documents = {
        "swarm": RollCall(swarm=record.swarm.digest(), manifest=manifest.digest()).pack(),
        "manifest": manifest.pack(),
    }
    blobs = {} if manifest.chat is None else {"chat": manifest.chat}
    if manifest.driver.name in tasks and manifest.mode == "generate":  # customers read by them what is generated
        blobs |= text_blobs(manifest)
    for name, blob in blobs.items():
        documents[name] = (await record.fetch_blob(blob.sha256, blob.bytes)).read_bytes()
    return documents


async def _listen(node: Node, address: str) -> str:
    """Where it listens. Raises BadConfig: it cannot."""
    host, port = host_port.parse(address, "--listen", least_port=0, error=BadConfig)
    try:
        return await node.listen(host, port)
    except OSError as error:
        raise BadConfig("--listen", f"{address}: {error.strerror or error}") from error
