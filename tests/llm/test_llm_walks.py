"""Random walks of several sessions over one stage, batched or not: each says what it says alone, computed anew."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from nodewire.errors import BadFrame, Busy
from nodewire.protocol.model.kv_pages import PAGE, pages_of
from tests.llm.llm_lanes import Plain, assert_close, frame, whole_stage

SLOTS, CONTEXT = 2, 160
NAMES = "abcde"


class Walk(RuleBasedStateMachine):
    stage = again = None

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.stage.close(name)
        self.plain: dict[str, Plain] = {}

    @rule(name=st.sampled_from(NAMES), positions=st.sampled_from((7, 64, 65, 100, CONTEXT)))
    def open(self, name, positions):
        if name in self.plain:
            return
        try:
            self.stage.open(name, {"positions": positions})
        except Busy:
            assert len(self.plain) >= SLOTS
            return
        self.plain[name] = Plain(self.again, positions)

    @precondition(lambda self: self.plain)
    @rule(chance=st.randoms(use_true_random=False))
    def close(self, chance):
        name = chance.choice(sorted(self.plain))
        self.stage.close(name)
        del self.plain[name]

    @precondition(lambda self: self.plain)
    @rule(chance=st.randoms(use_true_random=False), length=st.integers(20, CONTEXT))
    def prompt(self, chance, length):
        """Across pages and blocks."""
        name = chance.choice(sorted(self.plain))
        plain = self.plain[name]
        self.step({name: plain.chain([chance.randrange(50) for _ in range(min(length, plain.positions))], 0)})

    @precondition(lambda self: self.plain)
    @rule(chance=st.randoms(use_true_random=False), count=st.integers(1, len(NAMES)))
    def frames(self, chance, count):
        names = chance.sample(sorted(self.plain), min(count, len(self.plain)))
        self.step({name: self.plain[name].at_random(chance) for name in names})

    @precondition(lambda self: self.plain)
    @rule(chance=st.randoms(use_true_random=False))
    def wrong(self, chance):
        name = chance.choice(sorted(self.plain))
        plain = self.plain[name]
        with pytest.raises(BadFrame):
            self.stage.receive(name, frame([1], len(plain.run) + 1))
        with pytest.raises(BadFrame):
            self.stage.receive(name, frame([1], len(plain.run), epoch=plain.epoch, parents=[len(plain.live)]))

    def step(self, steps):
        made = self.stage.receive_together([(name, (of,)) for name, (of, _) in steps.items()])
        for answer, (name, (_, histories)) in zip(made, steps.items(), strict=True):
            assert not isinstance(answer, Exception), answer
            assert_close(answer[0].tensors[0][0], self.plain[name].expected(histories))

    @invariant()
    def nobody_has_anothers_pages(self):
        held = [page for state in self.stage._sessions.values() for page in state.lane.pages]
        assert len(held) == len(set(held)) == sum(pages_of(plain.positions) for plain in self.plain.values())
        assert PAGE * len(held) <= self.stage._lanes.keys[0].shape[1]


@pytest.mark.parametrize("name", ["llama, yarn", "gemma3", "gpt_oss"])
def test_whatever_comes_a_session_says_what_it_says_alone(made, name, tmp_path):
    class OfThisModel(Walk):
        stage = whole_stage(made(name), tmp_path / "stage", slots=SLOTS, context=CONTEXT)
        again = whole_stage(made(name), tmp_path / "again", slots=1, context=CONTEXT)

    run_state_machine_as_test(
        OfThisModel,
        settings=settings(
            max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
