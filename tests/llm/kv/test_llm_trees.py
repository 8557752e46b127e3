"""Branches beyond the committed run say what a plain chain says, in every family; what makes no tree is refused."""

import pytest
import torch

from bench.tasks.tiny_decoders import FAMILIES
from nodewire.errors import BadFrame, BadInput, Busy, NotFound, TooLarge
from nodewire.llm.kv.speculative_tree import MAX_LIVE_CELLS
from nodewire.llm.local.reference import LocalDecoder
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_lanes import Plain, assert_close, cells, frame, whole_stage


def answer(stage, session, of):
    (made,) = stage.receive(session, of)
    return made


@pytest.mark.parametrize("name", FAMILIES)
def test_every_branch_is_as_if_it_had_been_computed_alone(made, name, tmp_path):
    """Beyond a sliding window and within it, in several frames, before and after some of it is kept."""
    stage = whole_stage(made(name), tmp_path / "stage", slots=2, context=192)
    again = whole_stage(made(name), tmp_path / "again", slots=1, context=192)
    head = LocalDecoder(made(name)).vocabulary
    plain = Plain(again, 192)
    stage.open("s", {})

    def check(step):
        of, histories = step
        said = answer(stage, "s", of).tensors[0][0]
        expected = plain.expected(histories)
        assert_close(said, expected)
        for row, other in zip(said, expected, strict=True):
            with torch.inference_mode():
                logits = head.logits(other[None, None])
                first, second = logits.topk(2).values
                assert head.logits(row[None, None]).argmax() == logits.argmax() or first - second < 1e-5

    check(plain.chain([(5 * i * i + i) % 50 for i in range(15)]))
    check(plain.branches([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 2, 1]))
    check(plain.branches([7, 8, 9], [4, 6, 3]))
    check(plain.branches([10, 11], [1, 3], keep=plain.keep(2)))
    check(plain.branches(list(range(20)), [3, *range(4, 23)], keep=plain.keep(0)))
    check(plain.branches([3], [23]))  # further from the run's end than a window
    check(plain.branches([4], [24]))
    check(plain.branches([5, 6], [25, -1]))
    plain.epoch += 1
    check(plain.branches([12, 13], [-1, 0], keep=plain.keep(26)))
    check(plain.chain([14]))
    check(plain.chain([15, 16], 20))


def test_a_chain_as_a_tree_is_that_chain_bit_by_bit(made, tmp_path):
    stage = whole_stage(made("qwen3"), tmp_path, slots=2, context=192)
    for session in "ab":
        stage.open(session, {})
        answer(stage, session, frame(list(range(30)), 0))
    chain = answer(stage, "a", frame([1, 2, 3], 30)).tensors[0]
    assert torch.equal(answer(stage, "b", frame([1, 2, 3], 30, parents=[-1, 0, 1])).tensors[0], chain)
    for n in range(3):
        answer(stage, "b", frame([], 31 + n, keep=[0]))
    assert torch.equal(answer(stage, "a", frame([4], 33)).tensors[0], answer(stage, "b", frame([4], 33)).tensors[0])


@pytest.fixture
def stage(plain, tmp_path):
    return whole_stage(plain, tmp_path, slots=2, context=128)


def test_what_the_stages_behind_must_know_is_passed_on(stage):
    stage.open("s", {})
    answer(stage, "s", frame([1, 2], 0))
    made = answer(stage, "s", frame([3, 4], 2, epoch=5, parents=[-1, 0]))
    assert made.meta == {"pos": 2, "chunk": 0, "tokens": 2, "epoch": 5, "parents": cells([-1, 0])}
    made = answer(stage, "s", frame([5], 3, epoch=5, parents=[0], keep=[0]))
    assert made.meta == {"pos": 3, "chunk": 0, "tokens": 1, "epoch": 5, "parents": cells([0]), "keep": cells([0])}
    assert "epoch" not in answer(stage, "s", frame([6], 1)).meta


def test_a_frame_of_no_rows_is_answered_by_one_and_nothing_changes(stage):
    stage.open("s", {})
    answer(stage, "s", frame([1, 2, 3], 0))
    tree = frame([4, 5], 3, parents=[-1, -1])
    expected = answer(stage, "s", tree).tensors[0]
    dead = answer(stage, "s", frame([], 40, seq=9, epoch=7))  # beyond what came: it builds on dead ones
    assert (dead.seq, dead.tensors[0].shape) == (9, (1, 0, 64))
    assert dead.meta == {"pos": 40, "chunk": 0, "tokens": 0, "epoch": 7}
    kept = answer(stage, "s", frame([6], 4, parents=[-1], keep=[1])).tensors[0]
    stage.open("t", {})
    answer(stage, "t", frame([1, 2, 3], 0))
    assert torch.equal(answer(stage, "t", tree).tensors[0], expected)
    assert torch.equal(answer(stage, "t", frame([6], 4, parents=[-1], keep=[1])).tensors[0], kept)


def test_the_last_stage_returns_one_row_of_the_prompt_and_all_of_later_frames(stage):
    assert stage.program.closes
    stage.open("s", {})
    made = answer(stage, "s", frame(list(range(40)), 0, seq=0))
    assert (made.tensors[0].shape[1], made.meta["pos"], made.meta["tokens"]) == (1, 39, 1)
    made = answer(stage, "s", frame([1, 2, 3], 40, seq=1))
    assert (made.tensors[0].shape[1], made.meta["pos"], made.meta["tokens"]) == (3, 40, 3)


def hostile(**meta):
    rows = meta.pop("rows", [7, 8])
    pos = meta.pop("pos", 3)
    return frame(rows, pos, seq=meta.pop("seq", 2), **meta)


HOSTILE = {
    "a parent after its row": (hostile(parents=[3, -1]), BadFrame),
    "its own parent": (hostile(parents=[2, -1]), BadFrame),
    "a parent below all": (hostile(parents=[-1, -2]), BadFrame),
    "fewer parents than rows": (hostile(parents=[-1]), BadFrame),
    "more parents than rows": (hostile(parents=[-1, -1, -1]), BadFrame),
    "half a parent": (hostile(parents=b"\xff\xff\xff"), BadFrame),
    "parents in text": (hostile(parents="\0\0\0\0"), BadFrame),
    "a number for parents": (hostile(parents=7), BadFrame),
    "branches of the prompt": (hostile(parents=[-1, -1], seq=0), BadFrame),
    "more live cells than a lane's": (hostile(parents=[-1] * (MAX_LIVE_CELLS + 1)), TooLarge),
    "more live cells in all": (hostile(rows=[0] * 126, parents=[-1] * 126), TooLarge),
    "kept what does not live": (hostile(pos=4, keep=[2]), BadFrame),
    "kept what is none": (hostile(pos=4, keep=[-1]), BadFrame),
    "kept no path": (hostile(pos=5, keep=[0, 0]), BadFrame),
    "kept from the middle": (hostile(pos=4, keep=[1]), BadFrame),
    "kept backwards": (hostile(pos=5, keep=[1, 0]), BadFrame),
    "kept more than may live": (hostile(pos=4, keep=[0] * (MAX_LIVE_CELLS + 1)), TooLarge),
    "kept, and the length of before": (hostile(pos=3, keep=[0]), BadFrame),
    "kept, and a length beyond": (hostile(pos=5, keep=[0]), BadFrame),
    "kept, and rewound": (hostile(pos=0, keep=[0]), BadFrame),
    "kept by an empty frame what does not live": (hostile(rows=[], pos=4, keep=[2]), BadFrame),
    "kept, and beyond the context": (hostile(rows=[0] * 125, pos=4, keep=[0]), TooLarge),
    "a negative epoch": (hostile(epoch=-1), BadFrame),
    "an epoch that is none": (hostile(epoch="1"), BadFrame),
    "a new epoch, and an old cell": (hostile(epoch=1, parents=[0, 1], rows=[1, 2]), BadFrame),
    "a gap": (hostile(pos=4), BadFrame),
    "branches after a gap": (hostile(pos=4, parents=[-1, 0]), BadFrame),
}


@pytest.mark.parametrize(("bad", "error"), HOSTILE.values(), ids=HOSTILE)
def test_a_frame_that_makes_no_tree_costs_a_typed_error_and_nothing_else(stage, bad, error):
    for session in ("sound", "attacked"):
        stage.open(session, {})
        answer(stage, session, frame([1, 2, 3], 0))
        answer(stage, session, frame([4, 5], 3, parents=[-1, 0]))
    with pytest.raises(error):
        stage.receive("attacked", bad)
    follows = frame([6, 7], 4, keep=[0], parents=[0, -1])
    expected = answer(stage, "sound", follows).tensors[0]
    assert torch.equal(answer(stage, "attacked", follows).tensors[0], expected)


@pytest.mark.parametrize("positions", [0, -1, 129, 2**70, "64", 64.0, True, None])
def test_positions_that_the_program_has_not_are_refused(stage, positions):
    with pytest.raises(BadInput) as caught:
        stage.open("s", {"positions": positions})
    assert caught.value.field == "positions"


def test_short_sessions_fit_beyond_the_slots_and_have_no_more_than_they_asked_for(stage):
    for number in range(4):
        stage.open(str(number), {"positions": 64 - number})
    with pytest.raises(Busy):
        stage.open("one more", {"positions": 1})
    with pytest.raises(TooLarge):
        stage.receive("1", frame([1] * 64, 0))
    answer(stage, "0", frame([1] * 64, 0))
    with pytest.raises(TooLarge):
        stage.receive("0", frame([1], 64))
    stage.close("1")
    with pytest.raises(Busy):
        stage.open("long", {})
    stage.close("0")
    stage.open("long", {})
    answer(stage, "long", frame([2] * 128, 0))


class Spoilt:
    """Stands where a layer does: marked rows become no numbers."""

    slides = False
    MARK = 1e6

    def forward(self, x, *_):
        return x.masked_fill((x == self.MARK).any(-1, keepdim=True), float("nan"))


def test_what_is_wrong_with_one_session_of_a_batch_costs_the_others_nothing(stage):
    stage._layers.layers[0] = Spoilt()
    spoilt = Frame("hidden.0", 1, (torch.full((1, 2, 64), Spoilt.MARK),), {"pos": 3, "chunk": 0})
    calls = {
        "chain": frame([1, 2], 3),
        "gap": frame([1, 2], 9),
        "spoilt": spoilt,
        "tree": frame([4, 5], 3, parents=[-1, -1]),
        "ghost": frame([1], 0),
    }
    for session in calls:
        if session != "ghost":
            stage.open(session, {"positions": 64})
            answer(stage, session, frame([1, 2, 3], 0))
    chain, gap, broken, tree, ghost = stage.receive_together([(name, (of,)) for name, of in calls.items()])
    assert [type(error) for error in (gap, broken, ghost)] == [BadFrame, BadFrame, NotFound]
    for session, made, alone in (("gap", chain, calls["chain"]), ("spoilt", tree, calls["tree"])):
        assert_close(made[0].tensors[0], answer(stage, session, alone).tensors[0])
