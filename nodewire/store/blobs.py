"""Blobs by SHA-256: fetched from Blossom servers into a local cache, checked while they come in; put into both.

https://github.com/hzrd149/blossom (BUD-01, BUD-02)

A server is trusted with nothing: what it sends is bounded before it is written, hashed while it is written, and takes
its place in the cache (cache/ab/<sha256>, by rename) only under the right hash. So what stands in the cache is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import aiohttp

from nodewire.errors import (
    BadConfig,
    BadHash,
    BadInput,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    TimedOut,
    TooLarge,
)
from nodewire.nostr.nips import nipb7
from nodewire.protocol.model.manifest import MAX_BLOB_BYTES, BlobRef
from nodewire.store.sweep import INCOMING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from nodewire.nostr.keys import Keys

SMALL_BYTES = 1 << 20
_CHUNK_BYTES = 262_144
_AUTHORIZED_S = 3_600  # an upload of gigabytes takes its time; the authorization is for this one hash only
_TAKEN = (200, 201, 202)
_BUSY = (429, 503)
_BUSY_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses after which a server that has too much to do is asked again, each half to one and a half as long: a round's
results come all at once."""
_ROUNDS = 3  # over all servers; what has come in is kept between them
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10, sock_read=30)
LEAST_BYTES_S = 16_384
SLOW_S = 60.0
"""A server that sends or takes less than that a second, over so long, is given up: it would hold a round for ever."""
_HEX = frozenset("0123456789abcdef")


class Blobs:
    """The blobs of one node. `servers` are http(s) URLs, tried in this order; `keys` sign uploads.

    Use as `async with`, or `close()` it.
    """

    def __init__(
        self,
        servers: Sequence[str],
        cache_dir: Path,
        keys: Keys | None = None,
        *,
        max_bytes: int = MAX_BLOB_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for server in servers:
            if not server.startswith(("http://", "https://")):
                raise BadConfig("servers", f"{server!r} is not an http(s) URL")
        self._servers = tuple(server.rstrip("/") for server in servers)
        self._cache, self._keys, self._max_bytes, self._clock = cache_dir, keys, max_bytes, clock
        self._incoming = cache_dir / INCOMING
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._session: aiohttp.ClientSession | None = None
        self._downloads: dict[tuple[str, int], asyncio.Task[Path]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends downloads under way; those who wait for them are cancelled."""
        tasks = list(self._downloads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def path(self, sha256: str) -> Path:
        """Where the blob stands, if it is cached."""
        return self._cache / sha256[:2] / sha256

    async def has(self, blob: BlobRef | str) -> bool:
        """Whether the blob is cached, or a server says it has it."""
        sha256 = _hash(blob)
        if self.path(sha256).is_file():
            return True
        for server in self._servers:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                if await self._holds(server, sha256):
                    return True
        return False

    async def get(self, blob: BlobRef | str, max_bytes: int | None = None, *, inline: bytes | None = None) -> Path:
        """The file with exactly these bytes, from the cache or else from the first server that delivers.

        `inline` are its bytes, where they came another way.

        Calls for the same blob at the same time share one download. A download that breaks off is resumed, there or at
        the next server.

        Raises:
            TooLarge: it has more than `max_bytes` (or the node's cap, or what the reference says).
            NotFound: no server has it.
            BadHash: a server sent other bytes, and none sent the right ones.
            LinkLost, TimedOut: it could not be fetched now.

        """
        if inline is not None:
            self.keep(inline)
        sha256 = _hash(blob)
        cap = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        if isinstance(blob, BlobRef):
            if blob.bytes > cap:
                raise TooLarge("blob", f"{blob.bytes} bytes, at most {cap}")
            cap = blob.bytes
        cached = self.path(sha256)
        if _is_whole(cached, sha256) and _use(cached):
            if cached.stat().st_size > cap:
                raise TooLarge("blob", f"{cached.stat().st_size} bytes, at most {cap}")
            return cached
        key = (sha256, cap)
        task = self._downloads.get(key)
        if task is None:
            task = self._downloads[key] = asyncio.create_task(self._download(sha256, cap))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # one caller's giving up must not end it for the others

    async def put(self, source: Path | bytes, type_: str = "application/octet-stream", *, own: bool = False) -> BlobRef:
        """Cache the blob and upload it to every server; done when one has it (with no servers: when it is cached).

        `own`: also to servers that have it from others, who could delete it there.

        Raises:
            TooLarge: above the node's cap.
            BadConfig: there are servers but no keys to sign with.
            NotAllowed, TooLarge, LinkLost: no server took it; the last one's reason.

        """
        ref = await asyncio.to_thread(self._keep, source)
        await self._spread(self.path(ref.sha256), ref, type_, own=own)
        return ref

    async def upload(self, source: Path, type_: str = "application/octet-stream") -> BlobRef:
        """As `put`, of a file that is read where it lies and is not cached. A server refuses it if it changes."""
        ref = await asyncio.to_thread(self._hashed, source)
        await self._spread(source, ref, type_, own=False)
        return ref

    async def _spread(self, source: Path, ref: BlobRef, type_: str, *, own: bool) -> None:
        """Upload a file to every server; done when one has it. Raises as `put`."""
        if not self._servers:
            return
        if self._keys is None:
            raise BadConfig("keys", "an upload must be signed")
        uploads = (self._upload(server, source, ref, self._keys, type_, own=own) for server in self._servers)
        outcomes = await asyncio.gather(*uploads)
        if None not in outcomes:
            raise next(error for error in reversed(outcomes) if error is not None)

    def keep(self, data: bytes) -> BlobRef:
        """Cache a small blob that came from elsewhere, such as in an event; `get` finds it from now on.

        A power failure may lose it: small files are hashed again when they are got.

        Raises:
            TooLarge: above SMALL_BYTES.

        """
        if len(data) > SMALL_BYTES:
            raise TooLarge("blob", f"{len(data)} bytes, at most {SMALL_BYTES} at once")
        with _incoming(self._incoming) as part:
            part.write(data)
            sha256 = part.digest.hexdigest()
            part.settle(self.path(sha256), sync=False)
        return BlobRef(sha256=sha256, bytes=len(data))

    def _forget(self, key: tuple[str, int], done: asyncio.Task[Path]) -> None:
        del self._downloads[key]
        if not done.cancelled():
            done.exception()  # seen, even where every caller has given up

    # Uploads

    def _keep(self, source: Path | bytes) -> BlobRef:
        """Copy `source` into the cache, hashing what is copied (the file may change under our hands)."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > self._max_bytes:
            raise TooLarge("blob", f"{size} bytes, at most {self._max_bytes}")
        with _incoming(self._incoming) as part:
            if isinstance(source, bytes):
                part.write(source)
            else:
                with source.open("rb") as file:
                    while chunk := file.read(_CHUNK_BYTES):
                        part.write(chunk)
                        if part.size > self._max_bytes:
                            raise TooLarge("blob", f"at most {self._max_bytes} bytes")
            sha256 = part.digest.hexdigest()
            part.settle(self.path(sha256))
            return BlobRef(sha256=sha256, bytes=part.size)

    def _hashed(self, source: Path) -> BlobRef:
        if (size := source.stat().st_size) > self._max_bytes:
            raise TooLarge("blob", f"{size} bytes, at most {self._max_bytes}")
        with source.open("rb") as file:
            return BlobRef(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=file.tell())

    async def _upload(
        self, server: str, source: Path, ref: BlobRef, keys: Keys, type_: str, *, own: bool
    ) -> NodewireError | None:
        """What went wrong, or None when the server has the blob."""
        try:
            if not own and await self._holds(server, ref.sha256):
                return None
            for wait_s in (*_BUSY_S, None):
                try:
                    status, refusal = await self._send(server, source, ref, keys, type_)
                except aiohttp.ClientConnectorError:
                    raise
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    if wait_s is None:  # an upload that was cut off is as little the caller's fault as a busy server
                        raise
                else:
                    if status not in _BUSY or wait_s is None:
                        return refusal
                await asyncio.sleep(wait_s * (0.5 + random.random()))  # noqa: S311 - spreads tries
            raise AssertionError("the last try returns or raises")
        except (aiohttp.ClientError, TimeoutError) as error:
            return LinkLost(server, str(error) or type(error).__name__)

    async def _send(
        self, server: str, source: Path, ref: BlobRef, keys: Keys, type_: str
    ) -> tuple[int, NodewireError | None]:
        """One upload. Returns the answer's status and, where the server did not take the blob, the error."""
        headers = {"Authorization": self._authorization(keys, ref.sha256), "Content-Type": type_}
        # A redirect would carry the blob and its signature wherever the store says.
        with source.open("rb") as file:
            async with (
                asyncio.timeout(SLOW_S + ref.bytes / LEAST_BYTES_S),
                self._http().put(f"{server}/upload", data=file, headers=headers, allow_redirects=False) as response,
            ):
                return response.status, None if response.status in _TAKEN else _refusal(server, response)

    def _authorization(self, keys: Keys, sha256: str) -> str:
        now_s = int(self._clock())
        token = nipb7.build_token(
            keys, "upload", now_s=now_s, expires_at_s=now_s + _AUTHORIZED_S, hashes=[sha256], content="Upload a blob"
        )
        return nipb7.to_header(token)

    # Downloads

    async def _download(self, sha256: str, cap: int) -> Path:
        failures: dict[str, NodewireError] = {}
        left = list(self._servers)
        with _incoming(self._incoming) as part:
            for _ in range(_ROUNDS):
                for server in list(left):
                    try:
                        await self._stream(server, sha256, cap, part)
                    except (NotFound, NotAllowed, BadHash, TooLarge) as error:  # asking this server again will not help
                        failures[server] = error
                        left.remove(server)
                    except (LinkLost, TimedOut) as error:
                        failures[server] = error
                    else:
                        await asyncio.to_thread(part.settle, self.path(sha256))
                        return self.path(sha256)
        raise _worst(failures.values()) or NotFound("sha256", "no server is known")

    async def _stream(self, server: str, sha256: str, cap: int, part: _Part) -> None:
        """Continue `part` from `server` to its end, and check the hash."""
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={part.size}-"} if part.size else {})
        try:
            async with self._http().get(f"{server}/{sha256}", headers=headers, allow_redirects=False) as response:
                _check_answer(server, response, cap, part)
                part.sources.add(server)
                await _receive(server, response, cap, part)
        except TimeoutError as error:
            raise TimedOut(server, "the server fell silent") from error
        except aiohttp.ClientError as error:
            raise LinkLost(server, str(error) or type(error).__name__) from error
        if part.digest.hexdigest() != sha256:
            blended = part.sources != {server}
            part.restart()
            if not blended:
                raise BadHash("sha256", f"{server} sent other bytes")
            # Another server's part may be what is wrong: this one gets to send all of it.
            await self._stream(server, sha256, cap, part)

    async def _holds(self, server: str, sha256: str) -> bool:
        async with self._http().head(f"{server}/{sha256}", allow_redirects=False) as response:
            return response.status == 200

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, auto_decompress=False)
        return self._session


@dataclass(slots=True)
class _Part:
    """A file on its way in: what is written is hashed and counted. `sources` are the servers that wrote."""

    path: Path
    file: IO[bytes]
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    sources: set[str] = field(default_factory=set)

    def write(self, chunk: bytes) -> None:
        self.file.write(chunk)
        self.digest.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.size, self.digest, self.sources = 0, hashlib.sha256(), set()

    def settle(self, place: Path, *, sync: bool = True) -> None:
        """Move the file to its place; after a power failure it stands there whole or not at all, if `sync`."""
        self.file.flush()
        if sync:
            os.fsync(self.file.fileno())
        place.parent.mkdir(exist_ok=True)
        os.replace(self.path, place)


@contextlib.contextmanager
def _incoming(directory: Path) -> Iterator[_Part]:
    """A part in a new file, removed at the end unless it has settled."""
    descriptor, name = tempfile.mkstemp(dir=directory)
    with os.fdopen(descriptor, "wb") as file:
        try:
            yield _Part(Path(name), file)
        finally:
            Path(name).unlink(missing_ok=True)


def _is_whole(cached: Path, sha256: str) -> bool:
    """Whether a blob is cached; a small one, which nobody may have synced, with the right bytes."""
    try:
        if cached.stat().st_size > SMALL_BYTES:
            return True
        return hashlib.sha256(cached.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _use(cached: Path) -> bool:
    """Say that a blob is used now, for `sweep`; whether it still stands there."""
    try:
        os.utime(cached)
    except OSError:
        return False
    return True


def _hash(blob: BlobRef | str) -> str:
    if isinstance(blob, BlobRef):
        return blob.sha256
    if len(blob) != 64 or not _HEX.issuperset(blob):
        raise BadInput("sha256", "not 64 lowercase hex digits")
    return blob


def _continues(response: aiohttp.ClientResponse, size: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {size}-")


def _check_answer(server: str, response: aiohttp.ClientResponse, cap: int, part: _Part) -> None:
    """Check that the body goes on where `part` ends, and that both are at most `cap` bytes; else `part` restarts."""
    if response.status == 416 and part.size:  # there is nothing after what we have
        part.restart()
        raise LinkLost(server, "cannot resume")
    if response.status not in (200, 206):
        raise _refusal(server, response)
    if response.status == 200 or not _continues(response, part.size):
        part.restart()
    if response.status == 206 and not _continues(response, part.size):
        raise LinkLost(server, "sent another range than was asked for")
    if part.size + (response.content_length or 0) > cap:
        raise TooLarge("blob", f"{server} announces more than {cap} bytes")


async def _receive(server: str, response: aiohttp.ClientResponse, cap: int, part: _Part) -> None:
    """Write the body to `part` as it comes, no more than `cap` bytes and no slower than `LEAST_BYTES_S`."""
    came, since_s = 0, time.monotonic()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        if part.size + len(chunk) > cap:
            part.restart()
            raise TooLarge("blob", f"{server} sends more than {cap} bytes")
        part.write(chunk)
        came += len(chunk)
        if time.monotonic() > since_s + SLOW_S:
            if came < LEAST_BYTES_S * SLOW_S:
                raise TimedOut(server, f"it sends {came / SLOW_S:.0f} bytes a second")
            came, since_s = 0, time.monotonic()


def _refusal(server: str, response: aiohttp.ClientResponse) -> NodewireError:
    """The error that a server's status stands for."""
    reason = f"{response.status} {response.headers.get('X-Reason', '')[:200]}".strip()
    match response.status:
        case 404 | 410:
            return NotFound(server, reason)
        case 413 | 507:
            return TooLarge(server, reason)
        case 408 | 429 | 500 | 502 | 503 | 504:
            return LinkLost(server, reason)
    return NotAllowed(server, reason)


def _worst(errors: Iterable[NodewireError]) -> NodewireError | None:
    """The error that tells most: wrong bytes before a size, a size before a lost link, that before not found."""
    order = (BadHash, TooLarge, TimedOut, LinkLost, NotAllowed, NotFound)
    return min(errors, key=lambda error: order.index(type(error)), default=None)
