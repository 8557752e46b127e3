"""Malformed recipes, results and messages of training end in typed errors; faults that fuzzing has found."""

from __future__ import annotations

import pytest
import torch

from bench.fuzz.fuzz_train import NAMES, read_apart
from bench.fuzz.training_targets import targets
from nodewire.errors import BadData, BadVersion
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding import tags
from nodewire.training.engine import state
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.round import RoundTicket

CASES = 200


@pytest.mark.timeout(300)
async def test_some_hundred_cases_of_each_kind_are_typed_errors_or_valid_and_execute_nothing():
    found = await read_apart([(name, 0, CASES) for name in NAMES], seed=11)
    for name, one in zip(NAMES, found, strict=True):
        assert one["faults"] == [] and one["violations"] == [], name
        assert one["typed"] + one["valid"] == CASES
        assert one["typed"] > CASES / 4, name  # cases are malformed indeed


def test_every_target_has_its_name_in_the_list():
    assert tuple(targets()) == NAMES


@pytest.mark.parametrize("read", [Recipe.parse, RoundTicket.parse])
@pytest.mark.parametrize("nested", ["[" * 1_015 + "]" * 1_015, '{"v":' * 1_015 + "1" + "}" * 1_015])
def test_a_version_that_is_nested_deeply_is_another_version(read, nested):
    """Its repr ended in a RecursionError, which no reader of strangers' messages expects."""
    with pytest.raises(BadVersion):
        read(f'{{"v":{nested},"recipe":{{}}}}')


def test_a_version_is_said_in_few_words():
    with pytest.raises(BadVersion) as found:
        Recipe.parse('{"v":"' + "x" * 30_000 + '"}')
    assert len(str(found.value)) < 100
    with pytest.raises(BadVersion):
        Recipe.from_toml("v = 0x" + "f" * 20_000)


def test_an_event_whose_version_is_nested_deeply_is_refused():
    content = '{"v":' + "[" * 1_015 + "]" * 1_015 + "}"
    event = events.sign(Keys.generate(), 8852, created_at=5, content=content)
    with pytest.raises(BadVersion):
        tags.document(event, {"v"})


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-be"])
def test_a_header_of_another_encoding_is_none(encoding):
    """It was read, with a module imported for it."""
    packed = state.pack({"x": torch.zeros(2)})
    header = packed[8:-8].decode().strip().encode(encoding)
    with pytest.raises(BadData):
        state.unpack(len(header).to_bytes(8, "little") + header + packed[-8:], {"x": (torch.float32, (2,))})
