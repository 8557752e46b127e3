"""Handlers as NIP-89 states them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadEvent, BadTag, NodewireError, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip01, nip89
from nodewire.nostr.nips.nip89 import Handler

KEYS = Keys(b"\x01" * 32)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
other_tags = st.lists(texts, min_size=1, max_size=3).map(tuple).filter(lambda tag: tag[0] not in ("d", "k"))
handlers = st.builds(
    Handler,
    texts,
    st.lists(st.integers(0, 65_535), min_size=1, max_size=4).map(tuple),
    texts,
    st.lists(other_tags, max_size=3).map(tuple),
)


@given(handlers)
def test_what_is_built_is_parsed_back(handler):
    assert nip89.parse(nip89.build(KEYS, handler, created_at=1)) == handler


def test_a_handler_is_found_by_its_kind_and_replaced_by_its_d():
    event = nip89.build(KEYS, Handler("llama", (8_843, 8_844)), created_at=1)
    assert nip01.Filter(kinds={31_990}, tags={"k": {"8844"}}).matches(event)
    assert nip01.address(event) == f"31990:{KEYS.public}:llama"


@pytest.mark.parametrize(
    ("kind", "tags", "error"),
    [
        (1, [["d", "x"], ["k", "1"]], BadEvent),
        (31_990, [["k", "1"]], BadTag),
        (31_990, [["d", "x"]], BadTag),
        (31_990, [["d", "x"], ["k", "-1"]], BadTag),
        (31_990, [["d", "x"], ["k", "65536"]], BadTag),
        (31_990, [["d", "x"], ["k", "٣"]], BadTag),
        (31_990, [["d", "x"], *[["k", "1"]] * 257], TooLarge),
    ],
)
def test_what_is_no_handler_is_refused(kind, tags, error):
    with pytest.raises(error):
        nip89.parse(events.sign(KEYS, kind, created_at=1, tags=tags))


def test_other_tags_cannot_say_d_or_k_again():
    with pytest.raises(BadTag):
        nip89.build(KEYS, Handler("x", (1,), others=(("k", "2"),)), created_at=1)


@given(st.lists(st.lists(st.sampled_from(["d", "k", "x"]) | texts, min_size=1, max_size=3), max_size=4))
def test_garbage_gives_only_typed_errors(tags):
    try:
        nip89.parse(events.sign(KEYS, 31_990, created_at=1, tags=tags))
    except NodewireError:
        return
