"""A step that another made: its pieces made again are the same bits, for every rule; one wrong number is found."""

import pytest
import torch

from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame
from nodewire.training.engine import state
from nodewire.training.engine.actors.outer_step import OuterActor
from nodewire.training.engine.actors.pieces import pieces
from nodewire.training.engine.update import compression, outer_step, step_proof
from nodewire.training.engine.update.step_proof import PIECE
from nodewire.training.protocol.recipe import Compression, Outer, Recipe

torch.set_num_threads(1)

SHAPES = {"wide": (3, PIECE), "middle": (5, 7), "last": (PIECE // 2,)}
RULES = [
    Outer(),
    Outer(method="nesterov", lr="0.7", momentum="0.9", shards=9),
    Outer(lr="0.7", aggregate="clip", bound="1.2"),
    Outer(method="nesterov", lr="0.7", momentum="0.9", aggregate="median"),
    Outer(method="nesterov", lr="0.7", momentum="0.9", aggregate="trimmed", tolerated=1),
    Outer(method="fedadam", lr="0.01", aggregate="krum", tolerated=1),
]


def made(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in SHAPES.items()}


def stepped_once(rule):
    """Before and after, where momenta are not zero before."""
    results = [(10 + i, made(100 + i, 0.01 * (i + 1))) for i in range(5)]
    before = outer_step.step(rule, made(0), outer_step.start(rule, made(0)), results)
    results = [(7 + i, made(200 + i, 0.02 * (i + 1))) for i in range(5)]
    return before, results, outer_step.step(rule, *before, results)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.method} {rule.aggregate}")
def test_each_piece_made_again_is_the_steps(rule):
    before, results, after = stepped_once(rule)
    assert step_proof.count(before[0]) == 4  # the third tensor ends in a piece that the second begins
    assert step_proof.wrong(rule, before, results, after, range(4)) is None


@pytest.mark.parametrize(
    ("rule", "of"),
    [(rule, of) for rule in RULES for of in (0, 1) if not of or outer_step.prefixes(rule)],
    ids=lambda one: f"{one.method} {one.aggregate}" if isinstance(one, Outer) else ("theta", "momenta")[one],
)
def test_one_number_that_is_off_by_a_bit_is_found_in_its_piece_and_changes_the_root(rule, of):
    before, results, after = stepped_once(rule)
    root = step_proof.root(rule, *after)
    name = next(name for name in after[of] if name.endswith("middle"))
    after[of][name].view(torch.int32)[4, 6] ^= 1
    assert step_proof.wrong(rule, before, results, after, range(4)) == 3
    assert step_proof.wrong(rule, before, results, after, range(3)) is None
    assert step_proof.root(rule, *after) != root


def test_draws_follow_seed_and_commitment_and_are_as_many_as_asked_for():
    some = step_proof.drawn(b"\1" * 32, b"\2" * 32, 1_000, 0.1)
    assert len(some) == len(set(some)) == 100 and list(some) == sorted(some) and some[-1] < 1_000
    assert some == step_proof.drawn(b"\1" * 32, b"\2" * 32, 1_000, 0.1)
    assert some != step_proof.drawn(b"\3" * 32, b"\2" * 32, 1_000, 0.1)
    assert some != step_proof.drawn(b"\1" * 32, b"\3" * 32, 1_000, 0.1)
    assert len(step_proof.drawn(b"\1" * 32, b"\2" * 32, 1_000, 0.0)) == step_proof.LEAST_DRAWN
    assert step_proof.drawn(b"\1" * 32, b"\2" * 32, 3, 0.0) == (0, 1, 2)


RECIPE = Recipe.from_toml(
    """
    name = "tiny"
    loss = "cross_entropy"
    steps = 2
    batch = 4
    rounds = 2
    family = {name = "linear", inputs = 6, classes = 3}
    data = {layout = "arrays"}
    inner = {optimizer = "sgd", lr = 0.1}
    """
)


def put(actor, edge, data, **meta):
    for frame in pieces(edge, data):
        actor.receive("s", Frame(edge, frame.seq, frame.tensors, {**frame.meta, **meta}))


def got(actor, what):
    frames = actor.receive("s", Frame("after", 0, (), {"what": what}))
    return b"".join(frame.tensors[0].numpy().tobytes() for frame in frames)


@pytest.mark.parametrize("method", ["average", "nesterov", "fedadam"])
def test_the_engine_makes_the_step_and_says_what_it_commits_to(method):
    recipe = RECIPE.model_copy(
        update={"outer": Outer(method=method, momentum="0.5"), "compression": Compression(method="int8")}
    )
    generator = torch.Generator().manual_seed(3)
    theta = {name: torch.randn(shape, generator=generator) for name, shape in recipe.shapes().items()}
    momenta = outer_step.start(recipe.outer, theta)
    actor = OuterActor(Limits(10**9))
    for turn in range(2):
        deltas = [{n: torch.randn(t.shape, generator=generator) for n, t in theta.items()} for _ in range(2)]
        packed = [compression.pack(delta, recipe.compression, None)[0] for delta in deltas]
        actor.open("s", {"recipe": recipe.pack(), "round": turn})
        put(actor, "theta", state.pack(theta))
        if turn and momenta:  # zeros need not be said
            put(actor, "momenta", state.pack(momenta))
        for index, one in enumerate(packed):
            put(actor, "update", one, at=index, weight=10 + index)
        (said,) = actor.receive("s", Frame("step", 0, ()))
        results = [(10 + i, compression.unpack(p, recipe.shapes(), recipe.compression)) for i, p in enumerate(packed)]
        theta, momenta = outer_step.step(recipe.outer, theta, momenta, results)
        assert said.meta["root"] == step_proof.root(recipe.outer, theta, momenta).hex()
        assert got(actor, "theta") == state.pack(theta)
        if momenta:
            assert got(actor, "momenta") == state.pack(momenta)
        actor.close("s")
