"""A conversation with a model that runs in this process, without any market: `nodewire chat --local`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nodewire.chat.folder import chat_template
from nodewire.chat.renderer import Renderer
from nodewire.cli.buy.conversation import Answer, Talk, Told, follow, template_for
from nodewire.customer.tokens.token_chunk import Piece
from nodewire.errors import BadInput

if TYPE_CHECKING:
    from nodewire.llm.local.reference import LocalDecoder
    from nodewire.llm.tokens.sampling_params import Sampling


@dataclass(slots=True, kw_only=True)
class TalkHere(Talk):
    """`whole` is used in `thread` alone, whose only work it is.

    What a turn has in common with the one before is not computed again.
    """

    whole: LocalDecoder
    thread: ThreadPoolExecutor

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        folder: Path,
        template: Path | None,
        params: Mapping[str, Any],
        threads: int,
        system: str,
    ) -> Self:
        """`template` is a file, if there is one.

        Raises BadInput: the model's folder has no template either, or what LocalDecoder and parse_params raise.
        """
        known = template_for(template, chat_template(folder))
        thread = stack.enter_context(ThreadPoolExecutor(1, "model"))
        renderer = Renderer()
        stack.push_async_callback(renderer.close)
        whole = await asyncio.get_running_loop().run_in_executor(thread, _load, folder, threads, params)
        return cls(
            renderer=renderer,
            address=str(folder),
            template=known,
            params=params,
            system=system,
            whole=whole,
            thread=thread,
        )

    async def _ask(self, prompt: str, made: Answer, told: Told) -> None:
        async with aclosing(self._pieces(prompt)) as pieces:
            await follow(pieces, made, told, lambda: 0)

    async def _pieces(self, prompt: str) -> AsyncGenerator[Piece]:
        sampling = _sampling(self.whole, {**self.params, "special_tokens": False})
        first = len(self.whole.tokenizer.encode(prompt, special_tokens=False))
        steps = self.whole.steps(prompt, sampling, reuse=True)
        position, ahead = first, await self._next(steps)
        while (step := ahead) is not None:
            ahead = await self._next(steps)
            token, text = step
            ended = "eos" if token in self.whole.config.eos_token_id else "stop"
            if position + 1 in (first + sampling.max_tokens, self.whole.positions) and ended == "stop":
                ended = "length"
            yield Piece(text, (token,), ahead is None, "" if ahead is not None else ended, position)
            position += 1

    async def _next(self, steps: Iterator[tuple[int, str]]) -> tuple[int, str] | None:
        """None: there is no more. A step that is broken off is waited for: the next answer uses the same memory."""
        step = asyncio.get_running_loop().run_in_executor(self.thread, next, steps, None)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    async def ring(self) -> list[dict[str, Any]]:
        raise BadInput("/ring", "there is none: the model runs here")


def _load(folder: Path, threads: int, params: Mapping[str, Any]) -> LocalDecoder:
    from nodewire.llm.local.reference import LocalDecoder

    whole = LocalDecoder(folder, threads=threads, alone=True)
    _sampling(whole, params)
    return whole


def _sampling(whole: LocalDecoder, params: Mapping[str, Any]) -> Sampling:
    from nodewire.llm.tokens.sampling_params import parse_params

    return parse_params(params, whole.positions)
