"""The tokens that a judge's driver is given."""

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.model import token_list


def test_tokens_are_unpacked_by_their_numbers():
    packed = token_list.pack({0: 7, 3: 2**32 - 2})
    assert len(packed) == 16
    assert token_list.unpack("said", packed) == (7, None, None, 2**32 - 2)
    assert token_list.unpack("said", token_list.pack({})) == ()


def test_what_no_judge_follows_is_left_out():
    odd = {-1: 5, token_list.MAX_TOKENS: 5, 1: -1, 2: 2**32 - 1, 0: 9}
    assert token_list.unpack("said", token_list.pack(odd)) == (9,)


@pytest.mark.parametrize("value", ["text", b"123", b"\0" * (4 * token_list.MAX_TOKENS + 4), None])
def test_a_parameter_that_is_no_list_of_tokens_is_refused_by_its_name(value):
    with pytest.raises(BadInput) as raised:
        token_list.unpack("said", value)
    assert raised.value.field == "said"
