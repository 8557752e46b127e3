"""Blossom: what is taken, from whom, and what is given back."""

import asyncio
import base64
import contextlib
import hashlib
from random import Random

import aiohttp
import pytest

from nodewire.nostr.event import sign
from nodewire.nostr.nips import nipb7
from relay import BlobLimits, Config, serve
from tests.relay.conversation import ALICE, BOB, NOW

BODY = Random(17).randbytes(5_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


def grant(keys=ALICE, verb="upload", sha256=SHA256, *, ends=NOW + 60):
    token = nipb7.build_token(keys, verb, now_s=NOW, expires_at_s=ends, hashes=[sha256])
    return {"Authorization": nipb7.to_header(token)}


@pytest.fixture
async def http(relay):
    async with aiohttp.ClientSession(relay.http_url) as session:
        yield session


@pytest.fixture
async def small(tmp_path):
    """A store with room for little."""
    limits = BlobLimits(
        blob_bytes=1_000, least_blob_bytes=1, quota_bytes=2_500, key_quota_bytes=1_500, uploads=2, stall_s=1.0
    )
    async with (
        serve(
            Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "small", blob_limits=limits), clock=lambda: NOW
        ) as relay,
        aiohttp.ClientSession(relay.http_url) as session,
    ):
        yield session


def left_over(directory):
    return [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("index.sqlite")]


async def put(http, body, keys=ALICE):
    return await http.put("/upload", data=body, headers=grant(keys, sha256=hashlib.sha256(body).hexdigest()))


async def test_an_uploaded_blob_is_described_and_fetched_by_its_hash(http):
    answer = await http.put("/upload", data=BODY, headers=grant() | {"Content-Type": "text/html"})
    described = await answer.json()
    assert answer.status == 200
    assert (described["sha256"], described["size"], described["type"]) == (SHA256, len(BODY), "text/html")
    for path in (f"/{SHA256}", f"/{SHA256}.bin", described["url"]):
        fetched = await http.get(path)
        assert await fetched.read() == BODY
    assert fetched.headers["Access-Control-Allow-Origin"] == "*"
    assert "sandbox" in fetched.headers["Content-Security-Policy"]
    head = await http.head(f"/{SHA256}")
    assert head.status == 200
    assert head.content_length == len(BODY)


@pytest.mark.parametrize(
    ("range_", "status", "part"),
    [
        ("bytes=0-99", 206, BODY[:100]),
        ("bytes=4990-", 206, BODY[4990:]),
        ("bytes=-5", 206, BODY[-5:]),
        ("bytes=9999-", 416, None),
    ],
)
async def test_a_part_of_a_blob_is_fetched_by_range(http, range_, status, part):
    await put(http, BODY)
    answer = await http.get(f"/{SHA256}", headers={"Range": range_})
    assert answer.status == status
    if part is not None:
        assert await answer.read() == part


@pytest.mark.parametrize("path", ["/" + "0" * 64, "/" + "0" * 63, "/upload", "/" + SHA256.upper(), "/../" + SHA256])
async def test_what_is_not_there_is_not_found(http, path):
    assert (await http.get(path)).status in (404, 405)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic eHg="},
        {"Authorization": "Nostr !!!"},
        {"Authorization": "Nostr e30="},
        grant(verb="delete"),
        grant(ends=NOW - 1),
        grant(sha256="0" * 64),
        {"Authorization": nipb7.to_header(sign(ALICE, 1, created_at=NOW, tags=[["t", "upload"], ["x", SHA256]]))},
        {"Authorization": nipb7.to_header(sign(ALICE, 24242, created_at=NOW, tags=[["t", "upload"], ["x", SHA256]]))},
    ],
)
async def test_without_a_valid_authorization_for_this_hash_nothing_is_taken(http, tmp_path, headers):
    answer = await http.put("/upload", data=BODY, headers=headers)
    assert answer.status in (401, 403)
    assert answer.headers["X-Reason"]
    assert (await http.head(f"/{SHA256}")).status == 404
    assert left_over(tmp_path / "blobs") == []


async def test_a_forged_authorization_is_refused(http):
    event = sign(ALICE, 24242, created_at=NOW, tags=[["t", "upload"], ["x", SHA256], ["expiration", str(NOW + 60)]])
    forged = event.to_json().replace(ALICE.public, BOB.public)
    answer = await http.put(
        "/upload", data=BODY, headers={"Authorization": "Nostr " + base64.b64encode(forged.encode()).decode()}
    )
    assert answer.status == 401


async def test_an_upload_that_is_too_large_is_refused_before_it_is_read(small):
    answer = await put(small, b"x" * 1_001)
    assert answer.status == 413


async def test_an_upload_of_unknown_length_is_cut_off_at_the_cap(small, tmp_path):
    async def endless():
        while True:
            yield b"x" * 600

    with contextlib.suppress(aiohttp.ClientError):  # the connection may be gone before the answer is read
        answer = await small.put("/upload", data=endless(), headers=grant())
        assert answer.status == 413
    assert left_over(tmp_path / "small") == []


async def test_quotas_hold_for_one_key_and_for_all_together(small):
    assert (await put(small, b"1" * 900)).status == 200
    refused = await put(small, b"2" * 900)
    assert (refused.status, "`key_quota_bytes`" in refused.headers["X-Reason"]) == (413, True)
    assert (await put(small, b"3" * 900, BOB)).status == 200
    assert (await put(small, b"4" * 500)).status == 200
    refused = await put(small, b"5" * 500, BOB)
    assert (refused.status, "`quota_bytes`" in refused.headers["X-Reason"]) == (413, True)


async def test_an_upload_that_breaks_off_leaves_nothing_behind(relay, tmp_path):
    _reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
    token = grant()["Authorization"]
    head = f"PUT /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY[:100])
    await writer.drain()
    blobs = tmp_path / "blobs"
    for _ in range(500):
        if left_over(blobs):
            break
        await asyncio.sleep(0.01)
    writer.close()
    for _ in range(500):
        if not left_over(blobs):
            break
        await asyncio.sleep(0.01)
    assert left_over(blobs) == []


async def test_an_uploader_who_stalls_is_let_go(small):
    async def stalling():
        yield b"x"
        await asyncio.sleep(60)

    answer = await small.put("/upload", data=stalling(), headers=grant())
    assert answer.status == 408


async def test_a_blob_is_kept_until_its_last_uploader_deletes_it(http):
    await put(http, BODY)
    await put(http, BODY, BOB)
    stranger = await http.delete(f"/{SHA256}", headers=grant(ALICE, "delete", "0" * 64))
    assert stranger.status == 401
    assert (await http.delete(f"/{SHA256}", headers=grant(ALICE, "delete"))).status == 200
    assert (await http.delete(f"/{SHA256}", headers=grant(ALICE, "delete"))).status == 403
    assert (await http.get(f"/{SHA256}")).status == 200
    assert (await http.delete(f"/{SHA256}", headers=grant(BOB, "delete"))).status == 200
    assert (await http.get(f"/{SHA256}")).status == 404


async def test_a_keys_uploads_are_listed(http):
    await put(http, BODY)
    await put(http, b"other", BOB)
    listed = await (await http.get(f"/list/{ALICE.public}")).json()
    assert [blob["sha256"] for blob in listed] == [SHA256]
    assert await (await http.get(f"/list/{ALICE.public}?until=5")).json() == []
    assert (await http.get(f"/list/{ALICE.public}?since=x")).status == 400


async def test_an_upload_may_be_asked_for_first(small):
    assert (await small.head("/upload", headers=grant() | {"X-Content-Length": "1000"})).status == 200
    assert (await small.head("/upload", headers=grant() | {"X-Content-Length": "1001"})).status == 413
    assert (await small.head("/upload", headers=grant())).status == 400


async def test_a_page_of_another_origin_may_do_all_that(http):
    answer = await http.options(
        "/upload", headers={"Origin": "https://example.com", "Access-Control-Request-Method": "PUT"}
    )
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "PUT" in answer.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
