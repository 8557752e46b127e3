"""Malformed frames and handshakes: some hundred of each kind, and what a flood leaves in memory."""

from __future__ import annotations

import random

import pytest

from bench.fuzz.fuzz_wire import QUICK_CASES, cases_apart
from bench.fuzz.wire import floods, plain_reader, spoilt_streams, streams
from bench.fuzz.wire.readers import Noting, _feed
from nodewire.errors import NodewireError
from nodewire.wire.framing import frames
from nodewire.wire.framing.decoder import Decoder

CASES = {"decoder": 600, "node": 600, "auth": 60, "certificate": 60, "greeting": 30}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arm", CASES)
async def test_some_hundred_end_in_typed_errors_or_are_valid(arm):
    found = await cases_apart(arm, 0, CASES[arm], seed=11)
    assert found["faults"] == []
    assert sum(found["kinds"].values()) == CASES[arm]
    if arm == "node":
        assert found["delivered"] > CASES[arm]
    elif arm != "decoder":
        assert found["kinds"][f"{arm}.fair"] == CASES[arm] // 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", floods.FLOODS)
async def test_a_flood_leaves_no_more_in_memory_than_the_wire_says(flood):
    found = await cases_apart(flood, 0, 1, seed=1)
    assert found["grown_bytes"] <= floods.bound(floods.FLOODS[flood])


def test_every_arm_has_cases():
    assert CASES.keys() == QUICK_CASES.keys()


@pytest.mark.parametrize("index", range(len(streams.STREAMS)))
def test_streams_are_valid_before_they_are_spoilt(index):
    assert plain_reader.is_whole(streams.PACKED[index])
    for piece in streams.STREAMS[index]:
        assert piece.kind in frames.CAPS


def test_the_plain_reader_is_not_the_decoder_and_finds_the_same():
    """And the same is not nothing: of streams as they are all frames come."""
    for packed in streams.PACKED:
        noting = Noting()
        decoder = Decoder(noting)
        _feed(random.Random(1), packed, decoder.get_buffer, decoder.buffer_updated, lambda: False)
        assert noting.found == plain_reader.read(packed)[0]
        assert any(isinstance(one, plain_reader.Read) for one in noting.found)


@pytest.mark.parametrize("kind", spoilt_streams.KINDS)
def test_every_kind_of_fault_is_one(kind):
    """Streams differ from what they were made of, and some of each kind are found out by a decoder or by a job."""
    made = {spoilt_streams.KINDS[kind](random.Random(number), number % 24) for number in range(40)}
    assert len(made - set(streams.PACKED)) > 20
    refused = 0
    for stream in made:
        decoder = Decoder(Noting())
        try:
            _feed(random.Random(1), stream, decoder.get_buffer, decoder.buffer_updated, lambda: False)
        except NodewireError:
            refused += 1
    assert refused or kind in ("reordered", "doubled", "dropped")
