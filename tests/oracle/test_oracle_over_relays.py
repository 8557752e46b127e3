"""The oracle's daemon over real websockets: nodewire's pool, an independent relay (rust-nostr's)."""

from __future__ import annotations

import asyncio
import contextlib
import time

import nostr_sdk

from nodewire.errors import NodewireError
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.oracle.daemon import Oracle
from nodewire.oracle.journal import Journal
from nodewire.oracle.setup import create_committee, load_seat
from nodewire.plan.epoch import Epochs
from nodewire.protocol.committee import beacon, quorum_certificate
from nodewire.protocol.market import snapshot
from tests.oracle.test_oracle_daemon import Shelf, WallClock
from tests.protocol.committee.actors import Provider, digest


async def test_a_committee_certifies_a_provider_over_a_relay(tmp_path):
    relay = nostr_sdk.LocalRelayBuilder().build()
    await relay.run()
    url = str(await relay.url())
    committee = create_committee(
        tmp_path, name="t", f=1, genesis_s=int(time.time()) - 3, epoch_ms=1_000, skew_ms=80, beat_ms=500, relays=[url]
    )
    provider = Provider("p", committee, {digest("model"): ([("driver", 1, 1_000)], 1)})
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for number in range(1, 5):
            seat = load_seat(tmp_path / f"oracle-{number}", committee)
            pool = await stack.enter_async_context(Pool([url]))
            journal = Journal(tmp_path / f"oracle-{number}" / "journal.db")
            tasks.append(group.create_task(Oracle(seat, committee, pool, Shelf(tmp_path), journal, WallClock()).run()))
        pool = await stack.enter_async_context(Pool([url]))
        await pool.publish(provider.ad)
        epochs, last = Epochs(committee), None
        subscription = pool.subscribe(
            [Filter(kinds={quorum_certificate.KIND, beacon.KIND}, tags={"c": {committee.digest()}})]
        )

        async def beat():
            while True:
                now_ms = int(time.time() * 1000)
                event = provider.beat(committee.epoch_at(now_ms), last, created_at=now_ms // 1000)
                with contextlib.suppress(NodewireError):  # two in one second: the relay keeps the older
                    await pool.publish(event)
                await asyncio.sleep(0.25)

        tasks.append(group.create_task(beat()))
        async with asyncio.timeout(60):
            async for event in subscription:
                epochs.add_event(event)
                if event.kind == quorum_certificate.KIND:
                    last = quorum_certificate.parse(event).digest
                with contextlib.suppress(NodewireError):
                    usable = epochs.latest(int(time.time() * 1000))
                    found = snapshot.unpack((tmp_path / usable.snapshot).read_bytes(), usable.snapshot)
                    if found.node(provider.keys.public):
                        break
        for task in tasks:
            task.cancel()
    relay.shutdown()
    assert found.node(provider.keys.public).epochs >= 1
