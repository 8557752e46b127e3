"""The training kinds' worker entry: what it makes of a shard is what the bare loop makes of it."""

from __future__ import annotations

import pytest
import torch

from kinds import training_worker
from nodewire.errors import BadFrame, BadTask, Busy, NotFound, TooLarge
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.actors import pieces
from nodewire.training.engine.actors import trainer as trainer_actor
from nodewire.training.engine.update import compression
from nodewire.training.protocol import recipe as recipes
from nodewire.training.protocol.recipe import Audit
from tests.kinds.digits import RECIPE, dataset

torch.set_num_threads(1)
LIMITS = Limits(10**9)


def sent(actor, edge: str, data: bytes, session: str = "s", **meta):
    answers = []
    for frame in pieces.pieces(edge, data):
        answers = actor.receive(session, Frame(edge, frame.seq, frame.tensors, {**frame.meta, **meta}))
    return answers


def joined(frames) -> bytes:
    return b"".join(frame.tensors[0].numpy().tobytes() for frame in frames)


@pytest.fixture
def coordinator(tmp_path):
    (tmp_path / "digits.safetensors").write_bytes(state.pack(dataset()))
    actor = training_worker.load("coordinator", RECIPE.pack(), [tmp_path], LIMITS)
    actor.open("job", {"shards": 2})
    return actor


def trained(trainer, theta: bytes, shard: bytes, round_: int, index: int):
    """A whole session: what `trained` said, segment by segment, and the packed update."""
    params = {"recipe": RECIPE.pack(), "round": round_, "index": index, "steps": RECIPE.steps}
    trainer.open("s", params)
    sent(trainer, "theta", theta)
    sent(trainer, "shard", shard)
    said, update = [], []
    while not said or not said[-1]["end"]:
        frame, *update = trainer.receive("s", Frame("train", len(said)))
        said.append(frame.meta)
    trainer.close("s")
    return said, joined(update)


def test_coordinator_and_trainers_make_what_the_bare_loop_makes(coordinator):
    trainer = training_worker.load("trainer", b"", [], LIMITS)
    losses = []
    for round_ in range(RECIPE.rounds):
        theta = joined(coordinator.receive("job", Frame("theta", round_)))
        for index in (1, 0):
            shard = joined(coordinator.receive("job", Frame("shard", 0, (), {"index": index})))
            said, update = trained(trainer, theta, shard, round_, index)
            assert [one["step"] for one in said] == [10, 20]
            assert said[-1]["samples"] == RECIPE.steps * RECIPE.batch
            (received,) = sent(coordinator, "result", update, "job", index=index, steps=RECIPE.steps, round=round_)
            assert received.meta["fine"], received.meta
        judged = coordinator.receive("job", Frame("judge", 0, (), {"round": round_}))
        assert [(one.meta["index"], one.meta["accepted"]) for one in judged] == [(0, True), (1, True)], judged
        (stepped,) = coordinator.receive("job", Frame("step", round_))
        losses.append(stepped.meta["loss"])
    expected, curve = bare_loop.run(RECIPE, dataset(), 2)
    assert joined(coordinator.receive("job", Frame("theta", 9))) == state.pack(expected)
    assert losses == [round(point.held_out * 1_000_000) for point in curve]


def test_a_coordinator_goes_on_from_where_another_stood(coordinator, tmp_path):
    theta = joined(coordinator.receive("job", Frame("theta", 0)))
    altered = {name: tensor + 1 for name, tensor in bare_loop.run(RECIPE, dataset(), 2, rounds=1)[0].items()}
    sent(coordinator, "restore", state.pack(altered), "job", what="theta", round=1)
    assert joined(coordinator.receive("job", Frame("theta", 0))) == state.pack(altered) != theta


def revealed(trainer, segment: int) -> tuple[bytes, list[int]]:
    """The snapshot, and the steps at which it was asked for again."""
    steps = []
    while True:
        frames = trainer.receive("s", Frame("reveal", 0, (), {"segment": segment, "ms": 0}))
        if frames[0].edge == "snapshot":
            return joined(frames), steps
        steps.append(frames[0].meta["step"])


def test_a_provider_shows_what_it_went_through_or_computes_it_again(coordinator, monkeypatch):
    theta = joined(coordinator.receive("job", Frame("theta", 0)))
    shard = joined(coordinator.receive("job", Frame("shard", 0, (), {"index": 0})))
    monkeypatch.setattr(recipes, "KEPT_BYTES", 1)
    shown, asked = [], []
    for spare in (10**9, 0):
        trainer = training_worker.load("trainer", b"", [], Limits(2 * RECIPE.round_bytes(0) + spare))
        trainer.open("s", {"recipe": RECIPE.pack(), "round": 0, "index": 0, "steps": RECIPE.steps})
        sent(trainer, "theta", theta)
        sent(trainer, "shard", shard)
        for seq in range(2):
            trainer.receive("s", Frame("train", seq))
        both = [revealed(trainer, segment) for segment in (1, 0)]
        shown.append([snapshot for snapshot, _ in both])
        asked.append([steps for _, steps in both])
    assert shown[0] == shown[1]
    assert shown[0][0] != shown[0][1]
    assert asked == [[[], []], [[10], []]]  # what is computed again takes a turn for every segment


def test_what_is_shown_waits_for_room_beside_a_round(coordinator):
    trainer = training_worker.load("trainer", b"", [], Limits(RECIPE.round_bytes(0) + 2**20))
    params = {"recipe": RECIPE.pack(), "round": 0, "index": 0, "steps": RECIPE.steps}
    theta = joined(coordinator.receive("job", Frame("theta", 0)))
    shard = joined(coordinator.receive("job", Frame("shard", 0, (), {"index": 0})))
    trainer.open("trains", params)
    with pytest.raises(Busy):
        trainer.open("s", params)
    sent(trainer, "theta", theta, "trains")
    sent(trainer, "shard", shard, "trains")
    for seq in range(2):
        trainer.receive("trains", Frame("train", seq))
    trainer.open("s", params)


def test_a_session_that_is_done_makes_room(coordinator):
    trainer = training_worker.load("trainer", b"", [], LIMITS)
    params = {"recipe": RECIPE.pack(), "round": 0, "index": 0, "steps": 1}
    for n in range(trainer_actor.MAX_SESSIONS):
        trainer.open(str(n), params)
    with pytest.raises(Busy):
        trainer.open("more", params)
    sent(trainer, "theta", joined(coordinator.receive("job", Frame("theta", 0))), "2")
    sent(trainer, "shard", joined(coordinator.receive("job", Frame("shard", 0, (), {"index": 0}))), "2")
    trainer.receive("2", Frame("train", 0))
    trainer.open("more", params)
    with pytest.raises(NotFound):
        trainer.receive("2", Frame("reveal", 0, (), {"segment": 0}))


def test_a_session_that_only_shows_makes_room_too(coordinator):
    trainer = training_worker.load("trainer", b"", [], LIMITS)
    params = {"recipe": RECIPE.pack(), "round": 0, "index": 0, "steps": 1}
    for n in range(trainer_actor.MAX_SESSIONS):
        trainer.open(str(n), params)
    sent(trainer, "theta", joined(coordinator.receive("job", Frame("theta", 0))), "1")
    sent(trainer, "shard", joined(coordinator.receive("job", Frame("shard", 0, (), {"index": 0}))), "1")
    assert trainer.receive("1", Frame("reveal", 0, (), {"segment": 0}))
    trainer.open("more", params)
    with pytest.raises(NotFound):
        trainer.receive("1", Frame("reveal", 0, (), {"segment": 0}))


def test_who_has_trained_makes_room_before_the_memory_is_too_little(coordinator):
    most = 2 * RECIPE.round_bytes(0) + RECIPE.round_bytes(0) // 2
    trainer = training_worker.load("trainer", b"", [], Limits(most))
    theta = joined(coordinator.receive("job", Frame("theta", 0)))
    shard = joined(coordinator.receive("job", Frame("shard", 0, (), {"index": 0})))
    for session in ("0", "1", "2"):
        trainer.open(session, {"recipe": RECIPE.pack(), "round": 0, "index": 0, "steps": 1})
        sent(trainer, "theta", theta, session)
        sent(trainer, "shard", shard, session)
        trainer.receive(session, Frame("train", 0))
    with pytest.raises(NotFound):
        trainer.receive("0", Frame("reveal", 0, (), {"segment": 0}))
    assert trainer.receive("1", Frame("reveal", 0, (), {"segment": 0}))


def test_a_round_without_work_is_rejected_and_the_other_accepted(coordinator):
    trainer = training_worker.load("trainer", b"", [], LIMITS)
    theta = joined(coordinator.receive("job", Frame("theta", 0)))
    _, update = trained(trainer, theta, joined(coordinator.receive("job", Frame("shard", 0, (), {"index": 0}))), 0, 0)
    zeros = {name: torch.zeros(shape) for name, shape in RECIPE.shapes().items()}
    sent(coordinator, "result", update, "job", index=0, steps=RECIPE.steps, round=0)
    nothing = compression.pack(zeros, RECIPE.compression)[0]
    sent(coordinator, "result", nothing, "job", index=1, steps=RECIPE.steps, round=0)
    # What was accepted before, and is rejected beside others now, stays: it counts.
    judged = coordinator.receive("job", Frame("judge", 0, (), {"round": 0, "waiting": "0"}))
    assert [one.meta["accepted"] for one in judged] == [True, False], judged
    judged = coordinator.receive("job", Frame("judge", 0, (), {"round": 0}))
    assert [one.meta["accepted"] for one in judged] == [True, False], judged
    assert len(coordinator.receive("job", Frame("judge", 0, (), {"round": 0}))) == 1


def test_a_copy_is_computed_again_where_nothing_is_audited_and_else_more_of_it_is_drawn(tmp_path):
    (tmp_path / "digits.safetensors").write_bytes(state.pack(dataset()))
    for fraction, accepted in (("0.0", False), ("0.25", True)):
        recipe = RECIPE.model_copy(update={"audit": Audit(fraction=fraction)})
        actor = training_worker.load("coordinator", recipe.pack(), [tmp_path], LIMITS)
        actor.open("job", {"shards": 2})
        trainer = training_worker.load("trainer", b"", [], LIMITS)
        theta = joined(actor.receive("job", Frame("theta", 0)))
        shard = joined(actor.receive("job", Frame("shard", 0, (), {"index": 0})))
        _, update = trained(trainer, theta, shard, 0, 0)
        for index in (0, 1):
            sent(actor, "result", update, "job", index=index, steps=RECIPE.steps, round=0)
        judged = actor.receive("job", Frame("judge", 0, (), {"round": 0}))
        assert [one.meta["accepted"] for one in judged] == [True, accepted], judged
        assert [one.meta["doubted"] for one in judged] == [accepted, accepted]


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b"", lambda d: b"\xff" * len(d)])
def test_a_malformed_result_is_said_and_not_raised(coordinator, change):
    zeros = state.pack({name: torch.zeros(shape) for name, shape in RECIPE.shapes().items()})
    (received,) = sent(coordinator, "result", change(zeros), "job", index=0, steps=20, round=0)
    assert not received.meta["fine"]
    assert received.meta["reason"]


def test_what_comes_out_of_turn_is_a_typed_error(coordinator):
    trainer = training_worker.load("trainer", b"", [], LIMITS)
    with pytest.raises(NotFound):
        trainer.receive("none", Frame("train", 0))
    trainer.open("s", {"recipe": RECIPE.pack(), "round": 0, "index": 0, "steps": 20})
    for edge in ("train", "update", "theta", "nonsense"):
        with pytest.raises(BadFrame):
            trainer.receive("s", Frame(edge, 0))
    with pytest.raises(TooLarge):
        sent(trainer, "theta", b"\xff" * 4 * 10**6)
    with pytest.raises(BadTask):
        training_worker.load("graph", b"", [], LIMITS)
