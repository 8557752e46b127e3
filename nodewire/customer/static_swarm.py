"""A customer of a swarm by a file: whom it names are asked what they hold, and plans are what the file says."""

from __future__ import annotations

import asyncio
import hashlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from nodewire.customer.bootstrap import SPOOL_BYTES
from nodewire.customer.job.session import Session
from nodewire.customer.payments.debt_collector import Settler
from nodewire.customer.planning.planner import Draw
from nodewire.errors import (
    TABLE,
    BadConfig,
    BadHash,
    BadInput,
    BadManifest,
    Busy,
    NodewireError,
    NoProvider,
    NotAllowed,
    NotFound,
)
from nodewire.kind import Limits
from nodewire.nostr.keys import Keys, npub
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.lightning.no_wallet import NoWallet
from nodewire.plan.by_file import by_file
from nodewire.protocol.market.static_swarm import RollCall
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.model.text_rules import text_blobs
from nodewire.store.state_lock import held
from nodewire.swarm.member import SwarmCustomer, addresses
from nodewire.swarm.record import ads
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.link.link import Link
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.swarm.event_relay import LinkEventTransport
from nodewire.wire.swarm.inventory_exchange import InventoryExchange
from nodewire.wire.transport import congestion
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker.persistent_worker import maker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from nodewire.plan.assign import Busy as Refusal
    from nodewire.plan.codec import Wish
    from nodewire.protocol.job.plan import Plan, Terms
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.snapshot import Node as Certified
    from nodewire.swarm.file import NodeEntry, SwarmFile

OTHER_FILE = "goes by another file, or --split: copy this one to it, and start it anew with the same --split"
NETWORK = "bcrt"
"""No invoice is ever read."""


class Nodes:
    """The nodes of a file as this customer meets them: linked to, and asked what they hold."""

    def __init__(self, file: SwarmFile, node: Node, showing: InventoryExchange) -> None:
        self._file, self._node, self._showing = file, node, showing
        self._digest = file.swarm.digest()

    async def call(self) -> tuple[str, Mapping[str, Link]]:
        """The digest of the manifest that all nodes hold, and the links to them by public key.

        Raises:
            NoProvider: a node cannot be reached, does not admit us, or goes by another file or copy of the model. All
                of them are named.

        """
        asked = await asyncio.gather(*(self.ask(entry) for entry in self._file.ring), return_exceptions=True)
        faults, held, links = [], dict[str, list[str]](), dict[str, Link]()
        for entry, found in zip(self._file.ring, asked, strict=True):
            if isinstance(found, NodewireError):
                faults.append(in_words(entry, found))
            elif isinstance(found, BaseException):
                raise found
            else:
                said, links[entry.npub] = found
                if said.swarm != self._digest:
                    faults.append(f"{entry.called} {OTHER_FILE}")
                held.setdefault(said.manifest, []).append(entry.called)
        if faults:
            raise NoProvider("nodes", "; ".join(faults))
        if len(held) > 1:
            copies = ", ".join(f"{' and '.join(names)} {digest[:12]}" for digest, names in sorted(held.items()))
            raise NoProvider("nodes", f"hold different copies of the model ({copies}): give all the same files")
        return next(iter(held)), links

    async def ask(self, entry: NodeEntry) -> tuple[RollCall, Link]:
        """What a node says of itself, and the link to it. Raises as `Node.link` and `InventoryExchange.ask`."""
        link = await self._node.link(entry.npub, (entry.address,))
        return RollCall.unpack(await self._showing.ask(link, "swarm", RollCall.MAX_BYTES)), link

    async def shown(self, what: str, max_bytes: int) -> bytes:
        """A document that the driver shows. Raises as `call` and `InventoryExchange.ask`."""
        _, links = await self.call()
        return await self._showing.ask(links[self._file.swarm.driver], what, max_bytes)


def named(file: SwarmFile, error: NodewireError) -> NodewireError:
    """The error with the file's names for its nodes, which it says by their keys."""
    field, reason = error.field, error.reason
    for entry in file.nodes:
        field = entry.called if field == entry.npub else field
        reason = reason.replace(entry.npub, entry.called).replace(entry.npub[:8], entry.called)
    if (field, reason) == (error.field, error.reason):
        return error
    return TABLE.get(error.code, NodewireError)(field, reason)


def in_words(entry: NodeEntry, error: NodewireError) -> str:
    """What keeps a node from being used."""
    who = f"{entry.called} ({entry.address})"
    if isinstance(error, NotAllowed):
        return f"{who} does not let this customer in: its copy of the file does not name it ({error.reason})"
    if error.code == "bad-peer":
        return f"{who} is not the node that the file names: {error.reason}"
    if "Connect call failed" in error.reason:
        return f"{who} does not answer: nothing listens there"
    return f"{who} does not answer: {error.reason or error}"


class NodesRecord:
    """What the nodes of a swarm hold in common (nodewire.public_record)."""

    def __init__(self, file: SwarmFile, nodes: Nodes, blobs: Path) -> None:
        self.members = nodes
        self._file, self._blobs = file, blobs
        self._swarm = file.swarm
        self._cut: Manifest | None = None

    @property
    def committee_digest(self) -> str:
        return self._swarm.digest()

    async def manifest(self, address: str, digest: str | None = None) -> Manifest:
        """Raises NoProvider as `Nodes.call`, and BadManifest: what a node shows is not what all hold."""
        if address != self._swarm.address:
            raise NotFound("manifest", f"{address[:120]} is not this swarm's")
        held, _ = await self.members.call()
        pinned = digest or self._swarm.manifest
        if pinned not in (None, held):
            raise NoProvider(
                "nodes", f"hold another copy of the model ({held[:12]}) than the file says ({pinned[:12]})"
            )
        if self._cut is None or self._cut.digest() != held:
            cut = Manifest.unpack(await self.members.shown("manifest", Manifest.MAX_BYTES))
            if cut.digest() != held:
                raise BadManifest("manifest", "the driver shows another than it says that it holds")
            self._cut = cut
        return self._cut

    async def fetch_blob(self, sha256: str, max_bytes: int) -> Path:
        """Of a swarm's blobs its customers need the chat template, and by which tokens are read.

        Raises NotFound, BadHash, TooLarge.
        """
        cut = self._cut
        shown = {} if cut is None else text_blobs(cut) | ({} if cut.chat is None else {"chat": cut.chat})
        name = next((name for name, blob in shown.items() if blob.sha256 == sha256), None)
        if name is None:
            raise NotFound("blob", f"{sha256[:16]} is with the nodes")
        path = self._blobs / sha256
        if not path.exists():
            data = await self.members.shown(name, max_bytes)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise BadHash(name, "not what the manifest cites")
            self._blobs.mkdir(parents=True, exist_ok=True)
            partial = self._blobs / f".{sha256}"  # what a crash leaves half is not taken for it
            partial.write_bytes(data)
            partial.rename(path)
        return path

    async def ads(self, plan: Plan) -> dict[str, Ad]:
        return ads(self._file, plan)

    async def nodes(self, plan: Plan) -> dict[str, Certified]:
        return {}


class FilePlanner:
    """Plans are what the file says (planning.Planner), as long as all of its nodes are there."""

    def __init__(self, file: SwarmFile, nodes: Nodes, customer: str) -> None:
        self._file, self._swarm, self._nodes, self._customer = file, file.swarm, nodes, customer
        self._failed: set[str] = set()

    def terms(self, asked: Terms, units: int) -> Terms:
        return asked

    async def draw(
        self, manifest: Manifest, terms: Terms, *, busy: Sequence[Refusal], wish: Wish | None, patience: int
    ) -> Draw:
        """Who was lost and is back is as good as before; who failed at its work would fail again.

        Raises:
            NoProvider: as `Nodes.call`; or a node failed at its work.
            Busy: a node has no slot free.
            BadPlan: as `by_file`.
            BadInput: a wish for all edges.

        """
        if wish is not None:
            raise BadInput("--edge-codec", "a swarm's edges are named one by one, such as hidden.1=bf16")
        if busy:
            named = ", ".join(self._called(one.provider) for one in busy)
            raise Busy("nodes", f"all {self._swarm.slots} sessions of {named} are taken: try again, or give more slots")
        if failed := set(terms.excluded) - self._failed:
            raise NoProvider("nodes", f"{self._called(min(failed))} failed, and nobody else has its layers")
        held, _ = await self._nodes.call()
        if held != manifest.digest():
            raise NoProvider("nodes", "were given another copy of the model meanwhile: ask again")
        plan = by_file(self._swarm, manifest, terms=terms, customer=self._customer)
        return Draw(plan, plan.certificate, (), ads(self._file, plan), {one.task: 1 for one in plan.tasks})

    def note_failed(self, providers: Iterable[str]) -> None:
        self._failed.update(providers)

    def _called(self, public: str) -> str:
        entry = self._file.node(public)
        return entry.called if entry is not None else npub(public)


async def start(stack: AsyncExitStack, config: SwarmCustomer) -> Session:
    """Open a customer's session with a swarm's nodes, who are linked to when they are needed.

    Raises:
        BadConfig: the file does not name this customer.
        Busy: another command of this customer's is under way.

    """
    congestion.check(config.congestion)
    stack.enter_context(held(config.state))
    keys, file = Keys.from_file(config.key), config.file
    if keys.public not in file.customers:
        raise BadConfig(str(config.path), f"does not name {keys.npub}: add it to customers, on every machine")
    at = addresses(file)
    relaying = LinkEventTransport(keys.public, at)
    showing = InventoryExchange(lambda peer: node.open_link(peer), {})

    def controlled(peer: str, document: Mapping[str, Any]) -> None:
        if not relaying.handle(peer, document):
            showing.handle(peer, document)

    node = Node(
        keys,
        policy=LinkPolicy(
            admit=at.__contains__,
            transport=TcpTls(config.congestion or None, allow_private=True),
            beside=SameHost(keys),
        ),
        on_control=controlled,
    )
    relaying.links = node
    stack.push_async_callback(node.close)
    ledger = Ledger(config.state / "ledger.db")
    stack.callback(ledger.close)
    payer = Payer(keys, NoWallet(), ledger)
    spool = Spool(config.state / "spool", SPOOL_BYTES)
    stack.callback(spool.close)
    spool.sweep(time.time())
    settler = Settler(relaying, payer, keys.public, relays=(), network=NETWORK, private_endpoints=False)
    settling = asyncio.create_task(settler.run())
    stack.callback(settling.cancel)
    nodes = Nodes(file, node, showing)
    session = Session(
        keys=keys,
        pool=relaying,
        relays=(),
        public_record=NodesRecord(file, nodes, config.blobs),
        planner=FilePlanner(file, nodes, keys.public),
        payer=payer,
        network=NETWORK,
        node=node,
        spool=spool,
        settler=settler,
        make_worker=maker(stack, Limits(0), config.blobs),
        named=partial(named, file),
    )
    stack.push_async_callback(session.close)
    return session
