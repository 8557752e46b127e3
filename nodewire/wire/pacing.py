"""How long a node takes for its part of a job's turn: what its customer asks when a ring has slowed down. NIPS.md,
"Control documents".

It is the node's own word. Who says too little is found by trying a ring without it, who says too much is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from nodewire.errors import NodewireError
from nodewire.wire.frames import Document
from nodewire.wire.link import Link

ASK, ANSWER = "pace", "paced"
"""The types of the question {job} and of its answer {job, us}."""
MAX_US = 2**40


class _Job(Protocol):
    @property
    def members(self) -> set[str]: ...

    @property
    def turn_us(self) -> Callable[[], int] | None: ...


class Pacing:
    """One node's part in it, as asker and as asked. `job` finds one that is open here."""

    def __init__(self, job: Callable[[str], _Job | None]) -> None:
        self._job = job
        self._asked: dict[tuple[str, str], asyncio.Future[int]] = {}

    def heard(self, link: Link, document: Document) -> bool:
        """Whether a control document was about this; then it has been seen to."""
        name = document.get("job")
        if document["t"] not in (ASK, ANSWER) or not isinstance(name, str):
            return False
        if document["t"] == ASK:
            self._answer(link, name)
        elif (asked := self._asked.get((link.peer, name))) is not None and not asked.done():
            us = document.get("us")
            asked.set_result(us if type(us) is int and 0 <= us <= MAX_US else MAX_US)
        return True

    def _answer(self, link: Link, name: str) -> None:
        job = self._job(name)
        if job is not None and job.turn_us is not None and link.peer in job.members:
            link.send_control({"t": ANSWER, "job": name, "us": min(job.turn_us(), MAX_US)})

    async def ask(self, reaching: Awaitable[Link], peer: str, request: str, patience_s: float) -> int | None:
        """What `peer` says that its part of a turn takes, in microseconds; None if it does not answer in time.

        `reaching` becomes the link to it.
        """
        answer = self._asked.setdefault((peer, request), asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(patience_s):
                (await reaching).send_control({"t": ASK, "job": request})
                return await answer
        except (NodewireError, TimeoutError):
            return None
        finally:
            self._asked.pop((peer, request), None)
