"""How far one case has come, and what its oracle needs next to say what it is. See `verdict_rules`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.oracle.court.ballots import join, vote
from nodewire.oracle.court.case import (
    FRAMES,
    LAST_EPOCHS,
    OPEN_EPOCHS,
    VERIFIED_EPOCHS,
    Action,
    Case,
    PullFrames,
    PullOpening,
    Recompute,
    SayVote,
    State,
    Step,
    UnfoundedComplaint,
)
from nodewire.protocol.verification.arithmetic import excess_ppm, is_suspect, worse_outcome
from nodewire.protocol.verification.choices import spared
from nodewire.protocol.verification.comparison import Outcome, compare
from nodewire.protocol.verification.forgery import forged
from nodewire.protocol.verification.sample import Sample

if TYPE_CHECKING:
    from nodewire.protocol.job.chunk import Opening


def judge(case: Case, state: State) -> Step:
    """Ask for what is lacking; vote when enough is there, or when time is over."""
    sample = case.sample
    if case.copied and case.theirs is None:
        return vote(case, "fail", (), (sample.provider,), state)
    if case.witness and case.theirs is not None:
        return join(case, state) or (state, ())  # it has been opened, and that is all, if others saw it, too
    if state.epoch > case.epoch + OPEN_EPOCHS:
        return _doubt(case, state)
    unverified = case.witness or not sample.verifiers or state.read >= case.epoch + VERIFIED_EPOCHS
    if case.verifier is None and not unverified and state.epoch <= case.epoch + VERIFIED_EPOCHS + 1:
        return state, ()
    if case.theirs is None:
        pull = PullOpening(sample, case.epoch, sample.provider, case.key)
        state, actions = _ask(case, sample.provider, pull, state)
        for other in case.others:
            pull = PullOpening(other, case.epoch, other.provider, case.key)
            state, more = _ask(state.cases[case.key], other.key, pull, state)
            actions += more
        return _with_pull(case.key, state, actions)
    return _with_pull(case.key, *_compared(case, state))


def _with_pull(key: str, state: State, actions: tuple[Action, ...]) -> Step:
    """Beside all else, ask for the opening of the verifier that decides."""
    case = state.cases[key]
    if case.verifier is None or case.checked is not None or case.said:
        return state, actions
    verifier = case.verifier[0]
    state, more = _ask(case, verifier, PullOpening(case.sample, case.epoch, verifier, case.key), state)
    return state, (*actions, *more)


def _without_check(case: Case, verifier: str, state: State) -> Step | None:
    """While the opening of the `verifier` that decides is lacking; None: the oracle goes on without it."""
    is_silent = verifier in case.asked and verifier not in case.waiting
    has_reserve = len(case.deciding) > 1
    if is_silent and has_reserve and state.epoch >= case.epoch + LAST_EPOCHS:  # it takes nobody's place
        return state.with_case(replace(case, silent=case.silent | {verifier})), ()
    if state.epoch < case.epoch + OPEN_EPOCHS:
        return state, ()
    return join(case, state)  # it has shown it to others


def _is_confirmed(case: Case, checked: Opening, theirs: Opening) -> bool:
    """Whether the verifier's opening lets the provider's pass, with no work of the oracle's own."""
    is_clear = not (case.inspected and is_suspect(checked.leaves, theirs.leaves))
    return not case.audited and is_clear and _outcome(case, checked, theirs) == "pass"


def _compared(case: Case, state: State) -> Step:
    """With the provider's opening at hand."""
    theirs, sample = case.theirs, case.sample
    assert theirs is not None
    if FRAMES in case.asked and case.frames is None:  # nothing is compared anew meanwhile
        return _ask_frames(case, state)
    if case.verifier is not None:
        if case.checked is None:
            if (step := _without_check(case, case.verifier[0], state)) is not None:
                return step
        elif not case.disputed:
            if _is_confirmed(case, case.checked, theirs):
                return _found("pass", case, case.checked, state)
            case = replace(case, disputed=True)
            state = state.with_case(case)
    if case.grey or (case.mine is None and not state.can_recompute):
        return state, ()
    if case.equivocation is not None:
        one = case.equivocation
        return vote(case, "unsure", (), (one.culprit,), state, equivocated=(one.edge, one.chunk))
    if case.mine is None:
        again = "" in case.asked and "" not in case.waiting and state.epoch >= case.epoch + LAST_EPOCHS
        if again and (joined := join(case, state)) is not None:
            return joined
        return _ask(case, "", Recompute(sample, case.epoch, again), state)
    if case.verifier is not None and case.checked is None:
        return state, ()  # who has seen the verifier's opening votes before who has not (`_doubt`)
    return _decided(case, state)


def _decided(case: Case, state: State) -> Step:
    """With the provider's opening and one's own result."""
    assert case.theirs is not None
    assert case.mine is not None
    return _found(_beside_mine(case, case.theirs), case, case.mine, state)


def _found(found: Outcome, case: Case, beside: Opening, state: State) -> Step:
    """Vote by what the provider's work is beside another's, once the provider's sketches are known to be true."""
    assert case.theirs is not None
    if _lacks_frames(found, case, beside):
        return _ask_frames(case, state)
    if case.frames is not None and forged(case.theirs.leaves, case.frames):
        found = "fail"
    if found == "grey":
        return state.with_case(replace(case, grey=True)), ()  # another oracle's result may say more (`_doubt`)
    verifiers, lied = _verified(case)
    return vote(case, found, verifiers, ((case.sample.provider,) if found == "fail" else ()) + lied, state)


def _ask_frames(case: Case, state: State) -> Step:
    assert case.theirs is not None
    return _ask(case, FRAMES, PullFrames(case.sample, case.epoch, case.theirs), state)


def _lacks_frames(found: Outcome, case: Case, beside: Opening) -> bool:
    """Whether nothing but sketches that the provider made speaks for it. They need not be looked into against it."""
    assert case.theirs is not None
    return found != "fail" and case.frames is None and case.theirs.leaves != beside.leaves


def _verified(case: Case) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...]]:
    """The verifier that decides, with whether it did its part; and again, if it lied.

    It lied if its work is apart from one's own, or it has the provider's very bytes with a sketch that is not theirs.
    """
    if case.verifier is None:
        return (), ()
    verifier = case.verifier[0]
    if case.checked is None:
        return ((verifier, False),), ()
    has_lied = case.frames is not None and bool(forged(case.checked.leaves, case.frames))
    if case.mine is not None and not has_lied:
        assert case.manifest is not None
        answered = spared(case.manifest, case.sample.task, case.checked, case.mine, case.excused)
        has_lied = _beside_mine(case, answered) == "fail"
    return ((verifier, not has_lied),), (verifier,) if has_lied else ()


def _outcome(case: Case, mine: Opening, theirs: Opening) -> Outcome:
    assert case.manifest is not None
    return compare(case.manifest, case.sample.task, mine, theirs).outcome


def _beside_mine(case: Case, theirs: Opening) -> Outcome:
    """What another's work is beside one's own, and how much further from the float32 reference it is."""
    assert case.mine is not None
    found = _outcome(case, case.mine, theirs)
    ppm = excess_ppm(case.reference, case.mine.leaves, theirs.leaves)
    return found if ppm is None else worse_outcome(found, ppm)


def _ask(case: Case, what: str, action: Action, state: State) -> Step:
    """The action, unless it is under way or was tried less than half an epoch ago."""
    last_ms = case.asked.get(what)
    if what in case.waiting or (last_ms is not None and state.now_ms < last_ms + state.committee.epoch_ms // 2):
        return state, ()
    case = replace(case, waiting=case.waiting | {what}, asked={**case.asked, what: state.now_ms})
    return state.with_case(case), (action,)


def _doubt(case: Case, state: State) -> Step:
    """Past the deadline: join f+1 others, say that the work is in doubt, or, later, that evidence is lacking."""
    if (joined := join(case, state)) is not None:
        return joined
    if case.grey and case.equivocation is None:
        return vote(case, "unsure", _verified(case)[0], (), state)
    if state.epoch <= case.epoch + OPEN_EPOCHS + 1:
        return state, ()
    if case.mine is not None and case.theirs is not None:
        decided = _decided(case, state)
        if any(isinstance(action, SayVote) for action in decided[1]):
            return decided
    has_hidden = case.withheld or (FRAMES in case.asked and case.frames is None)
    return vote(case, "withheld" if case.theirs is None or has_hidden else "unsure", (), (), state)


def unfounded(what: UnfoundedComplaint, state: State) -> Step:
    """Nothing is left to find out: vote that what was claimed is withheld."""
    complaint = what.complaint
    if complaint.key in state.cases:
        return state, ()
    due = complaint.due
    claimed = Sample(
        provider=complaint.provider,
        request=complaint.request,
        task=what.task,
        chunk=due.chunk,
        attempt=due.attempt,
        root=due.root,
        verifiers=(),
    )
    return vote(Case(claimed, what.epoch, None, complaint=complaint), "withheld", (), (), state)
