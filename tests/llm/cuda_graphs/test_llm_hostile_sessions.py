"""A session whose neighbour sends anything at all, in the same batches as an honest one: what the honest one is told,
and what is left when both are over."""

from collections import Counter, deque
from dataclasses import replace
from random import Random

import pytest
import torch

from nodewire.errors import BadFrame, NodewireError, NotAllowed
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.cuda_graphs import runner as graphs_room
from nodewire.llm.cuda_graphs.fx_capture import FxCapture
from nodewire.llm.cuda_graphs.runner import graph_maker
from nodewire.llm.programs.programs import StageProgram
from nodewire.llm.stage import Stage
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_lanes import WIDTH, Plain, assert_close, cells
from tests.llm.llm_models import Ring, prompt_frame

CONTEXT = 192
TEXT = "the quick brown fox jumps over the lazy dog the quick brown"


def stage_of(directory, out, *, captures: bool) -> Stage:
    """Three slots of all layers."""
    made = split_decoder(directory, 2**30, out, slots=3, options=DecoderOptions(context=CONTEXT))
    _, task = made.manifest.tasks
    program = StageProgram.unpack(made.blobs[task.program.sha256].read_bytes())
    weights = open_weights([made.blobs[task.weights[0].sha256]], program.tensors)
    return Stage(program, weights, torch.device("cpu"), graph_maker(FxCapture()) if captures else None)


class Hostile:
    """Frames as no driver sends them. What was sent well before comes again, early, late and bent."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.plain, self.sent = chance, Plain(None, CONTEXT), []

    def next(self) -> Frame:
        chance = self.chance
        if self.sent and chance.random() < 0.2:
            return chance.choice(self.sent)
        of = self.plain.at_random(chance)[0]
        if chance.random() < 0.4:
            self.sent = [*self.sent[-9:], of]
            return of
        return self._bent(of)

    def _bent(self, of: Frame) -> Frame:
        chance, (x,) = self.chance, of.tensors
        how = chance.randrange(8)
        if how < 3 and x.numel():  # one number of it, or all that stand in a row
            x = x.clone()
            value = chance.choice((torch.nan, torch.inf, -torch.inf, 3e38, 1e30, -1e30, 1e-45))
            x[0, chance.randrange(x.shape[1]), chance.choice((slice(None), chance.randrange(WIDTH)))] = value
            return replace(of, tensors=(x,))
        if how == 3:
            shape = [chance.choice((0, 1, 2, 64, 200)) for _ in range(chance.randint(0, 4))]
            dtype = chance.choice((torch.float32, torch.bfloat16, torch.int64, torch.bool))
            return replace(of, tensors=(torch.zeros(shape, dtype=dtype),) * chance.choice((0, 1, 1, 2)))
        name = chance.choice(("pos", "epoch", "parents", "keep", "chunk"))
        some = [chance.randint(-2, 40) for _ in range(chance.choice((0, 1, x.shape[1], 600)))]
        value = chance.choice((None, -1, 0, 1, 191, 192, 2**52, 2**60, True, "1", b"x", cells(some), cells(some)))
        return replace(of, seq=chance.choice((0, of.seq)), meta={**of.meta, name: value})


@pytest.mark.parametrize("captures", [False, True], ids=["computed", "captured"])
def test_whatever_a_session_sends_those_in_its_batches_are_told_what_they_are_told_alone(
    plain, tmp_path, captures, monkeypatch
):
    monkeypatch.setattr(graphs_room, "MET", 1)
    stage = stage_of(plain, tmp_path / "one", captures=captures)
    again = stage_of(plain, tmp_path / "again", captures=False)
    errors, free = Counter(), stage._lanes.free_rows
    for seed in range(6):
        chance = Random(seed)
        honest, hostile = Plain(again, CONTEXT), Hostile(chance)
        stage.open("hostile", {"prefixes": "mia"})
        stage.open("honest", {"positions": CONTEXT})  # where the one before it left its numbers, too
        for _ in range(30):
            good, histories = honest.at_random(chance)
            calls = [("honest", (good,)), ("hostile", (hostile.next(),))]
            chance.shuffle(calls)
            told = dict(zip((name for name, _ in calls), stage.receive_together(calls), strict=True))
            assert not isinstance(told["honest"], NodewireError), told["honest"]
            assert_close(told["honest"][0].tensors[0][0], honest.expected(histories))
            if isinstance(told["hostile"], NodewireError):
                errors[type(told["hostile"]).__name__, told["hostile"].field] += 1
            else:
                assert told["hostile"][0].tensors[0].isfinite().all()
        for session in chance.sample(["honest", "hostile"], 2):
            stage.close(session)
    assert stage._lanes.free_rows + sum(len(kept.pages) for kept in stage._prefixes._kept.values()) == free
    assert {"tensors", "shape", "meta.pos", "meta.parents", "meta.keep"} <= {field for _, field in errors}
    if captures:
        assert stage._graphs.replays and not stage._graphs.off


def returns(ring: Ring, session: str, prompt):
    """A session that yields each frame before the driver takes it; the tokens that have come."""
    queue, driver, ids = deque([prompt_frame(prompt)]), ring.actors["driver"], []
    while queue:
        one = queue.popleft()
        target = ring.target[one.edge]
        if ring.actors.get(target) is driver:
            yield one
            outs = driver.receive(session, one)
        elif target in ring.actors:
            outs = ring.step(session, one)
        else:
            ids += one.tensors[0].tolist()
            continue
        queue += outs
    return ids


def wrong(chance: Random, of: Frame) -> tuple[Frame, type[Exception]]:
    """A return as no stage answers, and what it costs."""
    (x,) = of.tensors
    kind = chance.randrange(7)
    if kind == 0:
        bad = x.clone()
        bad[0, -1, chance.randrange(WIDTH)] = chance.choice((torch.nan, torch.inf, -torch.inf))
        return replace(of, tensors=(bad,)), BadFrame
    if kind == 1:
        return replace(of, tensors=(torch.full_like(x, 3e38),)), BadFrame
    if kind == 2:
        return replace(of, tensors=(torch.cat((x, x, x), 1),)), BadFrame
    if kind == 3:
        return replace(of, tensors=(x.double(),)), BadFrame
    if kind == 4:
        return replace(of, meta={**of.meta, "pos": of.meta["pos"] + chance.choice((-1, 1))}), BadFrame
    return replace(of, seq=of.seq + chance.choice((-1, 1, 7))), NotAllowed  # one late, or early, or never sent


@pytest.mark.parametrize("lookahead", [1, 2, 8, 32])
def test_returns_that_are_wrong_late_or_come_twice_change_no_token_of_any_session(registration, lookahead):
    ring, chance = Ring(registration), Random(lookahead)
    driver = ring.actors["driver"]
    expected = {session: ring.generate(TEXT + session, max_tokens=60)[0] for session in ("a", "b")}
    running, ids = {}, {}
    for session in expected:
        ring.open(session, max_tokens=60, lookahead=lookahead)
        running[session] = returns(ring, session, TEXT + session)
    awaited = {session: next(one) for session, one in running.items()}
    refused = 0
    while running:
        session = chance.choice(list(running))
        of = awaited[session]
        if of.edge == "return" and of.tensors[0].shape[1] and chance.random() < 0.5:
            bad, error = wrong(chance, of)
            with pytest.raises(error):
                driver.receive(session, bad)
            refused += 1
        try:
            awaited[session] = next(running[session])
        except StopIteration as over:
            ids[session] = over.value
            del running[session]
        with pytest.raises((NotAllowed, BadFrame)):  # it has been taken
            driver.receive(session, of)
    assert ids == expected and refused > 20
    for session in expected:
        ring.close(session)
    assert driver._room.taken == 0
