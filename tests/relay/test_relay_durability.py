"""An OK is a promise: what was acknowledged is there after the process has been killed."""

import asyncio
import hashlib
import json
import os
import signal
import sqlite3
import sys
import time

import aiohttp
import pytest
from websockets.asyncio.client import connect

from nodewire.errors import BadConfig
from nodewire.nostr.nips import nipb7
from relay import Config, serve
from relay.events import schema
from relay.events.storing import Job, store
from tests.relay.conversation import ALICE, Talk, note, talk


async def start(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "relay", "--port", "0", *arguments, stdout=asyncio.subprocess.PIPE
    )
    url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
    return process, url


async def test_every_acknowledged_event_survives_a_kill(tmp_path):
    arguments = ("--db", str(tmp_path / "events.sqlite"), "--blobs", str(tmp_path / "blobs"))
    process, url = await start(*arguments)
    acknowledged = set()
    async with talk(url) as client:
        for n in range(300):
            await client.say("EVENT", note(content=str(n)).as_dict())
        while len(acknowledged) < 100:  # the others are anywhere between the socket and the disk
            ok = await client.hear()
            assert ok[2], ok
            acknowledged.add(ok[1])
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    process, url = await start(*arguments)
    async with talk(url) as client:
        assert acknowledged <= set(await client.ask({"kinds": [1]}))
    process.terminate()
    assert await process.wait() == 0


async def test_a_relay_that_is_stopped_says_goodbye_and_keeps_what_it_took(tmp_path):
    config = Config(db=tmp_path / "events.sqlite", port=0)
    async with serve(config) as relay:
        client = Talk(await connect(relay.url))
        events = [note(content=str(n)) for n in range(50)]
        for event in events:
            assert (await client.publish(event))[0]
    assert client.socket.close_code == 1001
    async with serve(config) as relay, talk(relay.url) as client:
        assert set(await client.ask({})) == {event.id for event in events}


async def test_a_disk_that_fails_is_an_error_to_the_sender_and_not_the_end(relay, client):
    # The writer's own connection is told to refuse growth, as a full disk would.
    pages = relay.writer._db.execute("PRAGMA page_count").fetchone()[0]
    relay.writer._db.execute(f"PRAGMA max_page_count = {pages}")
    for n in range(200):
        accepted, message = await client.publish(note(content=f"{n}" + "x" * 20_000))
        if not accepted:
            break
    assert message.startswith("error: the relay's disk is full")
    assert len(await client.ask({"kinds": [1], "limit": 5})) == min(n, 5)  # reads go on
    relay.writer._db.execute("PRAGMA max_page_count = 1000000")
    assert (await client.publish(note(content="again")))[0]


def test_a_database_of_another_version_is_not_touched(tmp_path):
    path = tmp_path / "events.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(BadConfig, match="version 99"):
        schema.open_writer(path, "FULL")


def test_a_database_without_its_authors_shares_gets_them(tmp_path):
    path = tmp_path / "events.sqlite"
    db = schema.open_writer(path, "NORMAL")
    config = Config(db=path)
    for n in range(3):
        event = note(content=str(n))
        assert store(db, Job(event, event.to_json(), None, lambda _: None), config).accepted
    held = schema.held_bytes(db, bytes.fromhex(ALICE.public))
    db.executescript("DROP TRIGGER event_came; DROP TRIGGER event_went; DROP TABLE held; PRAGMA user_version = 1")
    db.close()
    db = schema.open_writer(path, "NORMAL")
    assert schema.held_bytes(db, bytes.fromhex(ALICE.public)) == schema.held_bytes(db) == held > 0


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path):
    path = tmp_path / "events.sqlite"
    path.write_text(json.dumps({"not": "a database"}) * 100)
    with pytest.raises(BadConfig, match=r"events\.sqlite"):
        schema.open_writer(path, "FULL")


async def test_a_relay_by_itself_takes_no_more_blobs_than_it_is_told_to(tmp_path):
    process, url = await start(
        "--db", str(tmp_path / "e.sqlite"), "--blobs", str(tmp_path / "blobs"), "--quota", "16KiB"
    )
    async with aiohttp.ClientSession(url.replace("ws", "http", 1)) as http:
        for body, status in ((b"1" * 8_000, 200), (b"2" * 900, 413)):  # half of it is one key's
            now_s, sha256 = int(time.time()), hashlib.sha256(body).hexdigest()
            token = nipb7.build_token(ALICE, "upload", now_s=now_s, expires_at_s=now_s + 60, hashes=[sha256])
            answer = await http.put("/upload", data=body, headers={"Authorization": nipb7.to_header(token)})
            assert answer.status == status
    process.terminate()
    assert await process.wait() == 0
