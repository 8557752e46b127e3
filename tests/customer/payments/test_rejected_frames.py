"""A frame that its consumer cannot compute: both ends are passed over in this purchase; a customer's fault is told."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.calls import stateless_call
from nodewire.customer.calls.embeddings import Embedding
from nodewire.customer.job import provider_events as answering
from nodewire.customer.job.provider_events import Answers
from nodewire.customer.job.retry_policy import MAX_AGAIN, SecondChances, blamed, may_begin, silent
from nodewire.customer.payments.rejected_frames import FrameRejection, rejection_of, reported
from nodewire.errors import (
    BadFrame,
    BadInput,
    LinkLost,
    NodeFailed,
    NodewireError,
    NoProvider,
    NotAllowed,
    OverBudget,
    PaymentRequired,
    TimedOut,
    TooLarge,
    Unsupported,
    WorkerFailed,
)
from nodewire.nostr.nips import nip44
from nodewire.protocol.job import feedback
from nodewire.protocol.job.feedback import Feedback
from nodewire.protocol.job.plan import LOCAL, Terms
from tests.customer.job.test_attempt import Pool, running  # noqa: F401  (a fixture)
from tests.protocol import documents

RING = documents.manifest()
REQUEST = "cd" * 32
DRIVER, FIRST, SECOND = (keys.public for keys in documents.PROVIDERS)
NOW = {"driver": DRIVER, "stage.0": FIRST, "stage.1": SECOND}


def says(who: int, code: str = "bad-frame", **more: str) -> Feedback:
    keys = documents.PROVIDERS[who]
    remarks = feedback.Remarks(text=code, **more)
    made = feedback.build(keys, REQUEST, documents.CUSTOMER.public, "error", created_at=1, remarks=remarks)
    return feedback.parse(made)


# What is meant


def test_who_refuses_a_neighbours_frame_and_who_sent_it_are_blamed_and_nobody_else():
    found = reported(says(2, edge="hidden.1"), RING, NOW)
    assert (found.whom, found.refuser, found.code) == ({FIRST, SECOND}, SECOND, "bad-frame")
    assert reported(says(0, edge="return"), RING, NOW).whom == {SECOND, DRIVER}
    assert reported(says(1), RING, {**NOW, "driver": "ee" * 32}).whom == {FIRST, "ee" * 32}  # as assigned now


def test_what_a_task_gets_from_the_customer_alone_is_the_customers_fault():
    assert reported(says(0, edge="prompt"), RING, NOW) is None
    assert reported(says(1), RING, {**NOW, "driver": LOCAL}) is None


def test_what_the_customer_cannot_use_itself_is_its_producers_fault_alone():
    found = rejection_of(BadFrame("tokens", "two"), "tokens", RING, NOW)
    assert (found.whom, found.refuser, str(found)) == ({DRIVER}, "", "tokens: two")
    assert rejection_of(BadFrame("return", "NaN"), "return", RING, {**NOW, "driver": LOCAL}).whom == {SECOND}
    assert rejection_of(BadFrame("tokens", "two"), "tokens", RING, {**NOW, "driver": LOCAL}) is None
    assert rejection_of(BadFrame("prompt", "int32"), "prompt", RING, NOW) is None


# Whose word it is


@pytest.fixture
def heard(monkeypatch):
    """Answers to a request under way, whose providers may be quoted for a moment."""
    monkeypatch.setattr(answering, "WORD_S", 0.05)
    background = JobTaskGroup()
    made = Answers(documents.CUSTOMER, REQUEST, documents.plan(), RING, None, background, network="bcrt", chunks=4)
    return made, background


async def ended(background: JobTaskGroup) -> NodewireError:
    async with asyncio.timeout(30):
        await background.ended.wait()
    await background.end()
    return background.fault


async def test_who_passes_a_refusal_on_is_not_blamed_whatever_comes_first(heard):
    made, background = heard
    made._feedback(says(0, by=SECOND))
    made._feedback(says(1, by=SECOND))
    assert not background.ended.is_set()
    made._feedback(says(2, edge="hidden.1"))
    assert (await ended(background)).whom == {FIRST, SECOND}
    assert made.blamed == set()


@pytest.mark.parametrize("code", ["bad-frame", "worker-failed"])
async def test_who_quotes_somebody_that_says_nothing_is_blamed_with_it(heard, code):
    made, background = heard
    made._feedback(says(0, code, by=FIRST))
    error = await ended(background)
    assert made.blamed | (error.whom if isinstance(error, FrameRejection) else set()) >= {DRIVER, FIRST}


async def test_who_ends_a_job_that_its_customer_has_given_up_is_not_blamed_for_it(heard):
    """Else the next plan would be without whoever obeys first, and there may be nobody in its place."""
    made, background = heard
    made.withdrawn = True
    made._feedback(says(0, "not-allowed"))
    made._feedback(says(1, "not-allowed", by=FIRST))
    await asyncio.sleep(0.1)
    assert made.blamed == set() and background.fault is None
    made._feedback(says(2, "bad-frame", edge="hidden.1"))
    assert (await ended(background)).whom == {FIRST, SECOND}


async def test_a_word_of_its_own_counts_at_once_and_so_does_a_code_that_is_the_customers(heard):
    made, background = heard
    made._feedback(says(0, "too-large"))
    assert isinstance(await ended(background), TooLarge)


def why(who: int, code: str, text: str) -> Feedback:
    keys = documents.PROVIDERS[who]
    return says(who, code, ciphertext=nip44.encrypt(text, nip44.conversation_key(keys, documents.CUSTOMER.public)))


@pytest.mark.parametrize("code", ["bad-input", "too-large", "unsupported"])
async def test_what_is_the_customers_own_is_told_by_the_field_that_the_provider_names_to_it_alone(heard, code):
    made, background = heard
    text = feedback.ErrorDetail(field="logit_bias", reason="a token beyond the vocabulary of 300").to_json()
    made._feedback(why(0, code, text))
    error = await ended(background)
    assert (error.code, error.field) == (code, "logit_bias") and "300" in error.reason and DRIVER[:8] in error.reason


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("bad-input", "rubbish"),
        ("bad-input", '{"v":1,"field":7}'),
        ("bad-input", '{"v":1,"field":"' + "x" * 65 + '"}'),
        ("bad-input", '{"v":1,"field":"x","more":1}'),
        ("bad-input", '{"v":1,"field":"","reason":"?"}'),
        ("worker-failed", '{"v":1,"field":"api_key"}'),
    ],
)
async def test_what_says_nothing_of_that_is_no_more_than_the_code(heard, code, text):
    made, background = heard
    made._feedback(why(0, code, text))
    error = await ended(background)
    assert (error.code, error.field) == (code, "provider")


async def test_a_word_that_another_key_would_open_is_no_word(heard):
    made, background = heard
    text = feedback.ErrorDetail(field="seed").to_json()
    other = nip44.encrypt(text, nip44.conversation_key(documents.PROVIDERS[1], documents.CUSTOMER.public))
    made._feedback(says(0, "bad-input", ciphertext=other))
    assert (await ended(background)).field == "provider"


async def test_quoting_a_stranger_is_a_word_of_ones_own(heard):
    made, background = heard
    made._feedback(says(2, edge="hidden.1", by="ee" * 32))
    assert background.fault.whom == {FIRST, SECOND}
    await background.end()


async def told(one, error: NodewireError, by: str, *words: Feedback) -> NodewireError:
    """What `next` raises when a neighbour has cancelled the job, and providers have said this."""
    error.by = by
    one._mailbox.fail(error)
    waiting = asyncio.create_task(one.next(10.0))
    await asyncio.sleep(0)
    for said in words:
        one.answers._feedback(replace(said, request=one.request.id))
    with pytest.raises(NodewireError) as caught:
        await waiting
    return caught.value


async def test_a_neighbours_cancel_means_what_is_signed(running):  # noqa: F811
    found = await told(running(Pool()), BadFrame("hidden.1", "NaN"), DRIVER, says(2, edge="hidden.1"))
    assert found.whom == {FIRST, SECOND}


async def test_of_the_customers_own_fault_the_neighbours_reason_is_kept(running):  # noqa: F811
    error = BadFrame("prompt", "of rank 2")
    assert await told(running(Pool()), error, DRIVER, says(0, edge="prompt")) is error


async def test_other_codes_are_raised_as_they_come(running, monkeypatch):  # noqa: F811
    monkeypatch.setattr("nodewire.customer.job.attempt.WORD_S", 0.05)
    error = TooLarge("prompt", "300 tokens, the context is 256")
    assert await told(running(Pool()), error, DRIVER) is error


async def test_of_a_fault_that_a_neighbour_passes_on_it_is_known_whose_word_it_is(running):  # noqa: F811
    error = TooLarge("prompt", "300 tokens, the context is 256")
    assert await told(running(Pool()), error, DRIVER, says(2, "too-large")) is error
    assert error.by == SECOND


async def test_a_neighbour_that_cancels_and_nobody_signs_for_it_is_blamed_with_those_before_it(running, monkeypatch):  # noqa: F811
    monkeypatch.setattr("nodewire.customer.job.attempt.WORD_S", 0.05)
    assert (await told(running(Pool()), BadFrame("x", "y"), DRIVER)).whom == {DRIVER, SECOND}


async def test_frames_that_break_the_wires_rules_are_their_producers_fault(running):  # noqa: F811
    one = running(Pool())
    one._mailbox.refuse(DRIVER, "hidden.1", BadFrame("seq", "7, 0 is next"))
    with pytest.raises(FrameRejection, match="seq: 7") as caught:
        await one.next(10.0)
    assert caught.value.whom == {DRIVER}


async def test_what_runs_beside_leaves_what_a_neighbour_said_to_who_asks_for_it(running):  # noqa: F811
    one = running(Pool())

    async def fails(error, by=""):
        error.by = by
        raise error

    await one._unless_told(fails(BadFrame("x", "y"), DRIVER))
    with pytest.raises(FrameRejection) as caught:  # a task that runs here
        await one._unless_told(fails(BadFrame("return", "NaN")))
    assert caught.value.whom == {SECOND}
    with pytest.raises(BadFrame, match="prompt"):
        await one._unless_told(fails(BadFrame("prompt", "int32")))


# What is bought anew


def test_another_driver_is_tried_for_what_one_does_not_support_and_none_where_it_runs_here():
    told_, own = (Unsupported("json_schema", "no llguidance") for _ in range(2))
    told_.by = DRIVER
    assert may_begin(told_, Bought([]), failures=0, came=False) and blamed(told_, Bought([])) == {DRIVER}
    assert not may_begin(own, Bought([]), failures=0, came=False)
    assert not may_begin(told_, Bought([]), failures=MAX_AGAIN, came=False)


def test_others_are_tried_for_frames_that_cannot_be_computed_and_not_for_the_customers_own():
    made = Bought([])
    rejected = FrameRejection("x", "y", frozenset({FIRST}), SECOND)
    assert may_begin(rejected, made, failures=0, came=True)
    assert not may_begin(rejected, made, failures=MAX_AGAIN, came=False)
    assert not may_begin(BadFrame("x", "y"), made, failures=0, came=False)
    assert not may_begin(TooLarge("x", "y"), made, failures=0, came=False)
    assert blamed(rejected, made) == {FIRST, SECOND}
    assert blamed(WorkerFailed("x", "y"), made) == set()


@pytest.mark.parametrize("kind", [TooLarge, BadInput, BadFrame, OverBudget, NotAllowed, NodewireError])
def test_others_are_tried_for_what_one_provider_says_whatever_it_is(kind):
    made, error = Bought([]), word(kind, SECOND)
    assert may_begin(error, made, failures=0, came=True)
    assert not may_begin(error, made, failures=MAX_AGAIN, came=False)
    assert blamed(error, made) == {SECOND}


@pytest.mark.parametrize("may_be", [True, False])
async def test_a_budget_that_is_not_used_up_is_not_used_up_because_a_provider_says_so(heard, may_be):
    made, background = heard
    made._claims = SimpleNamespace(may_be_used_up=lambda: may_be)
    made._feedback(says(1, "over-budget"))
    error = await ended(background)
    assert isinstance(error, OverBudget)
    assert error.by == ("" if may_be else FIRST)


def word(kind, by: str) -> NodewireError:
    error = kind("x", "y")
    error.by = by
    return error


def terms(*excluded: str) -> Terms:
    return Terms(max_chunk_msat=10_000, max_total_msat=100_000, excluded=excluded)


def test_where_nobody_is_left_who_refused_comes_back_and_then_the_others_in_its_place_each_once():
    chances = SecondChances()
    chances.rejected(FrameRejection("x", "y", frozenset({FIRST}), SECOND))
    first = chances.next(terms(DRIVER, FIRST, SECOND))
    assert set(first.excluded) == {DRIVER, FIRST}
    second = chances.next(first)
    assert set(second.excluded) == {DRIVER, SECOND}
    assert chances.next(second) is None
    chances.rejected(FrameRejection("x", "y", frozenset({FIRST}), SECOND))
    assert chances.next(second) is None


def test_of_a_plan_that_is_late_and_answers_all_are_passed_over_and_come_back_one_by_one():
    made = Bought([])
    made.plan = SimpleNamespace(providers=lambda: (DRIVER, FIRST))
    late = TimedOut("output", "none came")
    assert silent(late, made, set()) == (DRIVER, FIRST)
    assert not silent(late, made, {FIRST}) and not silent(LinkLost("x", "y"), made, set())
    chances = SecondChances()
    chances.late((DRIVER, FIRST))
    first = chances.next(terms(DRIVER, FIRST, SECOND))
    assert set(first.excluded) == {FIRST, SECOND}
    assert set(chances.next(first).excluded) == {SECOND}
    assert chances.next(first) is None


def test_of_those_who_were_missed_the_newest_come_back_first_each_once():
    chances = SecondChances()
    chances.lost(LinkLost("x", "gone"), {FIRST})
    chances.lost(TimedOut("output", "none came"), {SECOND})
    chances.lost(LinkLost("y", "gone: connection refused"), {DRIVER})
    first = chances.next(terms(DRIVER, FIRST, SECOND))
    assert set(first.excluded) == {FIRST, SECOND}
    second = chances.next(first)
    assert set(second.excluded) == {SECOND}
    chances.lost(LinkLost("x", "gone again"), {FIRST})
    assert chances.next(second) is None


def test_who_sent_the_customer_itself_what_is_no_output_does_not_come_back():
    chances = SecondChances()
    chances.rejected(FrameRejection("x", "y", frozenset({FIRST})))
    chances.rejected(LinkLost("x", "y"))
    assert chances.next(terms(FIRST)) is None


class Bought:
    """A purchase that ends as it is told to; of those that were made, the terms are kept."""

    blamed: set[str] = set()  # noqa: RUF012
    spent_msat = 0

    def __init__(self, script: list[NodewireError | None], made: list[Terms] | None = None, under: Terms | None = None):
        self.error = script.pop(0) if script else None
        self.is_underway = not isinstance(self.error, NoProvider)
        self.request = SimpleNamespace(id=REQUEST)
        if made is not None:
            made.append(under)

    async def __aenter__(self):
        if not self.is_underway:
            raise self.error
        return self

    async def __aexit__(self, *_):
        return

    async def paid(self):
        return

    async def outputs(self):
        if self.error is not None:
            raise self.error
        yield


@pytest.fixture
def buying(monkeypatch):
    """A function that buys an embedding of one text, with purchases that end so, one after the other."""
    monkeypatch.setattr(Embedding, "finish", lambda self: None)

    def buy(*script: NodewireError | None):
        made, left = [], list(script)
        monkeypatch.setattr(stateless_call, "Purchase", lambda *a, **_: Bought(left, made, a[2]))
        session = SimpleNamespace(log=logging.getLogger("nodewire.customer"))
        manifest = RING.model_copy(update={"mode": "embed"})
        one = Embedding(session, None, "", manifest, terms(), lambda purchase: None, None, ["a text"])
        return one, made

    return buy


def lied(a: str, b: str) -> FrameRejection:
    return FrameRejection("x", f"{b} cannot compute what came from {a}", frozenset({a}), b)


async def test_what_is_bought_anew_is_without_both(buying):
    one, made = buying(lied(FIRST, SECOND), None)
    await one.buy()
    assert [set(under.excluded) for under in made] == [set(), {FIRST, SECOND}]


async def test_liars_without_end_are_not_tried_without_end(buying):
    errors = [lied(f"{n:064x}", f"{n + 1:064x}") for n in range(2, 40, 2)]
    one, made = buying(*errors)
    with pytest.raises(FrameRejection):
        await one.buy()
    assert len(made) == 1 + MAX_AGAIN


async def test_who_blames_the_customer_alone_is_passed_over_and_two_are_believed(buying):
    one, made = buying(word(BadInput, SECOND), None)
    await one.buy()
    assert [set(under.excluded) for under in made] == [set(), {SECOND}]
    first, second = word(BadInput, SECOND), word(BadInput, FIRST)
    one, made = buying(first, second, None)
    with pytest.raises(BadInput) as caught:
        await one.buy()
    assert (caught.value, len(made)) == (second, 2)
    one, made = buying(first, NoProvider("task", "nobody is left"))
    with pytest.raises(BadInput) as caught:
        await one.buy()
    assert (caught.value, len(made)) == (first, 2)


async def test_liars_with_different_stories_are_not_heard_without_end(buying):
    stories = (BadInput, TooLarge, NotAllowed, BadFrame, OverBudget)
    one, made = buying(*(word(kind, f"{n:064x}") for n, kind in enumerate(stories, start=1)))
    with pytest.raises(BadFrame):
        await one.buy()
    assert len(made) == 1 + MAX_AGAIN


async def test_if_those_are_the_only_ones_each_has_its_second_chance_and_then_the_first_error_is_told(buying):
    nobody = NoProvider("task", "nobody is left")
    one, made = buying(lied(FIRST, SECOND), nobody, nobody, nobody)
    with pytest.raises(FrameRejection, match="cannot compute") as caught:
        await one.buy()
    assert caught.value.__cause__ is nobody
    assert [set(under.excluded) for under in made] == [set(), {FIRST, SECOND}, {FIRST}, {SECOND}]


async def test_an_honest_neighbour_that_has_no_other_beside_it_does_the_work_after_all(buying):
    one, made = buying(lied(FIRST, SECOND), NoProvider("task", "nobody is left"), None)
    await one.buy()
    assert [set(under.excluded) for under in made] == [set(), {FIRST, SECOND}, {FIRST}]


async def test_nodes_that_failed_of_themselves_are_no_liars_however_many_say_so(buying):
    one, made = buying(word(NodeFailed, FIRST), word(NodeFailed, SECOND), None)
    await one.buy()
    assert len(made) == 3


async def test_a_node_that_failed_of_itself_is_excluded_though_its_neighbour_passes_it_on_first(running, monkeypatch):  # noqa: F811
    """The wire is faster than relays: the customer waits for the node's own word, and blames nobody in between."""
    one = running(Pool())
    monkeypatch.setattr("nodewire.customer.job.attempt.WORD_S", 5.0)
    keys = documents.PROVIDERS[2]
    said = feedback.build(
        keys,
        one.request.id,
        documents.CUSTOMER.public,
        "error",
        created_at=1,
        remarks=feedback.Remarks(text="node-failed", ciphertext=""),
    )
    asking = asyncio.create_task(one.find_absent(word(NodeFailed, DRIVER)))
    await asyncio.sleep(0)
    one.answers._take(said)
    async with one.answers._said:
        one.answers._said.notify_all()
    assert await asking == {SECOND}


async def test_a_node_whose_failure_nobody_signs_for_is_the_one_that_told_it(running, monkeypatch):  # noqa: F811
    one = running(Pool())
    monkeypatch.setattr("nodewire.customer.job.attempt.WORD_S", 0.0)
    assert await one.find_absent(word(NodeFailed, DRIVER)) == {DRIVER}


async def test_a_fault_of_the_customers_own_machine_is_told_and_nobody_is_excluded(buying):
    one, made = buying(NodeFailed("database", "database or disk is full"), None)
    with pytest.raises(NodeFailed, match="disk is full"):
        await one.buy()
    assert len(made) == 1


async def test_a_refusal_by_a_node_that_cannot_serve_says_so_and_one_for_room_does_not(heard):
    made, background = heard
    keys = documents.PROVIDERS[1]
    for text, is_out in (("node-failed", True), ("busy", False)):
        said = feedback.build(
            keys, REQUEST, documents.CUSTOMER.public, "busy", created_at=1, remarks=feedback.Remarks(text=text)
        )
        background.fault = None
        made._feedback(feedback.parse(said))
        assert (background.fault.is_out, background.fault.provider) == (is_out, FIRST)


async def test_who_refuses_for_one_debt_after_the_other_is_asked_again_once():
    """It may keep claims of an earlier job back, and have one paid before each refusal."""
    provider = "ab" * 32

    class Settler:
        async def still_owed(self, whom):
            return set()

    chances, error = SecondChances(), PaymentRequired("provider", "an earlier chunk")
    purchase, session = SimpleNamespace(blamed={provider}), SimpleNamespace(settler=Settler())
    assert await chances.left_out(error, purchase, session) == set()
    assert await chances.left_out(error, purchase, session) == {provider}
