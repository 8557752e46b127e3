"""Which models a provider that follows demand may go to, and what it thinks of those that it has not loaded."""

from __future__ import annotations

from nodewire.errors import NotFound
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.snapshot import HeldTasks, Node, Snapshot
from nodewire.protocol.model import manifest_event
from nodewire.provider.autoscale.candidates import AGAIN_EPOCHS, KEPT_EPOCHS, MAX_READ, Candidates
from nodewire.provider.autoscale.estimates import offers, prices, speeds
from tests.plan.markets import diamond, ring
from tests.protocol.committee.actors import keys

AUTHOR = keys("author")
MODELS = {made.digest(): made for made in (*(ring(n) for n in range(1, MAX_READ + 4)), diamond())}
RING, DIAMOND = ring(1), diamond()


class Relays:
    """Relays and stores with the manifests that they carry; `asked` are the digests that were looked for."""

    def __init__(self, carried=MODELS):
        self.carried, self.asked = dict(carried), []

    async def fetch(self, filters, timeout_s):
        (wanted,) = filters
        (digest,) = wanted.tags["x"]
        self.asked.append(digest)
        made = self.carried.get(digest)
        if made is None:
            return []
        return [manifest_event.build(AUTHOR, made, created_at=1, blob_sha256="0" * 64, servers=())]

    async def manifest(self, address, digest=None):
        name = address.rpartition(":")[2]
        found = next((one for one in self.carried.values() if one.name == name), None)
        if found is None:
            raise NotFound(address, "no relay has it")
        return found


def snapshot(*held, bonds=()):
    """Each a node that holds all tasks of these manifests, for 100 msat and 1 ms more than the one before."""
    nodes = [
        Node(
            pubkey=keys(f"node {k}").public,
            beat="0" * 64,
            ad="0" * 64,
            held=tuple(
                HeldTasks(
                    manifest=made.digest(),
                    free=1,
                    tasks=tuple(
                        TaskOffer(task=task.name, price_msat=100 * (k + 1), us_per_position=1_000 * (k + 1))
                        for task in made.tasks
                    ),
                )
                for made in manifests
            ),
            bond_msat=bonds[k] if k < len(bonds) else 0,
            region="",
            load_ppm=0,
            coordinates=(0, 0, 0),
            epochs=1,
        )
        for k, manifests in enumerate(held)
    ]
    return Snapshot(committee="0" * 64, epoch=1, nodes=tuple(sorted(nodes, key=lambda node: node.pubkey)), events=())


def candidates(relays, *listed, but=()):
    return Candidates(relays, relays, listed, {8843}, but)


async def test_without_a_list_what_somebody_holds_counts_and_for_a_while_what_somebody_held():
    relays = Relays()
    one = candidates(relays)
    found = await one.at(1, snapshot([RING], [RING, DIAMOND]))
    assert found.keys() == {RING.digest(), DIAMOND.digest()}
    assert found[RING.digest()].address == f"38840:{AUTHOR.public}:{RING.name}"
    assert (await one.at(2 + KEPT_EPOCHS - 1, snapshot([RING]))).keys() == {RING.digest(), DIAMOND.digest()}
    assert (await one.at(2 + KEPT_EPOCHS, snapshot([RING]))).keys() == {RING.digest()}
    assert sorted(relays.asked) == sorted([RING.digest(), DIAMOND.digest()])  # read once


async def test_a_few_new_ones_are_read_in_an_epoch_those_with_the_most_bond_behind_them_first():
    relays = Relays()
    many = [made for made in MODELS.values() if made != DIAMOND]
    one = candidates(relays)
    found = await one.at(1, snapshot(many, many, [DIAMOND], bonds=(0, 0, 5)))
    assert len(found) == MAX_READ and relays.asked[0] == DIAMOND.digest()
    assert len(await one.at(2, snapshot(many, many, [DIAMOND]))) == len(MODELS)


async def test_what_no_relay_carries_is_not_asked_for_in_every_epoch():
    relays = Relays({})
    one = candidates(relays)
    for epoch in range(1, 2 * AGAIN_EPOCHS + 1):
        assert await one.at(epoch, snapshot([RING])) == {}
    assert len(relays.asked) == 2


async def test_a_list_is_all_that_counts_and_a_new_version_takes_the_olds_place():
    relays = Relays({RING.digest(): RING})
    address = f"38840:{AUTHOR.public}:{RING.name}"
    one = candidates(relays, address)
    assert (await one.at(1, snapshot([DIAMOND]))).keys() == {RING.digest()}
    newer = RING.model_copy(update={"license": "MIT"})
    relays.carried = {newer.digest(): newer}
    assert (await one.at(2, snapshot([RING]))).keys() == {RING.digest()}
    assert (await one.at(1 + AGAIN_EPOCHS, snapshot([RING]))).keys() == {newer.digest()}


async def test_what_is_served_anyway_is_no_candidate():
    assert await candidates(Relays(), but=(RING.digest(),)).at(1, snapshot([RING])) == {}


def test_times_are_as_measured_or_as_others_have_them_or_by_what_a_task_computes():
    first, second, third = (task.name for task in ring(2).tasks)
    task = TaskOffer(task=second, price_msat=1, us_per_position=300)
    found = speeds(ring(2), {first: 100}, {second: [task, task.model_copy(update={"us_per_position": 500})]})
    assert found == {first: 100, second: 400, third: 250}  # its flops are theirs: between the two
    assert set(speeds(ring(2), {}, {}).values()) == {1_000}  # 10^6 flops at a gigaflop a second


def test_a_price_is_a_part_of_what_others_ask_and_never_below_the_least():
    at = snapshot([RING], [RING], [RING])
    asked = offers(at, RING.digest(), keys("node 2").public)
    assert {len(found) for found in asked.values()} == {2}
    names = [task.name for task in RING.tasks]
    assert prices(names, asked, least_msat=1, ppm=1_000_000) == dict.fromkeys(names, 150)
    assert prices(names, asked, least_msat=80, ppm=500_000) == dict.fromkeys(names, 80)
    assert prices(["new"], asked, least_msat=1, ppm=2_000_000) == {"new": 300}
    assert prices(["new"], {}, least_msat=9, ppm=1_000_000) == {"new": 9}
