"""A node's blobs: what is in the cache is right, whatever servers send."""

import asyncio
import hashlib
import os
import time

import aiohttp
import pytest
from aiohttp import web

from nodewire.errors import BadConfig, BadHash, BadInput, LinkLost, NotAllowed, NotFound, TimedOut, TooLarge
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nipb7
from nodewire.protocol.model.manifest import BlobRef
from nodewire.store.blobs import Blobs
from relay import BlobLimits, Config, serve

BODY = os.urandom(1_000_000)
REF = BlobRef(sha256=hashlib.sha256(BODY).hexdigest(), bytes=len(BODY))
KEYS, OTHER = Keys(b"\x03" * 32), Keys(b"\x04" * 32)


@pytest.fixture
async def server(tmp_path):
    async with serve(Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "served")) as relay:
        yield relay.http_url


@pytest.fixture
async def strange():
    """start(handler) -> the URL of a server that answers every GET with `handler`; or `every` request."""
    runners = []

    async def start(handler, *, every=False):
        app = web.Application(client_max_size=2 * len(BODY))
        app.router.add_route("*" if every else "GET", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_file_is_uploaded_from_where_it_lies_and_not_copied(server, tmp_path):
    source = tmp_path / "weights"
    source.write_bytes(BODY)
    async with Blobs([server], tmp_path / "a", KEYS) as mine, Blobs([server], tmp_path / "b") as theirs:
        assert await mine.upload(source) == REF
        assert not mine.path(REF.sha256).exists()
        assert (await theirs.get(REF)).read_bytes() == BODY
    async with Blobs([server], tmp_path / "a", KEYS, max_bytes=len(BODY) - 1) as small:
        with pytest.raises(TooLarge):
            await small.upload(source)


async def test_what_one_node_puts_another_gets(server, tmp_path):
    source = tmp_path / "weights"
    source.write_bytes(BODY)
    async with Blobs([server], tmp_path / "a", KEYS) as mine, Blobs([server], tmp_path / "b") as theirs:
        assert await mine.put(source) == REF
        assert await theirs.has(REF)
        path = await theirs.get(REF)
        assert path.read_bytes() == BODY
        assert await theirs.get(REF.sha256) == path
        assert await mine.put(BODY) == REF


async def test_what_another_owns_too_its_uploader_cannot_take_away(server, tmp_path):
    async with Blobs([server], tmp_path / "a", KEYS) as theirs, Blobs([server], tmp_path / "b", OTHER) as mine:
        for own, left in ((False, False), (True, True)):
            await theirs.put(BODY)
            await mine.put(BODY, own=own)
            token = nipb7.build_token(
                KEYS,
                "delete",
                now_s=int(time.time()),
                expires_at_s=int(time.time()) + 60,
                hashes=[REF.sha256],
                content="",
            )
            async with (
                aiohttp.ClientSession(headers={"Authorization": nipb7.to_header(token)}) as http,
                http.delete(f"{server}/{REF.sha256}") as said,
            ):
                assert said.ok
            async with Blobs([server], tmp_path / f"c-{own}") as reader:
                assert await reader.has(REF) is left


async def test_without_servers_there_is_the_cache(tmp_path):
    async with Blobs([], tmp_path) as blobs:
        assert await blobs.put(BODY) == REF
        assert (await blobs.get(REF)).read_bytes() == BODY
        assert not await blobs.has("0" * 64)
        with pytest.raises(NotFound):
            await blobs.get("0" * 64)


async def test_the_next_server_is_tried_when_one_is_gone_or_has_not_got_it(server, strange, tmp_path, unused_tcp_port):
    async def empty(_):
        raise web.HTTPNotFound

    servers = [f"http://127.0.0.1:{unused_tcp_port}", await strange(empty), server]
    async with Blobs(servers, tmp_path / "c", KEYS) as blobs:
        assert await blobs.put(BODY) == REF
        blobs.path(REF.sha256).unlink()
        assert (await blobs.get(REF)).read_bytes() == BODY


async def test_other_bytes_are_never_cached(strange, server, tmp_path):
    async def lying(_):
        return web.Response(body=BODY[:-1] + b"?")

    liar = await strange(lying)
    async with Blobs([liar], tmp_path / "c") as blobs:
        with pytest.raises(BadHash):
            await blobs.get(REF)
        assert not blobs.path(REF.sha256).exists()
    async with Blobs([liar, server], tmp_path / "d") as blobs, Blobs([server], tmp_path / "e", KEYS) as honest:
        await honest.put(BODY)
        assert (await blobs.get(REF)).read_bytes() == BODY


@pytest.mark.parametrize("announced", [True, False])
async def test_more_than_was_agreed_is_not_taken(strange, tmp_path, announced):
    sent = 0

    async def endless(request):
        nonlocal sent
        response = web.StreamResponse()
        if announced:
            response.content_length = 10**12
        await response.prepare(request)
        while sent < 50_000_000:
            await response.write(b"x" * 100_000)
            sent += 100_000
        return response

    async with Blobs([await strange(endless)], tmp_path) as blobs:
        with pytest.raises(TooLarge):
            await blobs.get(REF.sha256, max_bytes=500_000)
    assert sent < 50_000_000
    assert list((tmp_path / "incoming").iterdir()) == []


async def test_a_reference_above_the_cap_is_refused_without_asking_anyone(tmp_path):
    async with Blobs(["http://127.0.0.1:1"], tmp_path, max_bytes=100) as blobs:
        with pytest.raises(TooLarge):
            await blobs.get(REF)
        with pytest.raises(TooLarge):
            await blobs.put(BODY)


async def test_a_download_that_breaks_off_is_resumed_where_it_broke(strange, tmp_path):
    asked = []

    async def breaking(request):
        start = request.http_range.start or 0
        asked.append(start)
        response = web.StreamResponse(status=206 if start else 200)
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"
        response.content_length = len(BODY) - start
        await response.prepare(request)
        await response.write(BODY[start : start + 400_000])
        if start + 400_000 < len(BODY):
            await asyncio.sleep(0.05)  # let it arrive
            request.transport.abort()
        return response

    async with Blobs([await strange(breaking)], tmp_path) as blobs:
        assert (await blobs.get(REF)).read_bytes() == BODY
    assert asked[0] == 0
    assert len(asked) == 3
    assert all(start > 0 for start in asked[1:])


async def test_a_poisoned_first_part_does_not_spoil_an_honest_servers_rest(strange, server, tmp_path):
    async def poisoning(request):
        response = web.StreamResponse()
        response.content_length = len(BODY)
        await response.prepare(request)
        await response.write(b"?" * 300_000)
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response

    async with Blobs([server], tmp_path / "e", KEYS) as honest:
        await honest.put(BODY)
    async with Blobs([await strange(poisoning), server], tmp_path / "c") as blobs:
        assert (await blobs.get(REF)).read_bytes() == BODY


async def test_calls_for_the_same_blob_share_one_download(strange, tmp_path):
    asked, came, go = 0, asyncio.Event(), asyncio.Event()

    async def slow(_):
        nonlocal asked
        asked += 1
        came.set()
        await go.wait()
        return web.Response(body=BODY)

    async with Blobs([await strange(slow)], tmp_path) as blobs:
        calls = [asyncio.create_task(blobs.get(REF)) for _ in range(5)]
        await came.wait()
        calls[0].cancel()
        go.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert len(set(results[1:])) == 1
    assert asked == 1


async def test_a_redirect_to_elsewhere_is_not_followed(strange, tmp_path):
    async def elsewhere(_):
        raise web.HTTPFound("http://127.0.0.1:1/" + REF.sha256)

    async with Blobs([await strange(elsewhere)], tmp_path) as blobs:
        with pytest.raises(NotAllowed):
            await blobs.get(REF)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_an_upload_is_not_redirected_elsewhere(strange, tmp_path, status):
    came = []

    async def inside(request):
        came.append(request.path)
        return web.Response()

    async def redirecting(request):
        return web.Response(status=status, headers={"Location": f"{internal}/admin"})

    internal = await strange(inside, every=True)
    async with Blobs([await strange(redirecting, every=True)], tmp_path, KEYS) as blobs:
        with pytest.raises(NotAllowed, match=str(status)):
            await blobs.put(BODY)
    assert came == []


async def test_an_upload_that_is_cut_off_is_made_again(strange, tmp_path, monkeypatch):
    monkeypatch.setattr("nodewire.store.blobs._BUSY_S", (0.001, 0.001))
    uploads = 0

    async def cut_off_twice(request):
        nonlocal uploads
        if request.method == "HEAD":
            return web.Response(status=404)
        uploads += 1
        if uploads <= 2:
            request.transport.abort()
        return web.Response()

    async with Blobs([await strange(cut_off_twice, every=True)], tmp_path, KEYS) as blobs:
        assert await blobs.put(BODY) == REF
    assert uploads == 3


async def test_an_upload_that_every_server_refuses_says_why(tmp_path, unused_tcp_port):
    limits = BlobLimits(blob_bytes=10)
    config = Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "served", blob_limits=limits)
    async with serve(config) as relay, Blobs([relay.http_url], tmp_path / "c", KEYS) as blobs:
        with pytest.raises((TooLarge, LinkLost)):
            await blobs.put(BODY)
        assert (await blobs.put(b"small")).bytes == 5
    async with Blobs([f"http://127.0.0.1:{unused_tcp_port}"], tmp_path / "c", KEYS) as blobs:
        with pytest.raises(LinkLost):
            await blobs.put(b"small")


async def test_a_server_that_has_too_much_to_do_is_asked_again(tmp_path):
    """The results of a round come all at once; whose upload was refused lost its work."""
    config = Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "served", blob_limits=BlobLimits(uploads=1))
    bodies = [bytes([number]) * 300_000 for number in range(8)]
    async with serve(config) as relay, Blobs([relay.http_url], tmp_path / "c", KEYS) as blobs:
        refs = await asyncio.gather(*(blobs.put(body) for body in bodies))
        assert [ref.bytes for ref in refs] == [300_000] * 8
    async with serve(config) as relay, Blobs([relay.http_url], tmp_path / "d") as others:
        for ref in refs:
            assert (await others.get(ref)).exists()


async def test_a_server_that_always_has_too_much_to_do_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("nodewire.store.blobs._BUSY_S", (0.001, 0.001))
    asked = []

    async def busy(request):
        asked.append(request.path)
        return web.Response(status=503, headers={"X-Reason": "uploads"})

    app = web.Application()
    app.router.add_put("/upload", busy)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with Blobs([url], tmp_path / "c", KEYS) as blobs:
            with pytest.raises(LinkLost, match="503 uploads"):
                await blobs.put(b"small")
    finally:
        await runner.cleanup()
    assert len(asked) == 3


async def test_wrong_use_is_named(tmp_path):
    with pytest.raises(BadConfig, match="servers"):
        Blobs(["ftp://example.com"], tmp_path)
    async with Blobs(["http://127.0.0.1:1"], tmp_path) as blobs:
        with pytest.raises(BadInput, match="sha256"):
            await blobs.get("../../etc/passwd")
        with pytest.raises(BadConfig, match="keys"):
            await blobs.put(b"unsigned")


async def test_a_server_that_trickles_is_given_up(strange, server, tmp_path, monkeypatch):
    """Each byte comes in time, the whole never would."""
    monkeypatch.setattr("nodewire.store.blobs.SLOW_S", 0.2)

    async def trickle(request):
        response = web.StreamResponse(headers={"Content-Length": str(len(BODY))})
        await response.prepare(request)
        for at in range(len(BODY)):
            await response.write(BODY[at : at + 1])
            await asyncio.sleep(0.02)
        return response

    slow = await strange(trickle)
    async with Blobs([slow], tmp_path / "a") as alone:
        async with asyncio.timeout(60):
            with pytest.raises(TimedOut, match="bytes a second"):
                await alone.get(REF)
    async with Blobs([server], tmp_path / "b", KEYS) as mine:
        await mine.put(BODY)
    async with Blobs([slow, server], tmp_path / "c") as both, asyncio.timeout(60):
        assert (await both.get(REF)).read_bytes() == BODY


async def test_a_server_that_takes_nothing_holds_no_upload(server, tmp_path, monkeypatch):
    monkeypatch.setattr("nodewire.store.blobs.SLOW_S", 1.5)
    monkeypatch.setattr("nodewire.store.blobs.LEAST_BYTES_S", 10**8)

    async def deaf(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"HEAD"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(60)  # and reads no more

    large = os.urandom(8_000_000)
    listening = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=2**14)
    stuck = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with Blobs([stuck, server], tmp_path / "a", KEYS) as mine, asyncio.timeout(60):
        await mine.put(large)
    async with Blobs([stuck], tmp_path / "b", KEYS) as alone, asyncio.timeout(60):
        with pytest.raises(LinkLost):
            await alone.put(large)
    listening.close()
