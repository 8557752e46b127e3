"""Has chat templates rendered in a process apart (`sandbox`), which is replaced when it dies."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.chat import MAX_REQUEST_BYTES, PREFIX, WALL_S
from nodewire.errors import BadInput, TooLarge, WorkerFailed, from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.protocol.model.chat_template import ChatTemplate

_MODULES = tuple(os.path.abspath(path) for path in sys.path)
_PATIENCE_S = 30.0
"""For a process that has to be started on a busy machine, on top of what it takes for an answer."""


class Renderer:
    """`close` it at last. One template is rendered at a time, each in at most `WALL_S`."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def render(
        self,
        chat: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = {},
    ) -> str:
        """The prompt that `messages` are, up to where the assistant's answer begins.

        `variables` are what the template knows by name besides, none of them `RESERVED`; a special token's goes first.

        Raises:
            BadInput: the template cannot be read, or refuses the messages.
            TooLarge: it takes too much time or memory, or makes too long a prompt.
            WorkerFailed: the process broke off.

        """
        known = {**variables, **chat.tokens}
        asked = {"template": chat.template, "known": known, "messages": list(messages), "tools": list(tools)}
        try:
            request = orjson.dumps(asked)
        except (TypeError, ValueError) as error:
            raise BadInput("messages", "not what JSON can hold") from error
        if len(request) > MAX_REQUEST_BYTES:
            raise TooLarge("messages", f"{len(request)} bytes with the template, at most {MAX_REQUEST_BYTES}")
        async with self._turn:
            try:
                async with asyncio.timeout(WALL_S + _PATIENCE_S):
                    answer = await self._ask(request)
            except BaseException as error:  # an answer that is not waited for would be taken for the next one's
                await self._stop()
                if isinstance(error, OSError | EOFError | TimeoutError | ValueError):
                    raise WorkerFailed("chat_template", "the process that renders it broke off") from error
                raise
        if "error" in answer:
            raise from_dict(answer["error"])
        return str(answer["text"])

    async def close(self) -> None:
        async with self._turn:
            await self._stop()

    async def _ask(self, request: bytes) -> dict[str, Any]:
        if self._process is None or self._process.returncode is not None:
            self._process = await _start()
        writing, reading = self._process.stdin, self._process.stdout
        assert writing is not None and reading is not None
        writing.write(PREFIX.pack(len(request)) + request)
        await writing.drain()
        (length,) = PREFIX.unpack(await reading.readexactly(PREFIX.size))
        answer: dict[str, Any] = orjson.loads(await reading.readexactly(length))
        return answer

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _start() -> asyncio.subprocess.Process:
    """It inherits nothing but where modules lie, and what local time is."""
    environment = {
        "PYTHONPATH": os.pathsep.join(_MODULES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "nodewire.chat.sandbox",
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        close_fds=True,
    )
