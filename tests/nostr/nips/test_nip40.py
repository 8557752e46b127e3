"""The tests read like NIP-40."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadTag
from nodewire.nostr.nips import nip40


@given(st.integers(0, 2**53 - 1))
def test_what_is_built_is_parsed_back(moment):
    assert nip40.parse([nip40.build(moment)]) == moment


def test_an_event_without_the_tag_never_expires():
    assert nip40.parse([["e", "00"], []]) is None
    assert not nip40.is_expired([], now_s=2**52)


def test_the_first_tag_counts():
    assert nip40.parse([["expiration", "5"], ["expiration", "9"]]) == 5


@pytest.mark.parametrize(("now_s", "expired"), [(99, False), (100, False), (101, True)])
def test_an_event_is_alive_until_its_moment_has_passed(now_s, expired):
    assert nip40.is_expired([["expiration", "100"]], now_s) is expired


@pytest.mark.parametrize("value", ["", "-1", "1.5", " 7", "0x10", "٣", "9" * 17, str(2**53), "soon"])
def test_a_value_that_is_no_unix_time_is_refused_by_name(value):
    with pytest.raises(BadTag, match="expiration"):
        nip40.parse([["expiration", value]])


def test_a_tag_without_a_value_is_refused():
    with pytest.raises(BadTag):
        nip40.parse([["expiration"]])
