"""What a provider that has done its work says afterwards: results and receipts, any number of them."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.calls.transcript import _roots
from nodewire.customer.job.provider_events import Answers
from nodewire.customer.payments.job_payments import most_chunks
from nodewire.customer.payments.receipts import MAX_ZAP_RECEIPTS, ZapReceipts
from nodewire.nostr.nips import nip44, nip57
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.lightning import invoices
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import result
from nodewire.protocol.job.chunk import claim
from tests.customer.paid_job import REQUEST
from tests.protocol import documents
from tests.protocol.committee.actors import digest

CUSTOMER = documents.CUSTOMER
FIRST, SECOND, THIRD = documents.PROVIDERS
PLAN = documents.plan()
MANIFEST = SimpleNamespace(mode="generate", chunk=64, context=4096)


def root(task, chunk=0, said="", attempt=0, request=REQUEST):
    name = digest(f"{task}/{chunk}/{said}")
    return ChunkRoot(request=request, task=task, chunk=chunk, attempt=attempt, root=name)


def told(by, *roots, request=REQUEST):
    said = result.ResultDetails(frames=1, compute_us=(1, 1)).to_json()
    sealed = nip44.encrypt(said, nip44.conversation_key(by, CUSTOMER.public))
    return result.build(by, request, CUSTOMER.public, roots, sealed, created_at=1)


@pytest.fixture
def answers():
    return Answers(CUSTOMER, REQUEST, PLAN, MANIFEST, None, JobTaskGroup(), network="bcrt", chunks=65)


def test_a_provider_says_roots_of_its_own_tasks_once_and_of_chunks_that_a_job_can_have(answers):
    """One of others' tasks, or a second one, would make the customer's own transcript false; any number of them would
    fill its memory."""
    honest = root("stage.0")
    answers._take(told(SECOND, honest))
    answers._take(told(SECOND, root("stage.0", said="else")))
    answers._take(told(SECOND, root("driver"), root("stage.1"), root("nothing")))
    answers._take(told(SECOND, root("stage.0", 1, attempt=1)))
    answers._take(told(SECOND, root("stage.0", 1, request="cd" * 32), request="cd" * 32))
    for some in range(10):
        answers._take(told(SECOND, *(root("stage.0", 65 + 100 * some + n) for n in range(100))))
    assert list(answers.roots) == [(SECOND.public, honest)]
    answers._take(told(SECOND, root("stage.0", 64)))
    answers._take(told(FIRST, root("driver")))
    assert len(answers.roots) == 3


def test_roots_that_are_not_those_a_provider_was_paid_for_are_in_no_transcript():
    """A reader of the transcript would find the customer's receipt false: its claim is over other roots."""
    fair, false, unpaid = root("driver"), root("stage.0", said="else"), root("stage.1")
    paid = [
        SimpleNamespace(provider=FIRST.public, due=SimpleNamespace(chunk=0, root=claim([fair]))),
        SimpleNamespace(provider=SECOND.public, due=SimpleNamespace(chunk=0, root=claim([root("stage.0")]))),
    ]
    said = [(FIRST.public, fair), (SECOND.public, false), (THIRD.public, unpaid)]
    assert {one.task for one in _roots(PLAN, said, paid)} == {"driver", "stage.1"}


def zap(chunk=0):
    """A paid zap of the second provider's, and its receipt."""
    key = Key(REQUEST, SECOND.public, chunk, 0)
    request = zaps.build_request(CUSTOMER, key, 1_000, relays=("ws://r",), lnurl=None, created_at=5)
    text, preimage = request.to_json(), hashlib.sha256(b"preimage").hexdigest()
    bolt11 = invoices.issue(
        b"\x09" * 32,
        network="bcrt",
        amount_msat=1_000,
        payment_hash=hashlib.sha256(bytes.fromhex(preimage)).hexdigest(),
        created_at_s=5,
        expiry_s=600,
        description_hash=zaps.description_hash(text),
    ).bolt11
    debt = SimpleNamespace(key=key, payment_hash=hashlib.sha256(bytes.fromhex(preimage)).hexdigest())
    return SimpleNamespace(provider=SECOND.public, debt=debt), (text, bolt11, preimage)


def test_a_flood_of_false_receipts_costs_a_look_at_each_and_no_memory(monkeypatch):
    """They all name the right invoice, and each further one had all before it checked again."""
    paid, (text, bolt11, preimage) = zap()
    checked = []
    check = zaps.check_receipt
    monkeypatch.setattr(zaps, "check_receipt", lambda *args, **options: checked.append(0) or check(*args, **options))
    seen = ZapReceipts("bcrt")
    for n in range(50):
        other = hashlib.sha256(bytes([n])).hexdigest()
        seen.note(nip57.build_receipt(SECOND, text, bolt11=bolt11, paid_at_s=n, preimage=other))
        assert seen.find_receipt(paid) is None
    fair = nip57.build_receipt(SECOND, text, bolt11=bolt11, paid_at_s=60, preimage=preimage)
    seen.note(fair)
    assert [seen.find_receipt(paid) for _ in range(50)] == [fair.id] * 50
    assert len(checked) == 51
    assert len(seen._ids) == 1


def test_a_receipt_of_another_provider_is_none_and_fills_its_own_room_alone():
    paid, (text, bolt11, preimage) = zap()
    seen = ZapReceipts("bcrt")
    seen.note(nip57.build_receipt(THIRD, text, bolt11=bolt11, paid_at_s=1, preimage=preimage))
    assert seen.find_receipt(paid) is None
    seen._read[THIRD.public] = MAX_ZAP_RECEIPTS
    fair = nip57.build_receipt(SECOND, text, bolt11=bolt11, paid_at_s=1, preimage=preimage)
    seen.note(fair)
    assert seen.find_receipt(paid) == fair.id
    seen._ids.clear()
    seen._read[SECOND.public] = MAX_ZAP_RECEIPTS
    seen.note(fair)
    assert seen.find_receipt(paid) is None


@pytest.mark.parametrize(("context", "chunks"), [(64, 2), (65, 3), (0, 2**15 + 1)])
def test_no_chunk_that_a_generation_can_have_is_left_out(context, chunks):
    """Position 1 is the first of chunk 1; a manifest need not say how many there are."""
    assert most_chunks(SimpleNamespace(mode="generate", chunk=64, context=context), ()) == chunks
