"""A generation whose providers die, one after the other: what is bought anew, what it costs, what is raised."""

from __future__ import annotations

import logging
from contextlib import aclosing
from types import SimpleNamespace

import pytest

from nodewire.customer.calls.generation import Generation
from nodewire.customer.job.retry_policy import MAX_AGAIN
from nodewire.errors import LinkLost, NoProvider, TimedOut
from nodewire.protocol.job.plan import Terms
from tests.customer.script import CHUNK, TOKENS, Scripted, last
from tests.protocol import documents

_, FIRST, SECOND = (keys.public for keys in documents.PROVIDERS)
BUDGET_MSAT = 1_000_000


class Job(Scripted):
    """It gives tokens and ends with an error, blamed on some, or with none."""

    inputs = ()
    is_underway = True

    def __init__(self, tokens, error=None, blamed=(), spent_msat=0):
        super().__init__()
        self.blamed, self.spent_msat = set(blamed), spent_msat
        self.put(*tokens, error)


class Nobody(Job):
    """A job that no provider is left for."""

    is_underway = False

    def __init__(self):
        super().__init__(())

    async def __aenter__(self):
        raise NoProvider("stage.0", "nobody is left")


@pytest.fixture
def generating(monkeypatch):
    """A generation whose jobs are these, and the terms and first tokens under which each was bought."""

    def make(*jobs):
        script, bought = list(jobs), []

        def purchase(self, terms, patience):
            bought.append((terms, len(self.ids)))
            return script.pop(0)

        monkeypatch.setattr(Generation, "_purchase", purchase)
        monkeypatch.setattr("nodewire.customer.calls.generation.most_positions", lambda *_: 8)
        session = SimpleNamespace(log=logging.getLogger("nodewire.customer"))
        terms = Terms(max_chunk_msat=10_000, max_total_msat=BUDGET_MSAT)
        params = {"max_tokens": 20}
        manifest = documents.manifest().model_copy(update={"chunk": CHUNK})
        made = Generation(session, None, "", manifest, None, "a", terms, params, lambda purchase: None)
        return made, bought

    return make


async def ids(generation):
    async with aclosing(generation.stream()) as pieces:
        return [one for _ in [None] async for piece in pieces for one in piece.ids]


def gone(whom):
    return LinkLost(whom, "gone: connection refused")


async def test_of_two_that_die_together_neither_is_in_the_job_that_goes_on_where_the_customer_is(generating):
    made, bought = generating(
        Job(TOKENS[:3], gone(FIRST), {FIRST, SECOND}, 7_000),
        Job(TOKENS[3:20], None, spent_msat=5_000),
    )
    assert await ids(made) == TOKENS[:20]
    assert [first for _, first in bought] == [0, 3]
    assert set(bought[1][0].excluded) == {FIRST, SECOND}
    assert bought[1][0].max_total_msat == BUDGET_MSAT - 7_000


async def test_where_nobody_else_is_left_each_is_taken_back_once_and_nothing_is_counted_twice(generating):
    made, bought = generating(
        Job(TOKENS[:3], gone(FIRST), {FIRST}, 7_000),
        Job(TOKENS[3:5], gone(SECOND), {SECOND}, 5_000),
        Nobody(),
        Job(TOKENS[5:20], None),
    )
    assert await ids(made) == TOKENS[:20]
    assert [(set(terms.excluded), first) for terms, first in bought] == [
        (set(), 0),
        ({FIRST}, 3),
        ({FIRST, SECOND}, 5),
        ({FIRST}, 5),  # who was missed last is the likeliest to be there
    ]
    left = [terms.max_total_msat for terms, _ in bought]
    assert left == [BUDGET_MSAT, BUDGET_MSAT - 7_000, BUDGET_MSAT - 12_000, BUDGET_MSAT - 12_000]


async def test_where_nobody_is_left_at_all_the_death_is_told_and_not_that_nobody_is_left(generating):
    last = gone(SECOND)
    made, bought = generating(
        Job(TOKENS[:3], gone(FIRST), {FIRST}, 7_000), Job((), last, {SECOND}), Nobody(), Nobody(), Nobody()
    )
    with pytest.raises(LinkLost) as caught:
        await ids(made)
    assert caught.value is last and isinstance(caught.value.__cause__, NoProvider)
    assert made.ids == TOKENS[:3]
    assert [set(terms.excluded) for terms, _ in bought[2:]] == [{FIRST, SECOND}, {FIRST}, set()]


async def test_where_all_others_are_busy_the_failure_before_is_told_and_not_that_they_are_busy(generating):
    full = [Job((), NoProvider("plan", "2 providers were busy")) for _ in range(2)]
    made, _ = generating(Job(TOKENS[:3], gone(FIRST), {FIRST}), *full)
    with pytest.raises(LinkLost) as caught:
        await ids(made)
    assert isinstance(caught.value.__cause__, NoProvider)


async def test_deaths_without_end_are_not_followed_without_end(generating):
    made, bought = generating(*(Job((), gone(f"{n:064x}"), {f"{n:064x}"}, 1_000) for n in range(2 + MAX_AGAIN)))
    with pytest.raises(LinkLost):
        await ids(made)
    assert len(bought) == 1 + MAX_AGAIN
    assert made.terms.max_total_msat == BUDGET_MSAT - 1_000 * MAX_AGAIN


async def test_a_job_that_brought_a_whole_chunk_is_begun_anew_however_often_it_failed_before(generating):
    """Of so many nodes some die in a long generation: it is given up where nothing comes any more."""
    at, jobs = 0, []
    for n in range(2 * MAX_AGAIN):
        jobs += [Job((), gone(f"{n:02x}{m:062x}"), {f"{n:02x}{m:062x}"}) for m in range(MAX_AGAIN - 1)]
        jobs.append(Job(TOKENS[at : at + CHUNK + 1], gone(f"{n:02x}{'f' * 62}"), {f"{n:02x}{'f' * 62}"}))
        at += CHUNK + 1
    made, bought = generating(*jobs, Job(TOKENS[at : at + 1]))
    made.params["max_tokens"] = at + 1
    assert await ids(made) == TOKENS[: at + 1]
    assert len(bought) == len(jobs) + 1


class Unsettled(Job):
    """It gives all of its text, and what follows that fails."""

    async def __aexit__(self, *exception):
        await super().__aexit__(*exception)
        raise TimedOut("event", "no relay answered")


async def test_a_text_that_is_whole_is_not_gone_on_with_whatever_fails_after_it(generating):
    made, bought = generating(Unsettled([*TOKENS[:4], last(TOKENS[4])]), Job(TOKENS[5:20]))
    with pytest.raises(TimedOut):
        await ids(made)
    assert made.ids == TOKENS[:5] and len(bought) == 1


@pytest.mark.parametrize("count", [1, CHUNK])
async def test_less_than_a_chunk_is_no_reason_to_go_on(generating, count):
    """Of so many tokens the first is chunk 0's, so chunk 1 lacks its last."""
    jobs = [Job(TOKENS[n * count : (n + 1) * count], gone(f"{n:064x}"), {f"{n:064x}"}) for n in range(2 + MAX_AGAIN)]
    made, bought = generating(*jobs)
    made.params["max_tokens"] = len(jobs) * count
    with pytest.raises(LinkLost):
        await ids(made)
    assert len(bought) == 1 + MAX_AGAIN
