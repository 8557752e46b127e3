"""An oracle reads a manifest while it is there: whatever its author puts in its place later, jobs are judged by it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodewire.errors import NotFound
from nodewire.market import Market
from nodewire.oracle.court.library import Library
from nodewire.protocol.market.snapshot import HeldTasks
from nodewire.protocol.model import manifest_event as publish
from tests.oracle.court.test_oracle_court import Pool
from tests.oracle.courtroom import MANIFEST
from tests.oracle.test_oracle_daemon import Shelf
from tests.protocol.committee.actors import committee, digest
from tests.protocol.documents import CUSTOMER

COMMITTEE, _ = committee()
FIRST = publish.build(CUSTOMER, MANIFEST, created_at=1, blob_sha256=digest("blob"), servers=())
OTHER = MANIFEST.model_copy(update={"license": "another"})
REPLACED = publish.build(CUSTOMER, OTHER, created_at=2, blob_sha256=digest("blob"), servers=())


class Addressable(Pool):
    """Keeps the newest event of an address, as relays do."""

    async def publish(self, event):
        self.stored.clear()
        await super().publish(event)


def offered(bond_msat):
    held = HeldTasks(manifest=MANIFEST.digest(), free=1, tasks=())
    return SimpleNamespace(nodes=[SimpleNamespace(held=[held], bond_msat=bond_msat)])


@pytest.mark.parametrize("bonded", [True, False])
async def test_what_bonded_nodes_offer_is_known_whatever_its_author_puts_in_its_place(tmp_path, bonded):
    relay = Addressable()
    market = Market(relay, Shelf(tmp_path), COMMITTEE)
    library = Library(market, relay)
    await relay.publish(FIRST)
    await library.read(offered(COMMITTEE.bond_unit_msat if bonded else 0))
    await relay.publish(REPLACED)
    await library.read(offered(COMMITTEE.bond_unit_msat))
    address = publish.address(FIRST)
    assert address == publish.address(REPLACED)
    if bonded:
        assert await market.manifest(address, MANIFEST.digest()) == MANIFEST
    else:
        with pytest.raises(NotFound):
            await market.manifest(address, MANIFEST.digest())
