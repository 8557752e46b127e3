"""Who computes a stage along and lags behind: what it commits to and asks for is what it would be if it did not."""

import asyncio

import pytest

from nodewire.nostr.keys import Keys
from nodewire.protocol.close import Close
from nodewire.provider.job import JobRun
from nodewire.provider.statements import Statements
from nodewire.wire.record import Record
from nodewire.wire.spool import Spool
from tests.kinds.inprocess import Box, Direct
from tests.kinds.llama import load, make_llama
from tests.provider.test_provider_job import REQUEST, Recorded, Taped, make_market, served

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
        publish=other._telling._publish,
        commit=other._commit,
        statements=statements,
        record=record,
    )
    assert hedge.tasks == (task,)
    market.runs[HEDGE.public] = hedge
    for run in (hedge, other):
        made = run._root

        def root(leaves, of, chunk, attempt, made=made, public=run._keys.public):
            said[public][chunk] = leaves
            return made(leaves, of, chunk, attempt)

        run._root = root
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
