"""Providers who want money for nothing, or a customer's memory, time or receipts."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from nodewire.customer.calls import stateless_call
from nodewire.customer.calls.embeddings import _matrix
from nodewire.customer.calls.tensor_call import Evaluation
from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.job import Purchase
from nodewire.customer.payments.job_payments import JobPayments
from nodewire.customer.payments.rejected_frames import noticed
from nodewire.customer.planning.planner import draw
from nodewire.errors import BadFrame, BadInput, BadTag, NoProvider
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.plan.epoch import Epoch
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.job.feedback import Due, Feedback
from nodewire.protocol.job.plan import Assignment, Plan, Terms, Verification
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.model.signature import Signature
from nodewire.protocol.tensors.frame import Array, Frame
from tests.customer import call_models as dag
from tests.customer.token_frames import reader
from tests.plan import markets

PROVIDER, ME, REQUEST, ROOT = Keys(b"\x05" * 32), Keys(b"\x06" * 32), "cd" * 32, "ab" * 32
EDGE = SimpleNamespace(name="tokens", source="driver", target=CUSTOMER)


def token(seq: int, **meta: object) -> Frame[Array]:
    return Frame("tokens", seq, (Array("int64", (1,), np.int64(7).tobytes()),), meta)  # type: ignore[arg-type]


def plan() -> Plan:
    return Plan(
        manifest=ROOT,
        committee=ROOT,
        epoch=1,
        snapshot=ROOT,
        certificate=ROOT,
        beacon=ROOT,
        customer=ME.public,
        k=0,
        terms=Terms(max_chunk_msat=10**6, max_total_msat=10**9),
        tasks=(Assignment(task="driver", provider=PROVIDER.public, price_msat=100),),
        chunk_msat=100,
        first_result_ms=1000,
        next_result_ms=1000,
        verification=Verification(policy="none", rate_ppm=0, share_ppm=0),
    )


def payments(mode: str = "generate") -> JobPayments:
    manifest = SimpleNamespace(mode=mode, chunk=64, context=4096, driver=SimpleNamespace(name="driver"))
    return JobPayments(
        REQUEST,
        plan(),
        manifest,  # type: ignore[arg-type]
        {},
        None,  # type: ignore[arg-type]  # no payment gets that far
        (),
        "bcrt",
        most_units=2,
        requested_s=0,
        private_endpoints=False,
    )


def asks(chunk: int, units: int = 1, id_: str = "ee" * 32) -> Feedback:
    due = Due(chunk, 0, units, 100 * units, ROOT)
    return Feedback(id_, PROVIDER.public, REQUEST, ME.public, "payment-required", due=due)


def purchase(frames: list[Frame[Array]], mode: str = "generate") -> Purchase:
    bought = object.__new__(Purchase)
    waiting = iter(frames)

    async def following(deadline_s: float) -> Frame[Array]:
        return next(waiting)

    bought.manifest = SimpleNamespace(mode=mode, chunk=64, edges=[EDGE])  # type: ignore[assignment]
    bought.timing = JobTimes()
    running = SimpleNamespace(
        plan=plan(),
        payments=payments(mode),
        next=following,
        delivered=lambda chunk: None,
        noticed=lambda error, edge: noticed(error, edge, bought.manifest, {EDGE.source: PROVIDER.public}),
    )
    bought._running = running  # type: ignore[assignment]
    bought._last_chunk, bought._done, bought._accept = -1, False, lambda frame: None
    return bought


@pytest.mark.parametrize("chunk", [1, 10**12, -1, None, "0", True])
async def test_a_driver_cannot_call_its_first_token_a_later_chunk_and_have_them_all_paid(chunk):
    bought = purchase([token(0, chunk=chunk)])
    with pytest.raises(BadFrame):
        [frame async for frame in bought.outputs()]
    assert bought.payments._delivered == -1


async def test_tokens_are_counted_into_chunks_here():
    bought = purchase([token(n, chunk=0 if n == 0 else 1 + (n - 1) // 64, end=n == 70) for n in range(71)])
    assert len([frame async for frame in bought.outputs()]) == 71
    assert bought.payments._delivered == 2


def test_a_payment_for_a_chunk_in_the_far_future_is_refused_not_waited_for():
    job = payments()
    assert job.expects(asks(0)) and job.expects(asks(1))
    with pytest.raises(BadInput):
        job.expects(asks(2))


def test_the_first_claim_for_a_chunk_counts_and_ten_thousand_others_start_nothing():
    job = payments()
    assert job.expects(asks(0))
    assert not any(job.expects(asks(0, id_=f"{n:064x}")) for n in range(10_000))


@pytest.mark.parametrize(("cached", "amount_msat"), [(1, 200), (2, 150), (1, 151), (1, 149), (2, 0), (0, 150)])
async def test_what_was_found_costs_what_the_ad_says_and_nothing_else(cached, amount_msat):
    job = payments()
    job._ads = {PROVIDER.public: Ad.model_construct(cached_ppm=500_000)}
    due = Due(0, 0, 2, amount_msat, ROOT, cached)
    with pytest.raises(BadInput, match="amount"):
        await job.asked(Feedback("ee" * 32, PROVIDER.public, REQUEST, ME.public, "payment-required", due=due))
    job._check(PROVIDER.public, Due(0, 0, 2, 150, ROOT, 1))
    job._check(PROVIDER.public, Due(0, 0, 2, 100, ROOT, 2))


@pytest.mark.parametrize("units", [0, 3, 10**14])
async def test_more_units_than_the_prompt_can_have_are_not_paid(units):
    with pytest.raises(BadInput):
        await payments().asked(asks(0, units))


async def test_what_has_come_is_counted_by_what_may_be_paid():
    one, calls = payments(), payments("run")
    assert one.count_owed() == calls.count_owed() == 0
    await calls.delivered(1)
    assert calls.count_owed() == 2
    await one.closed(0, 1)
    await one.delivered(1)
    assert one.count_owed() == 1  # the second is not closed
    await one.closed(1, 1)
    assert one.count_owed() == 2


@pytest.mark.parametrize(
    ("mode", "came", "chunks"), [("run", -1, 3), ("run", 4, 8), ("generate", -1, 4), ("generate", 4, 9)]
)
async def test_a_budget_for_more_than_can_be_computed_yet_is_not_used_up(mode, came, chunks):
    job = payments(mode)
    for chunk in range(came + 1):
        await job.closed(chunk, 1 + (chunk == 0))
        await job.delivered(chunk)
    for budget, may_be in ((chunks, False), (chunks - 1, True)):
        terms = plan().terms.model_copy(update={"max_total_msat": 100 * budget})
        job._plan = plan().model_copy(update={"terms": terms})
        assert job.may_be_used_up() is may_be


async def test_a_call_is_one_unit_in_its_first_chunk_too():
    job = payments("embed")
    job._most_units = 1
    with pytest.raises(BadInput):
        await job.asked(asks(0, 2))


async def test_units_that_the_driver_did_not_sign_are_not_paid():
    job = payments()
    await job.delivered(0)
    await job.closed(0, 1)
    with pytest.raises(BadInput, match="driver"):
        await asyncio.wait_for(job.asked(asks(0, 2)), 10)


def test_a_root_with_a_line_break_does_not_get_into_a_receipt():
    for tag in (["chunk", "0", "0", "1", ROOT + "\n"], ["chunk", "0\n", "0", "1", ROOT]):
        tags = [["e", REQUEST], ["p", ME.public], ["status", "payment-required", ""], ["amount", "100"], tag]
        with pytest.raises(BadTag):
            feedback.parse(events.sign(PROVIDER, kinds.FEEDBACK, created_at=1, tags=tags))


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (Array("int64", (2,), bytes(16)),),
        (Array("uint8", (3,), bytes(3)),),
        (Array("int64", (0,), b""),),
        (Array("int64", (1,), bytes(8)), Array("int64", (1,), bytes(8))),
    ],
)
def test_a_token_that_is_none_is_an_error_with_a_name(tensors):
    with pytest.raises(BadFrame):
        reader().piece(Frame("tokens", 0, tensors, {"pos": 1, "end": False}))


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (Array("float32", (0, 2**39), b""),),
        (Array("float32", (4, 0), b""),),
        (Array("float32", (4,), bytes(16)),),
        (Array("float32", (1, 2), b"\0\0\xc0\x7f" + bytes(4)),),  # NaN
        (Array("float32", (1, 2), bytes(4) + b"\0\0\x80\xff"),),  # -inf
    ],
)
def test_vectors_that_are_none_are_an_error_with_a_name(tensors):
    with pytest.raises(BadFrame):
        _matrix(Frame("vectors", 0, tensors))


async def test_work_for_centuries_is_not_mined(monkeypatch):
    from nodewire.customer.planning import planner

    ad = Ad.model_construct(name="x", pow_bits=64)
    snapshot = SimpleNamespace(ads=lambda who: dict.fromkeys(who, ad), nodes=())
    seen = []

    def assign(manifest, snapshot, *, terms, **_):
        seen.append(terms.excluded)
        if terms.excluded:
            raise NoProvider("driver", "nobody is left")
        return plan()

    class Market:
        committee = None

        async def epoch(self, **_: object) -> Epoch:
            return SimpleNamespace(body=SimpleNamespace(epoch=9, snapshot=ROOT), beacon=ROOT)  # type: ignore[return-value]

        async def snapshot(self, _: str) -> object:
            return snapshot

    monkeypatch.setattr(planner, "assign", assign)
    with pytest.raises(NoProvider):
        await draw(Market(), markets.ring(1), plan().terms, ME.public, timeout_s=1, patience=0)  # type: ignore[arg-type]
    assert seen == [(), (PROVIDER.public,)]


async def test_who_puts_out_what_is_none_is_done_without(monkeypatch):
    """One liar must not keep a call from being made by others, again and again."""
    shape = {"x": ("float32", (2, 4)), "y": ("float32", (2, 4))}
    data = dag.program(
        [("in", "x", *shape["x"])], [["y", "aten.neg.default", [dag.ref("x")]]], [("out", "y", *shape["y"])], {}
    )
    manifest = dag.manifest({"only": data}, {"in": (CUSTOMER, "only"), "out": ("only", CUSTOMER)})
    lies = {
        "wrong shape": Frame("out", 0, (Array("float32", (1, 8), bytes(32)),), {"chunk": 0, "end": True}),
        "wrong dtype": Frame("out", 0, (Array("int32", (2, 4), bytes(32)),), {"chunk": 0, "end": True}),
        "no end": Frame("out", 0, (Array("float32", (2, 4), bytes(32)),), {"chunk": 0}),
        "the truth": Frame("out", 0, (Array("float32", (2, 4), bytes(32)),), {"chunk": 0, "end": True}),
    }
    asked: list[tuple[str, ...]] = []

    class Made:
        """A purchase from the first seller that its terms do not leave out."""

        blamed: frozenset[str] = frozenset()
        wronged: frozenset[str] = frozenset()
        is_underway, spent_msat = True, 0
        request = SimpleNamespace(id=REQUEST)

        def __init__(self, session, kind, address, manifest, terms, params, frames, accept, *, patience, wish) -> None:
            asked.append(terms.excluded)
            self.seller, self.accept = next(one for one in lies if one not in terms.excluded), accept

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_: object) -> None:
            return

        async def paid(self) -> None:
            return

        async def outputs(self):
            try:
                self.accept(lies[self.seller])
            except BadFrame as error:
                raise noticed(error, "out", manifest, {"only": self.seller}) from error
            yield

    monkeypatch.setattr(stateless_call, "Purchase", Made)
    session = SimpleNamespace(log=logging.getLogger("test"))
    terms = Terms(max_chunk_msat=10**6, max_total_msat=10**9)
    call = {"x": Array("float32", (2, 4), bytes(32))}
    made = Evaluation(
        session, None, "m", manifest, terms, lambda _: None, None, Signature.from_manifest(manifest), [call]
    )  # type: ignore[arg-type]
    await made.buy()
    assert made.outputs[0].keys() == {"y"}
    assert [set(one) for one in asked] == [set(list(lies)[:k]) for k in range(4)]
    del lies["the truth"]
    lies["another"] = lies["no end"]
    made.terms = terms
    with pytest.raises(BadFrame):
        await made.buy()
