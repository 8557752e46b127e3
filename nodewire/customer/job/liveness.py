"""Whether the providers of one job are there, as far as its customer can know."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nodewire.errors import Busy, NodewireError, NotAllowed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from nodewire.wire.node import Node

PRESENCE_S = 1.25
"""Within which a provider must be reached, if others say that it is gone: three round trips of 300 ms, and a third of
a second for a busy machine."""
LATE_S = 0.25
"""More than twice the longest wait of late between two outputs, after which all providers are asked."""
KEPT = 0.9
"""What an output leaves of the longest wait before it: one that was long, once, does not count for ever."""


class ProviderLiveness:
    """Asks providers for a sign of life: before others say that one is gone, if an output is late.

    One that has stopped is noticed by its neighbours after 1 s of silence, and their word is not believed before the
    customer has asked it, too. A question that was put when the output became late has been open for long by then. It
    is repeated until it is answered: a way that was cut and carries again is not taken for a death.
    """

    def __init__(self, node: Node, addresses: Mapping[str, Sequence[str]]) -> None:
        """`addresses`: on the wire, of each provider by public key; none if it dials itself."""
        self._node, self._addresses = node, addresses
        self._questions: dict[str, _Question] = {}
        """Since the last output, by provider."""
        self._longest_s: float | None = None
        """The longest wait of late between two outputs; None before the first."""

    async def wait_for_output(self, output: asyncio.Future[Any], ended: asyncio.Future[Any]) -> None:
        """Return when one of the two is done. Answers of before an output are forgotten: at it, all were there.

        An `output` with an error is none: what ended the job is asked about next, and those answers are wanted.
        """
        began = asyncio.get_running_loop().time()
        late_s = None if self._longest_s is None else LATE_S + 2 * self._longest_s
        done, _ = await asyncio.wait((output, ended), timeout=late_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            for provider in self._addresses:
                self._question(provider)
            await asyncio.wait((output, ended), return_when=asyncio.FIRST_COMPLETED)
        if output.done() and output.exception() is None:
            waited_s = 0.0 if self._longest_s is None else asyncio.get_running_loop().time() - began
            self._longest_s = max(KEPT * (self._longest_s or 0.0), waited_s)
            self._forget()

    def _forget(self) -> None:
        for question in self._questions.values():
            question.answer.cancel()
        self._questions.clear()

    async def close(self) -> None:
        questions = [question.answer for question in self._questions.values()]
        self._forget()
        await asyncio.gather(*questions, return_exceptions=True)

    async def absent(self, providers: Sequence[str]) -> set[str]:
        """Those of `providers` that are out of reach, or silent for `PRESENCE_S`.

        Who refuses is there. One that answered is asked again.
        """
        there = await asyncio.gather(*(self._question(provider).is_answered_well() for provider in providers))
        return {provider for provider, is_there in zip(providers, there, strict=True) if not is_there}

    def _question(self, provider: str) -> _Question:
        question = self._questions.get(provider)
        if question is None or question.answer.done():
            question = self._questions[provider] = _Question(self._ask(provider))
        return question

    async def _ask(self, provider: str) -> bool:
        """Whether `provider` is there, as it says or refuses to; it is asked until it does either."""
        if not self._addresses[provider]:
            return True
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PRESENCE_S):
                    try:
                        return await (await self._node.link(provider, self._addresses[provider])).is_alive()
                    except (Busy, NotAllowed):  # it says so itself
                        return True
                    except NodewireError:
                        return False


class _Question:
    """Whether one provider is there; open until it answers."""

    def __init__(self, answer: Coroutine[Any, Any, bool]) -> None:
        self.answer = asyncio.create_task(answer)
        self._asked_s = asyncio.get_running_loop().time()

    async def is_answered_well(self) -> bool:
        """Whether the provider is there, after `PRESENCE_S` since it was asked at the latest."""
        left_s = self._asked_s + PRESENCE_S - asyncio.get_running_loop().time()
        await asyncio.wait([self.answer], timeout=max(left_s, 0.0))
        return self.answer.done() and not self.answer.cancelled() and self.answer.result()
