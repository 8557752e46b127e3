"""Who computes a stage along and lags behind: what it commits to and asks for is what it would be if it did not."""

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.errors import WorkerFailed
from nodewire.nostr.keys import Keys
from nodewire.protocol.close import Close
from nodewire.protocol.takeover import LOST, Takeover
from nodewire.provider.daemon import Provider
from nodewire.provider.job import JobRun
from nodewire.provider.standing import Standby
from nodewire.provider.statements import Statements
from nodewire.provider.withdrawals import Withdrawals
from nodewire.wire.record import Record
from nodewire.wire.spool import Spool
from tests.kinds.inprocess import Box, Direct
from tests.kinds.llama import load, make_llama
from tests.provider.test_provider_job import CUSTOMER, HASH, REQUEST, Recorded, Taped, make_market, served

HEDGE = Keys(b"\x07" * 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=400, seed=5, eos_token_id=None)


def late(box: type[Box]) -> type[Box]:
    class Late(box):
        """What it is sent comes when the driver has closed its chunk; what it puts out goes nowhere."""

        def __init__(self, *given):
            super().__init__(*given)
            self.chunks, self.news = set(), asyncio.Event()

        async def put(self, frame):
            if box is not Box:
                self.tape.write(REQUEST, frame.edge, 0, frame)

        async def get(self):
            frame = await super().get()
            while frame.meta["chunk"] not in self.chunks:
                self.news.clear()
                await self.news.wait()
            return frame

    return Late


@pytest.mark.parametrize("max_tokens", [1, 65, 150])
@pytest.mark.parametrize("lookahead", [1, 8])
@pytest.mark.parametrize("policy", ["none", "sampled"])
async def test_a_hedge_to_which_frames_come_after_their_close_commits_to_all_of_them(
    folder, tmp_path, policy, lookahead, max_tokens
):
    market = make_market(folder, tmp_path, policy, lookahead=lookahead, max_tokens=max_tokens, hedge=HEDGE.public)
    task = market.manifest.tasks[-1].name
    (other,) = [run for run in market.runs.values() if run.tasks == (task,)]
    said: dict[str, dict[int, list]] = {HEDGE.public: {}, other._keys.public: {}}
    spool = Spool(tmp_path / "hedge", 10**8)
    statements = Statements(HEDGE, other.request, market.manifest, spool) if policy == "sampled" else None
    record = Record(statements or spool, REQUEST, market.manifest, lookahead) if lookahead > 1 else None
    tape = record or statements
    box = late(Recorded if record is not None else Taped if tape is not None else Box)
    mailbox = box(market.hub, HEDGE.public, *([tape] if tape is not None else []))
    queue = market.hub.queues[HEDGE.public] = asyncio.Queue()
    put = Box.put

    async def put_aside_too(self, frame):
        if market.hub.ends[frame.edge][1] == other._keys.public:
            await queue.put(frame)
        await put(self, frame)

    hedge = JobRun(
        keys=HEDGE,
        request=other.request,
        manifest=market.manifest,
        params=other._job.params,
        kind=other._kind,
        mailbox=mailbox,
        worker=Direct({task: load(market.registration)[task]}),
        ledger=other._ledger,
        publish=other._telling.publish,
        commit=other._settling._commit,
        statements=statements,
        record=record,
    )
    assert hedge.tasks == (task,)
    market.runs[HEDGE.public] = hedge
    for run in (hedge, other):
        made = run._settling._root

        def root(leaves, of, chunk, attempt, made=made, public=run._keys.public):
            said[public][chunk] = leaves
            return made(leaves, of, chunk, attempt)

        run._settling._root = root
    heard = market.hub.on_control

    async def on_control(sender, peer, document):
        await heard(sender, peer, document)
        if peer == HEDGE.public and (close := Close.from_control(document)) is not None:
            mailbox.chunks.add(close.chunk)
            mailbox.news.set()

    market.hub.on_control = on_control
    Box.put = put_aside_too
    try:
        ids = await served(market)
    finally:
        Box.put = put
    assert len(ids) == max_tokens
    assert said[HEDGE.public] == said[other._keys.public]
    assert len(said[HEDGE.public]) == 1 + -(-(max_tokens - 1) // market.manifest.chunk)
    dues = [[(one.due.chunk, one.due.units) for one in market.due(run)] for run in (hedge, other)]
    assert dues[0] == dues[1] and hedge._mailbox.closed


class Dead(Direct):
    """A worker that has died."""

    async def open(self, task, session, params, codings=None):
        raise WorkerFailed("worker", "killed")


class GivesUp(Box):
    def give_up(self):
        self.has_given_up = True


@pytest.mark.parametrize("ends", ["alone", "for all"])
async def test_who_computed_along_and_is_called_while_it_settles_says_that_it_cannot(folder, tmp_path, ends):
    """Its provider dies just as it gives up: who called it would wait for nothing."""
    market = make_market(folder, tmp_path, hedge=HEDGE.public)
    task, other = market.manifest.tasks[-1].name, list(market.runs.values())[-1]
    telling, told = asyncio.Event(), asyncio.Event()

    async def publish(event):
        if event.pubkey == HEDGE.public and market.parsed(event).status == "error":
            telling.set()
            await told.wait()

    async def commit(roots):
        pass

    mailbox = GivesUp(market.hub, HEDGE.public)
    market.hub.queues[HEDGE.public] = asyncio.Queue()
    hedge = JobRun(
        keys=HEDGE,
        request=other.request,
        manifest=market.manifest,
        params=other._job.params,
        kind=other._kind,
        mailbox=mailbox,
        worker=Dead({}),
        ledger=other._ledger,
        publish=publish,
        commit=commit,
    )
    hedge.handover = SimpleNamespace() if ends == "alone" else None
    running = asyncio.create_task(hedge.run())
    async with asyncio.timeout(30):
        await telling.wait()
    if ends == "for all":
        assert mailbox.closed  # and its node answers
    else:
        market.hub.controls.clear()
        left = ((task, other._keys.public, HEDGE.public, 0),)
        driver = market.plan.tasks[0].provider
        keys = next(run._keys for run in market.runs.values() if run._keys.public == driver)
        takeover = Takeover.sign(keys, request=REQUEST, attempt=1, previous=REQUEST, replaced=left)
        await hedge.took_over(takeover)
        assert market.hub.controls == [(HEDGE.public, driver, {"t": LOST, "peer": HEDGE.public})]
    told.set()
    with pytest.raises(WorkerFailed):
        await running


def test_a_provider_answers_a_call_into_a_job_that_is_ending_or_has_ended_here():
    said = []
    link = SimpleNamespace(send_control=said.append)
    provider = object.__new__(Provider)
    provider._keys, provider._standby, provider._withdrawals = HEDGE, Standby(), Withdrawals()
    provider._node = SimpleNamespace(open_link={"caller": link}.get)
    provider._jobs = {REQUEST: None}
    left = (("stage.1", HASH, HEDGE.public, 0),)
    call = Takeover.sign(CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=left).control()
    lost = {"t": LOST, "peer": HEDGE.public, "job": REQUEST}
    provider.controlled("caller", call)
    assert said == [lost]
    del provider._jobs[REQUEST]
    provider._standby.leave(REQUEST)
    provider.controlled("caller", call)
    assert said == [lost, lost]
    provider._standby = Standby()  # it does not know the job yet: it may be on its way
    provider.controlled("caller", call)
    assert len(said) == 2 and provider._standby.call_for(REQUEST)[0] == "caller"
