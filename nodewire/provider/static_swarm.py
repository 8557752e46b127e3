"""A provider of a swarm by a file: the market's, between people who know each other and pay nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodewire.config import Serve
from nodewire.core.stop import stop
from nodewire.errors import BadConfig, NotAllowed
from nodewire.kind import installed
from nodewire.net import host_port
from nodewire.nostr.keys import Keys, npub
from nodewire.pay.accounts.ledger import Ledger
from nodewire.plan.by_file import by_file
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job.plan import Plan
from nodewire.protocol.job.request import Request
from nodewire.protocol.market.static_swarm import RollCall
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.model.text_rules import text_blobs
from nodewire.provider.admission.cancellations import Withdrawals
from nodewire.provider.admission.checks import Admission, AdmittedJob
from nodewire.provider.inference.service import Provider
from nodewire.provider.outage import Outage, disk_check, ledger_check
from nodewire.provider.tasks.loader import specialize
from nodewire.provider.tasks.registry import Specializations
from nodewire.swarm.file import SwarmFile
from nodewire.swarm.member import SwarmProvider, addresses
from nodewire.swarm.record import FileRecord
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.swarm.event_relay import LinkEventTransport
from nodewire.wire.swarm.inventory_exchange import InventoryExchange
from nodewire.wire.transport import congestion
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker import devices
from nodewire.worker.persistent_worker import maker

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
    said = {"swarm": RollCall(swarm=swarm.digest(), manifest=digest).pack(), "manifest": manifest.pack()}
    if manifest.chat is not None:
        said["chat"] = (await record.fetch_blob(manifest.chat.sha256, manifest.chat.bytes)).read_bytes()
    if manifest.driver.name in tasks and manifest.mode == "generate":  # by which customers read what is generated
        for name, blob in text_blobs(manifest).items():
            said[name] = (await record.fetch_blob(blob.sha256, blob.bytes)).read_bytes()
    at, members = addresses(file), {*file.customers, *(node.npub for node in file.nodes)}
    relaying = LinkEventTransport(keys.public, at)
    showing = InventoryExchange(lambda peer: node.open_link(peer), said)

    def controlled(peer: str, document: Mapping[str, Any]) -> None:
        if not relaying.handle(peer, document) and not showing.handle(peer, document):
            provider.controlled(peer, document)

    node = Node(
        keys,
        admit=members.__contains__,
        on_control=controlled,
        beside=SameHost(keys),
        transport=TcpTls(config.congestion or None, allow_private=True),
    )
    relaying.links = node
    stack.push_async_callback(node.close)
    spool = Spool(config.state / "spool", config.spool_bytes)
    stack.callback(spool.close)
    outage = Outage(
        [disk_check(config.state), ledger_check(ledger)], lambda: served.pause(is_paused=outage.cause is not None)
    )
    provider = Provider(
        keys=keys,
        relays=relaying,
        record=record,
        node=node,
        ledger=ledger,
        held=served,
        admission=Admission(keys.public, ByFile(file), ledger, served.manifest, 0, file.lookahead),
        withdrawals=Withdrawals(),
        spool=spool,
        proof=NoProof(spool),
        patience_s=_PATIENCE_S,
        outage=outage,
    )
    running = asyncio.create_task(provider.run())
    stack.push_async_callback(stop, running)
    await asyncio.sleep(0)  # it follows what comes before anybody can come
    host, port = host_port.parse(config.listen, "--listen", least_port=0, error=BadConfig)
    try:
        listening = await node.listen(host, port)
    except OSError as error:
        raise BadConfig("--listen", f"{config.listen}: {error.strerror or error}") from error
    return {
        "ready": "provider",
        "swarm": file.name,
        "npub": npub(keys.public),
        "public": keys.public,
        "name": here.called,
        "listens": listening,
        "tasks": list(tasks),
        "manifest": digest,
        "wait": running,
    }
