"""Sizes as people write and read them."""

import pytest

from nodewire.protocol.encoding.byte_sizes import at_least, in_units, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (3_000_000, 3_000_000),
        ("3000000", 3_000_000),
        ("3MB", 3_000_000),
        (" 512 MiB ", 512 * 2**20),
        ("24g", 24 * 10**9),
        ("1.5 kib", 1_536),
        ("0b", 0),
    ],
)
def test_a_size_is_read_as_people_write_it(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "3 TB", "-1MB", "3ib", "1e9", "1.2.3MB", "1" * 13, None])
def test_a_text_that_is_no_size_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is not a size such as 3MB or 24GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (212_000, "212 kB"), (1_500_000, "1.5 MB"), (24 * 10**9, "24 GB")],
)
def test_a_size_is_told_in_the_largest_unit_that_it_reaches(nbytes, text):
    assert in_units(nbytes) == text


@pytest.mark.parametrize("nbytes", [1, 999, 1_001, 300_000_001, 123_456_789_012])
def test_a_rounded_size_is_no_less_and_can_be_read_again(nbytes):
    assert nbytes <= parse_size(at_least(nbytes)) <= nbytes * 1.01 + 1
