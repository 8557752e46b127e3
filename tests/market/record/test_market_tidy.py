"""A customer's cache loses what nobody used for a month, whenever it is opened."""

from __future__ import annotations

import asyncio
import os
import time

from nodewire.store.blobs import Blobs
from nodewire.store.sweep import KEPT_S


async def test_a_customer_keeps_no_blob_that_it_did_not_use_for_a_month(market):
    config = await market.customer_config("tidy")
    async with Blobs([], config.parent / "state" / "blobs") as blobs:
        unused, used = [blobs.path((await blobs.put(os.urandom(1_000))).sha256) for _ in range(2)]
    os.utime(unused, (time.time() - KEPT_S - 60,) * 2)
    os.utime(used, (time.time() - KEPT_S + 600,) * 2)
    async with market.customer("tidy"), asyncio.timeout(300):
        while unused.exists():
            await asyncio.sleep(0.01)
    assert used.exists()
