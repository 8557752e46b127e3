"""What cannot be computed is bad-frame where a neighbour sent it; the plan says who that was."""

from __future__ import annotations

import pytest

from nodewire.errors import BadFrame, BadInput, BadTag, NotAllowed, TooLarge
from nodewire.nostr import event as events
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.job.frame_refusal import refusal, suspects
from nodewire.protocol.job.plan import LOCAL
from tests.protocol import documents

RING = documents.manifest()
DRIVER, FIRST, SECOND = (keys.public for keys in documents.PROVIDERS)
NOW = {"driver": DRIVER, "stage.0": FIRST, "stage.1": SECOND}


@pytest.mark.parametrize("error", [BadInput("x", "y"), TooLarge("x", "y"), NotAllowed("x", "y"), BadFrame("x", "y")])
def test_whatever_is_wrong_with_a_neighbours_frame_has_one_code_and_names_its_edge(error):
    said = refusal(error, RING, {"hidden.1"})
    assert (said.code, said.field, said.reason) == ("bad-frame", "hidden.1", "x: y")
    assert refusal(error, RING, {"prompt"}) is error  # the customer's own keeps its code


def test_of_a_call_the_one_edge_that_is_a_neighbours_is_named_and_none_of_several():
    error = BadInput("out", "index 7 of 3 rows")
    assert refusal(error, RING, {"prompt", "return"}).field == "return"
    assert refusal(error, RING, {"hidden.0", "return"}).field == "frames"


@pytest.mark.parametrize(
    ("who", "edge", "found"),
    [
        (SECOND, "hidden.1", {FIRST}),
        (SECOND, "", {FIRST}),
        (SECOND, "hidden.0", {FIRST, DRIVER}),  # which does not lead to it, but is the driver's, which speaks to all
        (FIRST, "hidden.1", {DRIVER}),  # its own: what it says of others counts for nothing
        (SECOND, "nowhere", {FIRST}),
        (DRIVER, "return", {SECOND}),
        (DRIVER, "prompt", set()),  # the customer's
        (DRIVER, "", {SECOND}),
        ("ff" * 32, "", set()),
    ],
)
def test_who_may_have_sent_it_follows_from_the_plan(who, edge, found):
    assert suspects(RING, NOW, who, edge) == found


def test_what_the_customer_computes_itself_is_its_own_and_who_feeds_itself_is_to_blame_alone():
    assert suspects(RING, {**NOW, "driver": LOCAL}, FIRST, "hidden.0") == set()
    assert suspects(RING, {**NOW, "driver": LOCAL}, LOCAL, "return") == {SECOND}
    assert suspects(RING, {**NOW, "stage.1": FIRST}, FIRST, "hidden.1") == {FIRST}
    assert suspects(RING, {**NOW, "stage.1": FIRST}, FIRST) == {FIRST, DRIVER}


def test_feedback_says_which_edge_and_whose_word_it_is_and_only_in_errors():
    def said(status, **more):
        remarks = feedback.Remarks(**more)
        made = feedback.build(documents.PROVIDERS[0], "ab" * 32, SECOND, status, created_at=1, remarks=remarks)
        return feedback.parse(made)

    found = said("error", text="bad-frame", edge="hidden.1", by=FIRST)
    assert (found.text, found.edge, found.by) == ("bad-frame", "hidden.1", FIRST)
    found = said("error", text="bad-frame")
    assert (found.edge, found.by) == ("", "")
    found = said("processing", edge="hidden.1", by=FIRST)
    assert (found.edge, found.by) == ("", "")
    tags = [["e", "ab" * 32], ["p", SECOND], ["status", "error", "bad-frame"], ["by", "me"]]
    with pytest.raises(BadTag, match="by"):
        feedback.parse(events.sign(documents.PROVIDERS[0], kinds.FEEDBACK, created_at=1, tags=tags))
