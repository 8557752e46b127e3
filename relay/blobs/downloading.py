"""A file as the answer to a GET, whole or a range of it, piece by piece as its reader takes it.

Each piece is paid for before it is read. aiohttp's own answer with a file has no such place, and fills the kernel's
buffers of a client that reads nothing as fast as the disk allows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, BinaryIO

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

PIECE_BYTES = 262_144


async def send(
    request: web.Request, path: Path, headers: Mapping[str, str], pay: Callable[[int], Awaitable[None]]
) -> web.StreamResponse:
    """Send what `request` asks for of the file at `path`.

    Raises:
        HTTPRequestRangeNotSatisfiable: the file has no such range.

    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        wanted = _wanted(request, size)
        response = web.StreamResponse(status=200 if request.headers.get("Range") is None else 206, headers=headers)
        response.headers["Accept-Ranges"] = "bytes"
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
        response.content_length = len(wanted)
        await response.prepare(request)
        try:
            for start in range(wanted.start, wanted.stop if request.method != "HEAD" else 0, PIECE_BYTES):
                length = min(PIECE_BYTES, wanted.stop - start)
                await pay(length)
                await response.write(await asyncio.to_thread(_piece, file, start, length))
        except ConnectionError:
            pass  # the reader has left: aiohttp sees to the rest
        except BaseException:
            if request.transport is not None:
                request.transport.abort()  # the status has gone out: nothing else tells the client
            raise
    return response


def _wanted(request: web.Request, size: int) -> range:
    try:
        asked = request.http_range
    except ValueError:
        asked = slice(size, None)
    wanted = range(*asked.indices(size))
    if request.headers.get("Range") is not None and not wanted:
        raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
    return wanted


def _piece(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)
