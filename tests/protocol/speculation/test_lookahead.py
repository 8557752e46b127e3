"""How far a driver may guess, in the documents that say so: what says nothing of it is as it ever was."""

from __future__ import annotations

import pytest

from nodewire.customer.planning.planner import lookahead_of
from nodewire.errors import BadEvent, BadFrame, BadPlan, BadSignature
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import Plan
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD
from tests.protocol.documents import CUSTOMER, HASH, plan
from tests.protocol.market.test_ad_profile import ad


def guessing(lookahead: int) -> Plan:
    said = plan()
    return said.model_copy(update={"terms": said.terms.model_copy(update={"lookahead": lookahead})})


def test_a_plan_without_guesses_is_the_document_that_it_was():
    assert "lookahead" not in plan().document()["terms"]
    assert guessing(1).digest() == plan().digest() != guessing(2).digest()
    assert Plan.unpack(guessing(64).pack()) == guessing(64)


@pytest.mark.parametrize("lookahead", [0, MAX_LOOKAHEAD + 1, -1, True, "8", None])
def test_a_plan_that_looks_ahead_too_far_is_refused(lookahead):
    document = plan().document()
    document["terms"]["lookahead"] = lookahead
    with pytest.raises(BadPlan, match=r"^terms\.lookahead"):
        Plan.from_document(document)


def test_an_ad_that_says_nothing_takes_no_guesses():
    said = ad()
    assert said.lookahead == 1
    assert "lookahead" not in said.document()
    other = said.model_copy(update={"lookahead": 2})
    assert Ad.parse(other.to_json()) == other
    with pytest.raises(BadEvent):
        Ad.from_document({**said.document(), "lookahead": 0})


def test_a_plan_looks_as_far_ahead_as_all_of_its_members_take():
    ads = [ad().model_copy(update={"lookahead": most}) for most in (8, 3, 64)]
    assert lookahead_of(guessing(16), ads) == 3
    assert lookahead_of(guessing(2), ads) == 2
    assert lookahead_of(plan(), ads) == 1


def test_a_close_says_how_many_positions_count_only_where_not_all_do():
    fields = {"request": HASH, "attempt": 0, "chunk": 3, "units": 1, "end": True}
    whole = Close.sign(CUSTOMER, **fields)
    assert "positions" not in whole.document()
    some = Close.sign(CUSTOMER, **fields, positions=5)
    some.check(CUSTOMER.public)
    assert Close.from_control(some.control()) == some
    with pytest.raises(BadSignature):
        some.model_copy(update={"positions": 6}).check(CUSTOMER.public)
    with pytest.raises(BadSignature):
        some.model_copy(update={"positions": None}).check(CUSTOMER.public)
    with pytest.raises(BadFrame):
        Close.from_document({**some.document(), "positions": -1})
