"""A provider's price as its file has it, and as its ad says it: the same, or an error."""

from __future__ import annotations

import pytest

from nodewire.config import Serve
from nodewire.errors import BadConfig
from nodewire.provider.tasks.loader import price_of
from tests.protocol.documents import manifest

MODEL = f"38840:{'0' * 64}:tiny"


def serve(**price) -> Serve:
    return Serve(manifest=MODEL, tasks=("driver",), **price)


@pytest.mark.parametrize(
    ("price", "chunk_msat"),
    [
        ({"price_msat": 7}, 7),
        ({"price_per_million": "15.625sat"}, 1),
        ({"price_per_million": 46_875}, 3),
        ({"price_per_million": "46875 msat"}, 3),
        ({"price_per_million": "1000sat"}, 64),
        ({"price_per_million": 0}, 0),
    ],
)
def test_a_million_tokens_price_is_a_chunks_exactly(price, chunk_msat):
    assert price_of(serve(**price), manifest()) == chunk_msat


def test_a_price_that_the_wire_cannot_say_is_refused_with_its_neighbours():
    with pytest.raises(BadConfig, match=r"70 sat is 4\.48 msat a chunk of 64 .*62\.5 sat and 78\.125 sat") as refused:
        price_of(serve(price_per_million="70sat"), manifest())
    assert refused.value.field == "serve.price_per_million"


def test_calls_have_no_price_for_tokens():
    with pytest.raises(BadConfig, match="paid by the call: name price_msat"):
        price_of(serve(price_per_million="1000sat"), manifest().model_copy(update={"mode": "embed"}))
