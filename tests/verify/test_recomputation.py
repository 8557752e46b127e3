"""A sampled chunk computed again from what the customer sealed and certificates hold; and who is to blame otherwise."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from nodewire.errors import NotAllowed, NotFound, TooLarge, Withheld
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job.chunk import leaf_of, opening
from nodewire.protocol.job.plan import Terms, Verification
from nodewire.protocol.job.request import Request, Ticket, content_of
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.sample import Sample
from nodewire.verify import recomputation as module
from nodewire.verify.finality import CertifiedRoot, Finality
from nodewire.verify.recomputation import Patience, gather, most_input_bytes, recompute
from nodewire.wire.node import Node
from tests.protocol import documents
from tests.protocol.committee.actors import keys

MANIFEST, ID, HASH = documents.manifest(), "cd" * 32, "ab" * 32
DRIVER, STAGE, _ = documents.PROVIDERS


def array(*values):
    return Array("uint8", (len(values),), bytes(values))


PROMPT = Frame("prompt", 0, (array(7),))
HIDDEN = [Frame("hidden.0", seq, (array(seq, 1),), {"chunk": 0 if seq == 0 else 1}) for seq in range(3)]
TICKET = Ticket(request=ID, salt=HASH, inputs=(("prompt", 0, content_of(PROMPT)),))


def request(ticket=TICKET):
    plan = documents.plan(
        terms=Terms(max_chunk_msat=10_000, max_total_msat=100_000, verify="sampled"),
        verification=Verification(policy="sampled", rate_ppm=1_000_000, share_ppm=0),
    )
    return Request(ID, plan.customer, 1, 8843, plan, "", HASH, (), 100_000, (), ticket.seal())


class Shows:
    """A provider's node with these answers; by what is asked for and the edge or task."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    async def show(self, peer, want):
        place = want.edges[0] if want.edges else want.what
        self.asked.append((place, want.first))
        answer = self.answers.get(place, NotAllowed(place, "not shown"))
        answer = answer(want) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def frames_of(frames):
    def chunks(want):
        return iter((0, f) for f in frames if want.first <= (0 if f.seq == 0 else 1) <= want.last)

    return chunks


def opened(frames=HIDDEN):
    def chunk(want):
        leaves = [leaf_of(documents.plan().manifest, f) for f in frames if (0 if f.seq == 0 else 1) == want.first]
        return opening(DRIVER, MANIFEST, leaves, request=ID, task="driver", chunk=want.first, attempt=0).pack()

    return chunk


def certified(frames=HIDDEN):
    """What the driver committed to."""
    digest = documents.plan().manifest
    roots = []
    for chunk in (0, 1):
        leaves = [leaf_of(digest, f) for f in frames if (0 if f.seq == 0 else 1) == chunk]
        shown = opening(DRIVER, MANIFEST, leaves, request=ID, task="driver", chunk=chunk, attempt=0)
        roots.append(ChunkRoot(request=ID, task="driver", chunk=chunk, attempt=0, root=shown.root()))
    return final((DRIVER.public, root) for root in roots)


def final(roots, unread=()):
    """What certificates hold: (provider, root)."""
    found = {(who, *root.key): CertifiedRoot(who, root, "c", 8, "d") for who, root in roots}
    return Finality(found, {}, {}, dict.fromkeys(unread, "lost"))


class Adds:
    """A worker whose task adds one to every byte; it remembers what it was given."""

    def __init__(self):
        self.given = []

    async def open(self, task, session, params, codings=None):
        self.params = dict(params)
        return self

    async def receive(self, frame):
        self.given.append(frame.seq)
        out = array(*(value + 1 for value in frame.tensors[0].data))
        return [Frame("hidden.1", frame.seq, (out,), frame.meta)]

    async def close(self):
        self.given.append("closed")


@asynccontextmanager
async def nodes(driver, stage):
    made = [Node(DRIVER, holder=driver.show), Node(STAGE, holder=stage.show), Node(keys("oracle"))]
    try:
        addresses = {n.public: (await n.listen("127.0.0.1"),) for n in made[:2]}
        yield made[2], addresses
    finally:
        for node in made:
            await node.close()


class Kind:
    """A job kind with one parameter, which has a default."""

    def check(self, manifest, params):
        return {"max_tokens": 128, **params}

    def merged(self, manifest, task, frames):
        return frames


async def computed(
    driver,
    stage,
    *,
    certificates=None,
    patience_s=5.0,
    computes=(STAGE, "stage.0"),
    worker=None,
    ticket=TICKET,
    unknown=(),
):
    provider, task = computes
    sample = Sample(provider=provider.public, request=ID, task=task, chunk=1, attempt=0, root=HASH, verifiers=())
    async with nodes(driver, stage) as (node, addresses):
        inputs = await gather(
            sample=sample,
            request=request(ticket),
            manifest=MANIFEST,
            final=certificates or certified(),
            node=node,
            addresses={**addresses, **dict.fromkeys(unknown, ())},
            patience_s=patience_s,
        )
        return (await recompute(inputs, kind=Kind(), worker=worker or Adds(), loaded=task)).leaves


def honest_driver(**changes):
    return Shows(**{"hidden.0": frames_of(HIDDEN), "opening": opened()} | changes)


def honest_stage(**changes):
    return Shows(**{"ticket": TICKET.to_json().encode()} | changes)


async def test_the_leaves_of_the_chunk_come_from_all_inputs_before_it():
    worker = Adds()
    leaves = await computed(honest_driver(), honest_stage(), worker=worker)
    assert [(leaf.edge, leaf.seq) for leaf in leaves] == [("hidden.1", 1), ("hidden.1", 2)]
    assert worker.given == [0, 1, 2, "closed"]
    digest = documents.plan().manifest
    assert leaves[0] == leaf_of(digest, Frame("hidden.1", 1, (array(2, 2),)))


@pytest.mark.parametrize(
    "ticket",
    [NotAllowed("ticket", "no"), b"garbage", TICKET.model_copy(update={"salt": "ee" * 32}).to_json().encode()],
    ids=["refused", "garbage", "not the sealed one"],
)
async def test_a_ticket_that_is_not_shown_is_withheld_by_the_provider(ticket):
    with pytest.raises(Withheld):
        await computed(honest_driver(), honest_stage(ticket=ticket))


async def test_a_provider_that_never_answers_has_withheld_after_an_epoch():
    async def never(peer, want):
        await asyncio.sleep(60)

    stage = honest_stage()
    stage.show = never
    with pytest.raises(Withheld):
        await computed(honest_driver(), stage, patience_s=0.3)


async def test_whose_producer_signed_nothing_and_shows_nothing_should_not_have_committed():
    with pytest.raises(Withheld):
        await computed(honest_driver(opening=NotFound("opening", "gone")), honest_stage())


@pytest.mark.parametrize("seq", [0, 2])
async def test_frames_that_are_not_what_their_producer_committed_to_are_not_computed_from(seq):
    other = [*HIDDEN]
    other[seq] = Frame("hidden.0", seq, (array(99, 99),), HIDDEN[seq].meta)
    worker = Adds()
    with pytest.raises(Withheld):
        await computed(honest_driver(**{"hidden.0": frames_of(other)}), honest_stage(), worker=worker)
    assert worker.given == []


async def test_an_opening_that_no_certificate_holds_opens_nothing():
    other = [HIDDEN[0], Frame("hidden.0", 1, (array(99, 99),), HIDDEN[1].meta), HIDDEN[2]]
    shows = honest_driver(**{"hidden.0": frames_of(other), "opening": opened(other)})
    with pytest.raises(Withheld):
        await computed(shows, honest_stage())


async def test_the_customers_frames_are_the_drivers_to_show_and_sealed():
    stage = Shows()
    for prompt in (NotFound("frames", "gone"), frames_of([Frame("prompt", 0, (array(8),))]), frames_of([])):
        driver = honest_driver(ticket=TICKET.to_json().encode(), prompt=prompt)
        with pytest.raises(Withheld):
            await computed(driver, stage, computes=(DRIVER, "driver"))


@pytest.mark.parametrize("params", [{}, {"temperature": 0.5}, {"max_tokens": 3}])
async def test_what_the_ticket_leaves_out_is_computed_by_its_default_as_it_was_served(params):
    ticket = TICKET.model_copy(update={"params": params})
    worker = Adds()
    await computed(honest_driver(), honest_stage(ticket=ticket.to_json().encode()), worker=worker, ticket=ticket)
    assert worker.params == {"max_tokens": 128, **params}


@pytest.mark.parametrize("who", [STAGE, DRIVER], ids=["the provider", "its producer"])
async def test_of_a_node_that_no_ad_places_nothing_is_found(who):
    with pytest.raises(NotFound, match="no ad says") as caught:
        await computed(honest_driver(), honest_stage(), unknown=[who.public])
    assert not isinstance(caught.value, Withheld)


async def test_what_could_stand_in_an_epoch_that_cannot_be_read_is_not_withheld():
    for unread, error in (((), Withheld), ((9,), NotFound)):
        with pytest.raises(error) as caught:
            await computed(honest_driver(), honest_stage(), certificates=final([], unread))
        assert type(caught.value) is error


async def test_all_inputs_together_stay_within_one_budget(monkeypatch):
    """Frames of 2 bytes: chunk 0 has one, chunk 1 two. What does not fit is nobody's fault."""
    monkeypatch.setattr(module, "MAX_BYTES", 6)
    await computed(honest_driver(), honest_stage())
    monkeypatch.setattr(module, "MAX_BYTES", 5)
    shows = honest_driver()
    with pytest.raises(TooLarge):
        await computed(shows, honest_stage())
    assert [chunk for place, chunk in shows.asked if place == "hidden.0"] == [0]  # the second is not even pulled


async def test_a_node_is_waited_for_once_however_many_questions_it_is_asked():
    patience = Patience(0.2)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(50):
        with pytest.raises(TimeoutError):
            async with patience.on("silent"):
                await asyncio.sleep(60)
    spent_s = loop.time() - began_s
    async with patience.on("another"):
        assert spent_s < 50 * 0.2


async def test_a_node_that_shows_much_is_waited_for_longer_and_saves_up_nothing():
    patience = Patience(0.1)
    async with patience.on("large"):
        patience.shown(60 * 2**20)
        await asyncio.sleep(0.3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30) as test, patience.on("large"):
            await asyncio.sleep(60)
    assert not test.expired()


def test_a_samples_inputs_are_bounded_by_the_models_context():
    assert most_input_bytes(MANIFEST, "stage.0") == 2 * 256 * 32 + 65_536
    endless = MANIFEST.model_copy(update={"context": 0})
    assert most_input_bytes(endless, "stage.0") == module.MAX_BYTES
