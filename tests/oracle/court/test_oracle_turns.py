"""How many cases a court looks into at a time, of whom, for how long; and whose word it takes for what was drawn."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from nodewire.oracle.court import court as courts
from nodewire.oracle.court.case import OPEN_EPOCHS, EpochDraw, Parties
from nodewire.oracle.court.court import Court
from nodewire.oracle.journal import Journal
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification.sample import Sample
from nodewire.verify.recomputation import most_input_bytes
from tests.oracle.courtroom import MANIFEST, TASK, opened
from tests.oracle.test_oracle_daemon import Relay
from tests.protocol.committee.actors import GENESIS_S, committee, digest, keys

EPOCH_S = 600
COMMITTEE, SEATS = committee(epoch_ms=EPOCH_S * 1_000)
EPOCH = 1
SEAT = next(seat for seat in SEATS if seat.keys.public != COMMITTEE.leader(EPOCH))
MANY = 40


class Clock:
    def time_s(self):
        return GENESIS_S + (EPOCH + 1) * EPOCH_S + 1.0

    def monotonic_s(self):
        return 0.0


class Silent:
    """Whoever is asked shows an opening, if `shows` has it, and nothing else ever."""

    can_recompute = True

    def __init__(self, shows=None):
        self.shows, self.asked, self.fetched = shows or {}, [], {}

    async def opening(self, sample, epoch, node):
        if sample.key in self.shows:
            return self.shows[sample.key]
        self.asked.append(sample)
        return await asyncio.Event().wait()

    async def inputs(self, sample, epoch, *, last, within_s):
        self.fetched[sample.key] = within_s
        await asyncio.Event().wait()


@pytest.fixture
async def court_of(tmp_path):
    """A court that asks by an evidence."""
    async with contextlib.AsyncExitStack() as stack:

        def made(evidence):
            journal = Journal(tmp_path / "journal.db")
            market, docket = SimpleNamespace(committee=COMMITTEE), SimpleNamespace(snapshots=dict)
            court = Court(SEAT.keys, Relay(), market, docket, evidence, journal, Clock())
            stack.callback(journal.close)

            async def ended():
                for task in list(court._tasks):
                    task.cancel()
                await asyncio.gather(*court._tasks, return_exceptions=True)

            stack.push_async_callback(ended)
            court._feed(courts.Tick(court._now_ms()))
            return court

        yield made


def sample_by(who, number, root=None):
    return Sample(
        provider=keys(who).public,
        request=digest(f"request {number}"),
        task=TASK,
        chunk=1,
        attempt=0,
        root=root or digest("root"),
        verifiers=(),
    )


def drawn(samples, parties):
    manifests = {one.request: MANIFEST for one in samples}
    of = dict(zip((one.key for one in samples), parties, strict=True))
    return EpochDraw(EPOCH, digest("body"), tuple(samples), manifests, {}, parties=of)


async def under_way(court, samples, parties):
    """How many cases are asked about when all have been drawn and nobody answers."""
    court._feed(drawn(samples, parties))
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("parties", "most"),
    [
        (lambda n: Parties(True, f"customer {n}"), courts.MAX_ASKING),
        (lambda n: Parties(False, f"customer {n}"), courts.MAX_ASKING // 2),
        (lambda n: Parties(True, "one customer"), 8),
        (lambda n: Parties(True, f"customer {n}", frozenset({f"10.0.0.{n}", "192.0.2.1"})), 4),
    ],
    ids=["of all", "of nodes without a bond", "of one customer's jobs", "of one address"],
)
async def test_so_many_cases_are_looked_into_at_a_time(court_of, parties, most):
    evidence = Silent()
    samples = [sample_by(f"provider {n}", n) for n in range(MANY)]
    await under_way(court_of(evidence), samples, [parties(n) for n in range(MANY)])
    assert len(evidence.asked) == most


async def test_of_one_provider_two_cases_are_looked_into_at_a_time(court_of):
    evidence = Silent()
    samples = [sample_by("one", n) for n in range(MANY)]
    await under_way(court_of(evidence), samples, [Parties(True, f"customer {n}") for n in range(MANY)])
    assert len(evidence.asked) == 2


def shown_by(who, number):
    theirs = opened(keys(who), request=digest(f"request {number}"))
    sample = sample_by(who, number, theirs.root())
    return sample, theirs


@pytest.mark.parametrize(("is_bonded", "most"), [(True, 4), (False, 2)])
async def test_inputs_are_fetched_of_as_many_as_memory_is_for_and_strangers_have_half_of_it(
    court_of, monkeypatch, is_bonded, most
):
    monkeypatch.setattr(courts, "MAX_INPUT_BYTES", 4 * most_input_bytes(MANIFEST, TASK))
    cases = [shown_by(f"provider {n}", n) for n in range(9)]
    evidence = Silent({sample.key: theirs for sample, theirs in cases})
    parties = [Parties(is_bonded, f"customer {n}") for n in range(9)]
    await under_way(court_of(evidence), [sample for sample, _ in cases], parties)
    assert len(evidence.fetched) == most


@pytest.mark.parametrize(("is_bonded", "epochs"), [(True, OPEN_EPOCHS), (False, 2)])
async def test_a_strangers_case_holds_its_turn_for_two_epochs_and_a_bonded_ones_to_the_end(court_of, is_bonded, epochs):
    sample, theirs = shown_by("provider", 0)
    evidence = Silent({sample.key: theirs})
    await under_way(court_of(evidence), [sample], [Parties(is_bonded, "customer")])
    (within_s,) = evidence.fetched.values()
    assert abs(within_s / EPOCH_S - epochs) < 0.1


async def test_what_was_drawn_counts_as_published_by_an_oracles_new_word_alone(court_of):
    court = court_of(Silent())
    sample = sample_by("provider", 0)
    court._feed(drawn([sample], [Parties()]))
    ((place, (sampled,)),) = court.state.to_publish.items()
    closed_s = COMMITTEE.close_ms(EPOCH) // 1000
    oracle = next(seat.keys for seat in SEATS if seat is not SEAT)
    for who, at_s in ((keys("stranger"), closed_s + 1), (oracle, closed_s - 2)):
        court._came(verification.build(who, sampled, created_at=at_s))
        assert place in court.state.to_publish
    court._came(verification.build(oracle, sampled, created_at=closed_s + 1))
    assert not court.state.to_publish
