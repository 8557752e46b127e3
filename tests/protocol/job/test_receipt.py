"""Receipts and what closes them: what their tags say is what their documents say."""

import pytest
from pydantic import ValidationError

from nodewire.errors import BadEvent, BadTag
from nodewire.nostr.event import sign
from nodewire.protocol import kinds
from nodewire.protocol.job import receipt as receipts
from nodewire.protocol.job.receipt import Closing, FinalChunk, PaidChunk, Receipt
from tests.protocol.committee.actors import digest, keys

CUSTOMER, PROVIDER = keys("customer"), keys("provider").public
PAID = PaidChunk(
    chunk=0,
    attempt=0,
    units=64,
    root=digest("root"),
    feedback=digest("claim"),
    amount_msat=900,
    fee_msat=1,
    payment_hash=digest("payment"),
    zap_receipt=None,
)
RECEIPT = Receipt(request=digest("request"), plan=digest("plan"), provider=PROVIDER, chunks=(PAID,))
FINAL = FinalChunk(chunk=0, attempt=0, commitment=digest("commitment"), epoch=3, certificate=digest("certificate"))
CLOSING = Closing(
    receipt=digest("receipt"),
    request=RECEIPT.request,
    plan=RECEIPT.plan,
    provider=PROVIDER,
    final=(FINAL,),
    uncertified=((1, 0),),
)


WITH_BOTH = RECEIPT.model_copy(
    update={"codecs": ("bf16",), "chunks": (PAID.model_copy(update={"cached": 8}),)},
)


@pytest.mark.parametrize(("one", "has_both"), [(RECEIPT, False), (WITH_BOTH, True)], ids=["plain", "with both"])
def test_a_receipt_is_parsed_back_and_leaves_out_what_it_has_not(one, has_both):
    event = receipts.build(CUSTOMER, one, created_at=5)
    assert receipts.parse(event) == one
    assert not receipts.is_closing(event)
    assert [f'"{name}"' in event.content for name in ("cached", "codecs")] == [has_both, has_both]


def test_a_closing_is_parsed_back():
    event = receipts.build_closing(CUSTOMER, CLOSING, created_at=6)
    assert receipts.parse_closing(event) == CLOSING
    assert receipts.is_closing(event)


@pytest.mark.parametrize("parse", [receipts.parse, receipts.parse_closing])
def test_an_event_of_another_kind_is_no_receipt(parse):
    with pytest.raises(BadEvent, match="is not a receipt"):
        parse(sign(CUSTOMER, kinds.FEEDBACK, created_at=5, content=RECEIPT.to_json()))


@pytest.mark.parametrize(
    ("build", "parse", "one", "name"),
    [
        *((receipts.build, receipts.parse, RECEIPT, name) for name in ("e", "p", "plan")),
        *((receipts.build_closing, receipts.parse_closing, CLOSING, name) for name in ("e", "p", "plan", "receipt")),
    ],
)
def test_a_tag_that_says_another_thing_than_the_document_is_refused(build, parse, one, name):
    true = build(CUSTOMER, one, created_at=5).tags
    tags = [[tag, digest("another") if tag == name else value] for tag, value in true]
    with pytest.raises(BadTag) as raised:
        parse(sign(CUSTOMER, kinds.RECEIPT, created_at=5, content=one.to_json(), tags=tags))
    assert raised.value.field == name


@pytest.mark.parametrize("again", [((0, 0),), ((1, 0), (1, 0))])
def test_a_chunk_is_closed_once(again):
    with pytest.raises(ValidationError, match="a chunk stands twice"):
        Closing(**{**CLOSING.model_dump(), "uncertified": again})
