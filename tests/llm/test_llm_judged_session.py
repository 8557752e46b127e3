"""A driver's chunk computed again by `verify.recomputation` with a real driver, from all that a judge is shown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nodewire.protocol.job.chunk import Opening, chunk_of, leaf_of
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import choices
from nodewire.protocol.verification.comparison import compare
from nodewire.protocol.verification.sample import Sample
from nodewire.verify.recomputation import Inputs, recompute
from tests.llm.judged_driver import choosing, recorded
from tests.sessions import SessionOf

PROMPT = [5, 77, 130, 9, 201]
CHUNK, TOKENS = 2, 150
PARAMS = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 3, "repetition_penalty": 1.2}
_DTYPES = {torch.float32: "float32", torch.int64: "int64"}


def plain(frame):
    """As it travels."""
    arrays = [
        Array(_DTYPES[t.dtype], tuple(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes())
        for t in frame.tensors
    ]
    return Frame(frame.edge, frame.seq, tuple(arrays), frame.meta)


class Here:
    """The driver as a worker that has it loaded."""

    def __init__(self, actor):
        self.actor = actor

    async def open(self, task, session, params, codings=None):
        self.actor.open(session, params)
        return SessionOf(self, task, session)

    async def receive(self, task, session, frame):
        names = {name: dtype for dtype, name in _DTYPES.items()}
        tensors = [torch.frombuffer(bytearray(a.data), dtype=names[a.dtype]).view(a.shape) for a in frame.tensors]
        outs = self.actor.receive(session, Frame(frame.edge, frame.seq, tuple(tensors), frame.meta))
        return [plain(out) for out in outs]

    async def close(self, task, session):
        self.actor.close(session)


class Judge:
    """A job of one session on a ring, and what of it is shown."""

    def __init__(self, ring, choose=None):
        self.ring, self.manifest = ring, ring.manifest
        with choosing(choose or (lambda honest, *given: honest(*given))):
            self.said = recorded(ring, PROMPT, **PARAMS)

    def of(self, frames, chunk=CHUNK):
        order = {edge.name: i for i, edge in enumerate(self.manifest.edges)}
        leaves = [leaf_of(self.manifest.digest(), plain(one)) for one in frames]
        mine = [leaf for leaf in leaves if chunk_of(self.manifest, leaf.seq) == chunk]
        return self.opening(sorted(mine, key=lambda leaf: (order[leaf.edge], leaf.seq)))

    def opening(self, leaves):
        place = {"request": "ab" * 32, "task": "driver", "chunk": CHUNK, "attempt": 0}
        return Opening(author="cd" * 32, secret=bytes(32), leaves=tuple(leaves), **place)

    async def computed(self, judged=None, beside=None):
        edge = choices.tokens_edge(self.manifest, "driver")
        took = [plain(one) for one in self.said.took]
        gave = [plain(one) for one in self.said.gave if one.edge == edge]
        sample = Sample(
            provider="cd" * 32, request="ab" * 32, task="driver", chunk=CHUNK, attempt=0, root="ef" * 32, verifiers=()
        )
        inputs = Inputs(
            sample=sample,
            manifest=self.manifest,
            digest=self.manifest.digest(),
            params=PARAMS,
            narrowed={},
            before=tuple(one for one in took if chunk_of(self.manifest, one.seq) < CHUNK),
            frames=tuple(one for one in took if chunk_of(self.manifest, one.seq) == CHUNK),
            said=choices.of_frames(one for one in gave if chunk_of(self.manifest, one.seq) < CHUNK),
        )
        kind = SimpleNamespace(check=lambda manifest, params: params, merged=lambda manifest, task, frames: frames)
        return await recompute(
            inputs, kind=kind, worker=Here(self.ring.actors["driver"]), loaded="t", judged=judged, beside=beside
        )

    def outcome(self, computed, theirs):
        return compare(self.manifest, "driver", self.opening(computed.leaves), theirs).outcome


async def test_an_honest_chunk_is_the_same_to_the_bit(ring):
    job = Judge(ring)
    theirs = job.of(job.said.gave)
    assert len(theirs.leaves) > 100
    assert (await job.computed()).leaves == theirs.leaves
    assert (await job.computed(theirs, theirs)).leaves == theirs.leaves


@pytest.mark.parametrize("pos", [len(PROMPT) + 65, len(PROMPT) + 100, len(PROMPT) + 128], ids=["first", "amid", "last"])
async def test_one_token_of_64_that_was_not_chosen_fails(ring, pos):
    def lies(honest, logits, sampling, at):
        first = honest(logits, sampling, at)
        return first if at != pos else next(int(one) for one in logits.topk(20).indices.flip(0) if int(one) != first)

    job = Judge(ring, lies)
    theirs = job.of(job.said.gave)
    computed = await job.computed(theirs)
    assert job.outcome(computed, theirs) == "fail"
    edge = choices.tokens_edge(job.manifest, "driver")
    own, said = (choices.of_leaves(leaves, edge) for leaves in (computed.leaves, theirs.leaves))
    assert next(seq for seq in own if own[seq] != said[seq]) == pos - len(PROMPT)  # penalties follow the own one then


async def test_arithmetic_that_is_a_little_off_passes_by_what_was_said_and_not_without(ring, monkeypatch):
    """Penalties and all: what was said earlier, in other chunks too, is what the judge goes on from."""
    job = Judge(ring)
    theirs = job.of(job.said.gave)
    monkeypatch.setattr("nodewire.llm.tokens.leeway.ROUNDED", {torch.float32: 0})
    source = torch.Generator().manual_seed(5)

    def off(honest, logits, sampling, pos):
        return honest(logits + torch.randn(len(logits), generator=source) * 0.1, sampling, pos)

    with choosing(off):
        assert job.outcome(await job.computed(), theirs) == "fail"  # as a verifier, that chooses for itself
        computed = await job.computed(theirs)
    assert job.outcome(computed, theirs) == "pass"


async def test_a_verifier_that_chose_for_itself_answers_up_to_its_first_tie(ring, monkeypatch):
    job = Judge(ring)
    theirs = job.of(job.said.gave)
    monkeypatch.setattr("nodewire.llm.tokens.leeway.ROUNDED", {torch.float32: 0})
    source = torch.Generator().manual_seed(6)

    def off(honest, logits, sampling, pos):
        return honest(logits + torch.randn(len(logits), generator=source) * 0.1, sampling, pos)

    with choosing(off):
        checked = job.opening((await job.computed()).leaves)
    computed = await job.computed(theirs, checked)
    mine = job.opening(computed.leaves)
    assert job.outcome(computed, checked) == "fail"
    spared = choices.spared(job.manifest, "driver", checked, mine, computed.excused)
    assert job.outcome(computed, spared) == "pass"
    assert choices.spared(job.manifest, "driver", checked, mine, ()) == checked
