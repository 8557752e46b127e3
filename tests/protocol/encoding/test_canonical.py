"""One document, one encoding, one hash."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.core.slices import whole
from nodewire.errors import BadInput, TooLarge
from nodewire.protocol.encoding import canonical

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(documents)
def test_what_is_encoded_is_decoded(document):
    assert canonical.decode(canonical.encode(document), max_bytes=10_000) == document


@given(st.dictionaries(st.text(max_size=6), scalars, min_size=2, max_size=6))
def test_the_order_in_which_a_map_was_made_does_not_matter(document):
    assert canonical.encode(dict(reversed(document.items()))) == canonical.encode(document)


@given(st.binary(max_size=64))
def test_any_bytes_give_their_document_or_a_typed_error(data):
    try:
        document = canonical.decode(data, max_bytes=64)
    except BadInput:
        return
    assert canonical.encode(document) == data


def test_a_map_out_of_order_is_refused():
    with pytest.raises(BadInput, match="canonical"):
        canonical.decode(msgpack.packb({"b": 1, "a": 2}), max_bytes=99)


def test_an_integer_that_is_longer_than_it_must_be_is_refused():
    with pytest.raises(BadInput, match="canonical"):
        canonical.decode(b"\xcd\x00\x05", max_bytes=99)


@pytest.mark.parametrize("value", [1.5, {1: 2}, {"a": object()}, 2**64])
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(BadInput):
        canonical.encode(value)


def test_a_document_is_refused_for_its_length_before_it_is_read():
    with pytest.raises(TooLarge):
        canonical.decode(b"\x00" * 100, max_bytes=99)


def test_a_nest_of_lists_is_refused():
    with pytest.raises(BadInput):
        canonical.decode(b"\x91" * 2000 + b"\x00", max_bytes=9_999)


def test_the_tag_separates_hashes():
    assert canonical.digest("a", [1]) != canonical.digest("b", [1])


def test_a_hash_is_the_one_that_the_protocol_defines():
    assert canonical.digest("nodewire/test/1", {"b": [1, "x"], "a": None}) == (
        "871183b13e1359d4ac9a40e7bce98d9806d5090bf5cf88f3573ccc2fa6d31dff"
    )


def read(data, **bounds):
    return whole(canonical.read(data, **{"max_bytes": 1_000, **bounds}))


def test_a_map_that_is_read_in_slices_is_that_of_decode():
    document = {"a": [1, [2], {"b": b"c"}], "d": [], "e": {"f": None}, "g": "h"}
    data = canonical.encode(document)
    assert read(data, most={"a": 3, "d": 0, "g": 1}) == document == canonical.decode(data, max_bytes=1_000)


@pytest.mark.parametrize(
    ("data", "bounds", "error", "reason"),
    [
        (b"\x80" * 9, {"max_bytes": 8}, TooLarge, "9 bytes, at most 8"),
        (canonical.encode({"a": [1, 2]}), {"most": {"a": 1}}, TooLarge, "2 items, at most 1"),
        (canonical.encode({"a": {"b": [1, 2, 3]}}), {"longest": 2}, TooLarge, "more than 2 items"),
        (msgpack.packb({"b": 1, "a": 2}), {}, BadInput, "not in canonical order"),
        (b"\x81\x01\x02", {}, BadInput, "no string"),
        (b"\x81\xa1a\xdc\x00\x01\x05", {"most": {"a": 9}}, BadInput, "not in canonical form"),
        (b"\xde\x00\x01\xa1a\x05", {}, BadInput, "not in canonical form"),
        (b"\x81\xa1a\xcd\x00\x05", {}, BadInput, "not in canonical form"),
        (b"\x81\xa1a", {}, BadInput, "not a map in msgpack"),
        (b"\x91\x01", {}, BadInput, "not a map in msgpack"),
        (b"\x80\x00", {}, BadInput, "bytes follow its end"),
    ],
)
def test_a_map_that_is_not_canonical_or_beyond_its_bounds_is_refused(data, bounds, error, reason):
    with pytest.raises(error, match=reason):
        read(data, **bounds)


def test_a_tuple_of_lists_nested_too_deep_is_refused_before_it_is_written():
    deep = 1
    for _ in range(canonical.MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(TooLarge, match="nested more than"):
        canonical.encode(deep)
