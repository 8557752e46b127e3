"""`nodewire.Customer`: the Python API.

async with nodewire.Customer.open("customer.toml") as customer:
    async for piece in customer.generate(model, "def main():"):
        print(piece.text, end="")
    vectors = await customer.embed(model, ["a sentence", "another"])
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Self

import numpy as np

from nodewire.config import CustomerConfig
from nodewire.customer.again import MAX_AGAIN
from nodewire.customer.bought import MAX_REPAIRS, Bought, judgement
from nodewire.customer.embedding import Embedding
from nodewire.customer.generation import Generation, Piece
from nodewire.customer.purchase import Purchase
from nodewire.customer.scoring import Scoring
from nodewire.customer.session import Session
from nodewire.customer.starting import start
from nodewire.customer.summary import summary, together
from nodewire.errors import BadInput, NotAllowed
from nodewire.kind import JobKind, installed
from nodewire.plan.codec import EdgeCodec
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import Terms

MAX_PROMPT_BYTES = 1_000_000


class Customer:
    """Buys work from the market. Made by `open`, used in `async with`."""

    def __init__(self, config: CustomerConfig) -> None:
        self.last: dict[str, Any] = {}
        """What the last finished job was and cost: request id, plan, payments, timing."""
        self.terms = Terms(max_chunk_msat=config.max_chunk_msat, max_total_msat=config.max_total_msat)
        self.purchases: deque[Purchase] = deque(maxlen=(MAX_AGAIN + 1) * (MAX_REPAIRS + 1))
        """The newest that were begun, the last one last: as many as one call may begin."""
        self._config = config
        self._session: Session | None = None
        self._stack = AsyncExitStack()

    @classmethod
    def open(cls, config: Path | str | CustomerConfig) -> Self:
        """A customer with the configuration in a TOML file. Raises BadConfig."""
        return cls(config if isinstance(config, CustomerConfig) else CustomerConfig.load(Path(config)))

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            self._session = await start(self._stack, self._config)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    @property
    def session(self) -> Session:
        if self._session is None:
            raise NotAllowed("customer", "use it inside `async with`")
        return self._session

    async def generate(
        self,
        model: str,
        prompt: str,
        *,
        terms: Terms | None = None,
        wait: bool = False,
        edge_codec: EdgeCodec | None = None,
        **params: Any,
    ) -> AsyncGenerator[Piece, None]:
        """Continue `prompt` on the manifest at address `model`; `params` are those of kind 8843 (max_tokens ...).

        With `wait` (and terms whose `verify` is "sampled") it ends when the committee has judged what was sampled of
        it. Tokens from a chunk that failed on are bought again, from others; `last` has the text as it is then, and in
        `repaired` from which tokens on the pieces that came late replace what came before.

        `edge_codec` has tensors between providers narrowed, which is lossy: to bf16 or int8 on every edge, or where it
        pays (auto). `terms.codecs` says it edge by edge.

        Raises:
            BadInput: a parameter or the prompt is out of range.
            NoQuorum, NoProvider, OverBudget, TimedOut, LinkLost ...: nothing, or no more, was bought.
        """
        if not prompt or len(prompt.encode()) > MAX_PROMPT_BYTES:
            raise BadInput("prompt", f"empty, or more than {MAX_PROMPT_BYTES} bytes")
        manifest = await self._manifest(model, "generate")
        kind = self._kind(manifest)
        checked = dict(kind.check(manifest, params))
        made = Generation(
            self.session,
            kind,
            model,
            manifest,
            prompt,
            terms or self.terms,
            checked,
            begun=self.purchases.append,
            edge_codec=edge_codec,
        )
        async with aclosing(made.stream()) as pieces:  # who leaves in the middle has it settled before going on
            async for piece in pieces:
                yield piece
        if wait:
            async with aclosing(made.verify()) as pieces:
                async for piece in pieces:
                    yield piece
        self.last = {
            **together([self._finished(bought.purchase) for bought in made.jobs]),
            "ids": made.ids,
            "text": "".join(made.texts),
            "repaired": made.repaired,
            **await self._judgement(made.jobs),
        }

    async def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        terms: Terms | None = None,
        wait: bool = False,
        edge_codec: EdgeCodec | None = None,
    ) -> np.ndarray:
        """The vectors of `texts`, float32 [len(texts), width].

        With `wait` (and terms whose `verify` is "sampled") it returns when the committee has judged what was sampled
        of it; if that failed, all of it has been bought again from others (`last["repaired"]` says how often).
        `edge_codec`, and what it raises, as `generate`.
        """
        manifest = await self._manifest(model, "embed")
        made = Embedding(
            self.session,
            self._kind(manifest),
            model,
            manifest,
            texts,
            terms or self.terms,
            self.purchases.append,
            edge_codec,
        )
        return await self._called(made, wait=wait)

    async def run(
        self,
        model: str,
        rows: np.ndarray,
        *,
        terms: Terms | None = None,
        wait: bool = False,
        edge_codec: EdgeCodec | None = None,
    ) -> np.ndarray:
        """What a classifier or regressor makes of rows, float32 [n, inputs]: scores, float32 [n, classes].

        `wait` as `embed` has it; `edge_codec`, and what it raises, as `generate`.
        """
        manifest = await self._manifest(model, "run")
        made = Scoring(
            self.session,
            self._kind(manifest),
            model,
            manifest,
            rows,
            terms or self.terms,
            self.purchases.append,
            edge_codec,
        )
        return await self._called(made, wait=wait)

    async def _called(self, made: Embedding, *, wait: bool) -> np.ndarray:
        await made.buy()
        if wait:
            await made.verify()
        self.last = {
            **together([self._finished(bought.purchase) for bought in made.jobs]),
            "repaired": made.repaired,
            **await self._judgement(made.jobs),
        }
        return made.vectors()

    async def _judgement(self, jobs: Sequence[Bought]) -> dict[str, Any]:
        """What the committee made of the jobs, what came back, and what was paid and got for earlier ones meanwhile."""
        settler, got = self.session.settler, self.session.refunds.got_msat
        await settler.caught_up()
        back = sum(got.pop(one.purchase.request.id, 0) for one in jobs)
        judged = judgement(jobs)
        judged["refunded_msat"] += back
        judged["earlier"] = {**settler.take_old(), "refunded_msat": sum(got.values())}
        got.clear()
        return judged

    async def _manifest(self, address: str, mode: str) -> Manifest:
        manifest = await self.session.market.manifest(address)
        if manifest.mode != mode:
            raise BadInput("model", f"{manifest.name} serves {manifest.mode}, not {mode}")
        return manifest

    def _kind(self, manifest: Manifest) -> JobKind:
        kinds = installed()
        if manifest.kind not in kinds:
            raise BadInput("model", f"no installed package serves kind {manifest.kind}")
        return kinds[manifest.kind]

    def _finished(self, bought: Purchase) -> dict[str, Any]:
        """The summary, with the time that a hop took: a step's time less its tasks' compute, over the ring's hops."""
        timing, results = bought.timing, bought.answers.results.values()
        compute_ms = sum(said.compute_us[0] for said in results) / 1000
        hops = len(bought.manifest.tasks)
        return {
            **summary(bought),
            "planning_ms": round(timing.planning_ms(), 1),
            "first_token_ms": round(timing.first_output_ms(), 1),
            "tokens_per_s": round(timing.rate(), 1),
            "step_ms_p50": round(timing.step_ms(), 2),
            "hop_ms_p50": round(max(0.0, timing.step_ms() - compute_ms) / hops, 3),
        }
