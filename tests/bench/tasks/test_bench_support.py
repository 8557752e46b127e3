"""The configurations that `bench.tasks.support` tries: decoders are read, or refused with a cause and a remedy."""

import json

import pytest

from bench.tasks.support import _REMEDIES, CONFIGS, _tried
from nodewire.llm.families import ARCHITECTURES, parse_config

SAID = {path.stem: path.read_bytes() for path in sorted(CONFIGS.glob("*.json"))}
DECODERS = [name for name, data in SAID.items() if json.loads(data)["architectures"][0] in ARCHITECTURES]
REFUSED = [name for name in SAID if name.startswith(("mamba", "rwkv"))]


@pytest.mark.parametrize("name", DECODERS)
def test_what_people_ask_for_is_read_as_its_authors_wrote_it(name):
    config = parse_config(SAID[name])
    assert config.vocab_size > 30_000
    assert type(config).from_document(config.document()) == config


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_why_and_what_to_do(name):
    found = _tried(name)
    assert not found["accepted"] and _REMEDIES.search(found["refusals"][-1])


def test_there_are_as_many_as_the_bench_wants():
    assert len(SAID) >= 40
    assert len(DECODERS) >= 36
