"""The tokens in a driver's work, and what a verifier answers for where it chose another."""

from __future__ import annotations

import pytest

from nodewire.protocol.job.chunk import Leaf, Opening, leaf_of
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import choices
from tests.protocol.documents import HASH, manifest

HIDDEN = Array("float32", (1, 1, 8), bytes(32))


def token(seq: int, value: int, edge: str = "tokens") -> Frame[Array]:
    return Frame(edge, seq, (Array("int64", (1,), value.to_bytes(8, "little", signed=True)),))


def hidden(seq: int, value: int) -> Frame[Array]:
    return Frame("hidden.0", seq, (Array("float32", (1, 1, 8), bytes([value]) * 32),))


def leaves(*frames: Frame[Array]) -> tuple[Leaf, ...]:
    digest = manifest().digest()
    return tuple(leaf_of(digest, frame) for frame in frames)


def opened(author: str, *frames: Frame[Array]) -> Opening:
    return Opening(
        author=author * 64, request=HASH, task="driver", chunk=0, attempt=0, secret=bytes(32), leaves=leaves(*frames)
    )


def test_a_driver_tells_its_tokens_on_the_edge_to_the_customer_and_no_stage_does():
    assert choices.tokens_edge(manifest(), "driver") == "tokens"
    assert choices.tokens_edge(manifest(), "stage.0") is None
    without = manifest().model_copy(update={"edges": manifest().edges[:-1]})
    assert choices.tokens_edge(without, "driver") is None


def test_tokens_are_read_from_frames_and_from_leaves():
    frames = [token(0, 7), token(1, -1), token(2, 2**62), token(0, 9, "hidden.0")]
    expected = {0: 7, 1: -1, 2: 2**62}
    assert choices.of_frames(frames[:3]) == expected
    assert choices.of_leaves(leaves(*frames), "tokens") == expected


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (Array("int64", (1,), bytes(8)),) * 2,
        (Array("int64", (2,), bytes(16)),),
        (Array("float32", (2,), bytes(8)),),
    ],
)
def test_what_is_no_token_is_left_out(tensors):
    frame = Frame("tokens", 0, tensors)
    assert choices.of_frames([frame]) == {}
    assert choices.of_leaves(leaves(frame), "tokens") == {}


def test_a_leaf_whose_token_is_not_what_its_hash_says_has_none():
    (leaf,) = leaves(token(0, 7))
    (one,) = leaf.tensors
    lied = leaf.model_copy(update={"tensors": (one.model_copy(update={"sketch": bytes(8)}),)})
    assert choices.of_leaves([lied], "tokens") == {}


MINE = opened("a", hidden(0, 0), hidden(1, 1), hidden(2, 2), token(0, 5), token(1, 6), token(2, 7))
CHECKED = opened("b", hidden(0, 0), hidden(1, 1), hidden(2, 9), token(0, 5), token(1, 8), token(2, 3))


def test_after_an_excused_token_the_verifier_answers_for_nothing():
    spared = choices.spared(manifest(), "driver", CHECKED, MINE, {1})
    assert spared.author == CHECKED.author
    assert {(leaf.edge, leaf.seq): leaf for leaf in spared.leaves} == {
        (leaf.edge, leaf.seq): leaf for leaf in MINE.leaves
    }
    assert [(leaf.edge, leaf.seq) for leaf in spared.leaves] == [
        (edge, seq) for edge in ("hidden.0", "tokens") for seq in range(3)
    ]


@pytest.mark.parametrize("excused", [set(), {0}, {2}])
def test_a_token_that_nothing_excuses_is_the_verifiers_own(excused):
    assert choices.spared(manifest(), "driver", CHECKED, MINE, excused) is CHECKED


def test_a_verifier_that_said_the_same_answers_for_all():
    assert choices.spared(manifest(), "driver", MINE, MINE, {0, 1, 2}) is MINE
    assert choices.spared(manifest(), "stage.0", CHECKED, MINE, {1}) is CHECKED
