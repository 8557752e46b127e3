"""A name is told from one that imitates it, and copies by free keys neither hide a model nor take it along."""

import pytest

from nodewire.customer.models.names import ModelAt
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.protocol.market.model_name import skeleton
from nodewire.store.blobs import Blobs
from relay import serve
from tests.customer.named_models import STRANGER, Epoch, address, model, names, publication, relay_at

HELD = model("smollm2", "held")


@pytest.fixture
async def pool(tmp_path):
    async with serve(relay_at(tmp_path)) as relay, Pool([relay.url]) as pool:
        yield pool


@pytest.fixture
async def blobs(tmp_path):
    async with Blobs([], tmp_path / "cache") as blobs:
        yield blobs


@pytest.mark.parametrize(
    ("known", "other"),
    [("clip", "c1ip"), ("clip", "ciip"), ("clip", "c-lip"), ("modern-bert", "moder.n-bert"), ("wizard", "v_vizard")],
)
def test_a_name_looks_alike_where_what_imitates_a_letter_is_imitated_itself(known, other):
    assert skeleton(known) == skeleton(other)


def test_names_that_are_told_apart_stay_apart():
    names = ["clip", "modern-bert", "smollm2", "smollm3", "qwen3-4b", "qwen3-8b", "llama-3.1", "llama-3.2", "gemma"]
    assert len({skeleton(name) for name in names}) == len(names)


async def test_many_copies_of_what_is_held_leave_its_name_clear(pool, blobs):
    for number in range(20):
        await pool.publish(publication(Keys(bytes([100 + number]) * 32), HELD))
    await pool.publish(publication(STRANGER, HELD, ago_s=60))
    found = await (await names(pool, blobs, Epoch([(HELD, 0)]))).find("smollm2")
    assert found == ModelAt(address(STRANGER, "smollm2"), HELD.digest(), "record")


async def test_a_copy_that_is_dated_back_and_then_replaced_keeps_nobody_from_the_model(pool, blobs):
    copycat = Keys(b"\x77" * 32)
    await pool.publish(publication(STRANGER, HELD, ago_s=60))
    await pool.publish(publication(copycat, HELD, ago_s=50_000))
    found_by = await names(pool, blobs, Epoch([(HELD, 0)]))
    found = await found_by.find("smollm2")
    await pool.publish(publication(copycat, model("smollm2", "another")))
    assert (await found_by._market.manifest(found.address, found.digest)).digest() == HELD.digest()
