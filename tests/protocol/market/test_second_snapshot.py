"""The snapshot's derivation by nips/07-snapshots.md alone gives what nodewire's gives, epoch after epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from nodewire.nostr.event import Event
from nodewire.protocol.committee.reputation import ReputationVerdict
from nodewire.protocol.market import snapshot
from nodewire.protocol.market.coordinates import rtt_us
from nodewire.protocol.market.observation import MAX_OBSERVED, Observation, is_drawn
from tests.protocol.committee import second_snapshot
from tests.protocol.committee.actors import GENESIS_S, HOLDER, Provider, committee, digest

COMMITTEE, _ = committee(1, bond_holders=(HOLDER.public,))
UNIT = COMMITTEE.bond_unit_msat
MODELS = [digest("one model"), digest("another model")]
PROVIDERS, EPOCHS = 14, 7


def test_the_page_alone_gives_the_same_snapshots():
    nodes = [node for seed in range(4) for made in _compared(seed) for node in made.nodes]
    assert sum(len(node.seen) for node in nodes) > 100
    assert any(node.is_placed for node in nodes)


def _compared(seed: int) -> Iterator[snapshot.Snapshot]:
    random = Random(seed)
    providers = [_provider(f"{seed}.{i}", random) for i in range(PROVIDERS)]
    others = [event for one in providers for event in (one.ad, one.bond) if event is not None]
    epoch, previous = 20, None
    for step in range(EPOCHS):
        body = digest(f"body {seed} {step}")
        beats = [_beat(one, epoch, body, previous) for one in providers if random.random() < 0.85]
        beats += [one.beat(epoch, body, created_at=GENESIS_S) for one in providers if random.random() < 0.1]
        judged = [_judged(random, epoch, f"{seed} {step} {n % 9}", providers) for n in range(12)]
        made = snapshot.derive(COMMITTEE, epoch, beats, others, bonds=others, judged=judged, previous=previous)
        found = second_snapshot.snapshot(
            _plain(COMMITTEE.document()),
            COMMITTEE.digest(),
            epoch,
            [json.loads(event.to_json()) for event in beats],
            [json.loads(event.to_json()) for event in others],
            [_plain(one.model_dump()) for one in judged],
            _plain(previous.model_dump()) if previous else None,
        )
        expected = _plain(made.model_dump())
        for name, value in found.items():
            assert value == expected[name], name
        yield made
        previous, epoch = made, epoch + random.choice([1, 1, 2])


def _plain(document: object) -> dict:
    found: dict = json.loads(json.dumps(document))
    return found


def _provider(name: str, random: Random) -> Provider:
    held = {
        model: (
            [
                (f"t{j}", random.choice([0, 7, 9_000]), random.randrange(50, 5_000))
                for j in range(random.randrange(1, 4))
            ],
            random.randrange(1, 5),
        )
        for model in random.sample(MODELS, random.choice([1, 2]))
    }
    coordinates = (random.randrange(-40_000, 40_000), random.randrange(-40_000, 40_000), random.randrange(3_000))
    bond_msat = random.choice([0, UNIT - 1, UNIT, 30 * UNIT, 30 * UNIT])
    return Provider(name, COMMITTEE, held, coordinates=coordinates, bond_msat=bond_msat)


def _judged(random: Random, epoch: int, sample: str, providers: list[Provider]) -> ReputationVerdict:
    outcome = random.choice(["pass", "pass", "unsure", "withheld"])
    return ReputationVerdict(
        epoch=epoch - 12 - random.randrange(-1, 3),
        sample=digest(sample),
        provider=random.choice(providers).keys.public,
        outcome=outcome,
        price_msat=random.randrange(1, 10_000) if outcome == "pass" else 0,
    )


def _beat(one: Provider, epoch: int, body: str, previous: snapshot.Snapshot | None) -> Event:
    """A beat that says what its node found of nodes that it was drawn for, and of some that it was not."""
    random, me = Random(f"{one.name} {epoch}"), one.keys.public
    nodes = previous.nodes if previous else ()
    units = {node.pubkey: node.bond_msat // UNIT for node in nodes}
    said = {}
    for node in nodes:
        drawn = is_drawn(body, me, node.pubkey, units.get(me, 0), sum(units.values()))
        if node.pubkey != me and (drawn or random.random() < 0.1):
            rtt = rtt_us(one.coordinates, node.coordinates) * random.choice([100, 100, 100, 123, 160]) // 100
            is_missed = int(node.pubkey[:2], 16) % 7 == 0
            said[node.pubkey] = Observation(node=node.pubkey, rtt_us=None if is_missed else max(rtt, 1))
    observed = tuple(said[key] for key in sorted(said)[:MAX_OBSERVED])
    at, load_ppm = GENESIS_S + random.randrange(100), random.randrange(10**6)
    return one.beat(epoch - random.choice([0, 0, 0, 1, 3]), body, created_at=at, observed=observed, load_ppm=load_ppm)
