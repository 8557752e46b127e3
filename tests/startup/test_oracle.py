"""What an oracle's daemon does at its start beside its work."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack

from nodewire.config import OracleConfig
from nodewire.oracle.setup import create_committee
from nodewire.startup.oracle import start
from nodewire.store.blobs import Blobs
from nodewire.store.sweep import KEPT_S, YOUNG_S
from relay import Config, serve


async def test_its_cache_is_swept_by_age_and_to_its_limit_but_not_of_what_is_young(tmp_path):
    founded = tmp_path / "committee"
    founded.mkdir()
    create_committee(founded, name="t", f=1, genesis_s=int(time.time()))
    async with (
        serve(Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "blossom")) as relay,
        Blobs([], tmp_path / "state" / "blobs") as blobs,
        AsyncExitStack() as stack,
    ):
        ages_s = {"long unused": KEPT_S + 60, "too much": 3 * YOUNG_S, "young": YOUNG_S / 2}
        paths = {}
        for what, age_s in ages_s.items():
            paths[what] = blobs.path((await blobs.put(os.urandom(100_000))).sha256)
            os.utime(paths[what], (time.time() - age_s, time.time() - age_s))
        config = OracleConfig(
            seat=founded / "oracle-1",
            committee=founded / "committee.json",
            state=tmp_path / "state",
            relays=(relay.url,),
            blossom=(relay.http_url,),
            disk=50_000,
        )
        await start(stack, config)
        async with asyncio.timeout(60):
            while paths["long unused"].exists() or paths["too much"].exists():
                await asyncio.sleep(0.01)
        assert paths["young"].exists()
