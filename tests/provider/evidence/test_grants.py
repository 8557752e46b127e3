"""Who may see the inputs of sampled work: those whom oracles published as drawn, for some epochs."""

import pytest

from nodewire.errors import NotAllowed, NotFound
from nodewire.protocol.job.chunk import opening
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification.sample import JobSamples, Sample
from nodewire.provider.evidence.grants import OPEN_EPOCHS, Grants
from nodewire.provider.evidence.server import EvidenceServer
from tests.protocol import documents
from tests.protocol.committee.actors import GENESIS_S, committee, keys
from tests.provider.evidence.test_server import HASH, REQUEST, kept, spool, want

COMMITTEE, SEATS = committee(1)
PROVIDER, VERIFIER = documents.PROVIDERS[0], keys("verifier")
__all__ = ["spool"]


def sample(task="stage.0", chunk=1, provider=documents.PROVIDERS[1].public, verifiers=(VERIFIER.public,)) -> Sample:
    return Sample(provider=provider, request=REQUEST, task=task, chunk=chunk, attempt=0, root=HASH, verifiers=verifiers)


DIGEST = COMMITTEE.digest()


def published(*samples, by=SEATS[0].keys, epoch=3, committee_=DIGEST):
    sampled = JobSamples(committee=committee_, epoch=epoch, certificate=HASH, request=REQUEST, samples=samples)
    return verification.build(by, sampled, created_at=1)


class Relays:
    def __init__(self, *events):
        self.events, self.asked = events, 0

    async def fetch(self, filters):
        self.asked += 1
        return [event for event in self.events if any(f.matches(event) for f in filters)]


def grants(*events, epoch=4):
    relays = Relays(*events)
    now_s = [GENESIS_S + epoch * COMMITTEE.epoch_ms / 1000]
    return Grants(relays, COMMITTEE, lambda: now_s[0]), relays, now_s


async def test_who_was_drawn_is_entitled_for_some_epochs():
    found, relays, now_s = grants(published(sample()))
    assert await found.find_samples(VERIFIER.public, REQUEST) == (sample(),)
    assert await found.find_samples(VERIFIER.public, REQUEST) == (sample(),)
    assert relays.asked == 1
    now_s[0] += OPEN_EPOCHS * COMMITTEE.epoch_ms / 1000
    assert await found.find_samples(VERIFIER.public, REQUEST) == ()


@pytest.mark.parametrize(
    "event",
    [
        published(sample(), by=keys("stranger")),
        published(sample(verifiers=(keys("other").public,))),
        published(sample(), committee_=HASH),
    ],
    ids=["by a stranger", "of another verifier", "of another committee"],
)
async def test_other_words_entitle_to_nothing(event):
    found, _, _ = grants(event)
    assert await found.find_samples(VERIFIER.public, REQUEST) == ()


async def holding(spool, *samples):
    found, _, _ = grants(published(*samples))
    held = EvidenceServer(PROVIDER, COMMITTEE, spool, found.find_samples)
    held.keep(kept())
    return held


async def test_a_verifier_sees_the_inputs_of_its_sample_and_what_they_open(spool):
    """The provider drives; `stage.0` is another's, and is fed by the driver's edge hidden.0."""
    held = await holding(spool, sample())
    frames = list(await held.show(VERIFIER.public, want("frames", task="driver", edges=("hidden.0",), first=0)))
    assert [frame.seq for _, frame in frames] == list(range(65))
    assert await held.show(VERIFIER.public, want("opening", task="driver"))


async def test_a_verifier_does_not_see_what_it_is_to_compute_itself_nor_later_chunks(spool):
    held = await holding(spool, sample(), sample("driver", provider=PROVIDER.public))
    for asked in (
        want("opening", task="driver"),
        want("frames", task="driver", edges=("hidden.0",)),
        want("frames", task="stage.0", edges=("hidden.0",)),
        want("frames", task="driver", edges=("hidden.0",), first=0, last=2**53 - 1),
        want("opening", task="driver", first=2, last=2),
        want("frames", task="driver", edges=()),
        want("opening", task="stage.0"),
        want("ticket", task="stage.0"),
    ):
        with pytest.raises(NotAllowed):
            await held.show(VERIFIER.public, asked)
    assert await held.show(VERIFIER.public, want("ticket", task="driver"))


async def test_who_was_not_drawn_sees_nothing(spool):
    held = await holding(spool, sample())
    for what in ("ticket", "opening", "frames"):
        with pytest.raises(NotAllowed):
            await held.show(keys("other").public, want(what, edges=("hidden.0",)))


async def test_what_a_verifier_computed_is_shown_to_oracles_alone(spool):
    held = await holding(spool, sample())
    mine = opening(PROVIDER, documents.manifest(), (), request="ee" * 32, task="driver", chunk=1, attempt=0)
    held.verified(mine)
    asked = want(request="ee" * 32)
    assert await held.show(SEATS[0].keys.public, asked) == mine.pack()
    with pytest.raises(NotFound):
        await held.show(VERIFIER.public, asked)
