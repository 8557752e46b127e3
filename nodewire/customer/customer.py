"""`nodewire.Customer`: the Python API.

async with nodewire.Customer.open("customer.toml") as customer:
    async for piece in customer.generate(model, "def main():"):
        print(piece.text, end="")
    vectors = await customer.embed(model, ["a sentence", "another"])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from nodewire.config import CustomerConfig
from nodewire.customer.again import may_begin, without
from nodewire.customer.generation import Generation, Piece, only, uncertified, verdicts
from nodewire.customer.purchase import Purchase
from nodewire.customer.session import Session
from nodewire.customer.starting import start
from nodewire.customer.summary import summary, together
from nodewire.errors import BadFrame, BadInput, NodewireError, NotAllowed
from nodewire.kind import JobKind, installed
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import Terms

MAX_PROMPT_BYTES = 1_000_000
MAX_TEXTS_BYTES = 16_000_000


class Customer:
    """Buys work from the market. Made by `open`, used in `async with`."""

    def __init__(self, config: CustomerConfig) -> None:
        self.last: dict[str, Any] = {}
        """What the last finished job was and cost: request id, plan, payments, timing."""
        self.terms = Terms(max_chunk_msat=config.max_chunk_msat, max_total_msat=config.max_total_msat)
        self.purchases: list[Purchase] = []
        """All that were begun, the newest last."""
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
        self, model: str, prompt: str, *, terms: Terms | None = None, wait: bool = False, **params: Any
    ) -> AsyncIterator[Piece]:
        """Continue `prompt` on the manifest at address `model`; `params` are those of kind 8843 (max_tokens ...).

        With `wait` (and terms whose `verify` is "sampled") it ends when the committee has judged what was sampled of
        it. Tokens from a chunk that failed on are bought again, from others; `last` has the text as it is then, and in
        `repaired` from which tokens on the pieces that came late replace what came before.

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
            self.session, kind, model, manifest, prompt, terms or self.terms, checked, begun=self.purchases.append
        )
        async for piece in made.stream():
            yield piece
        if wait:
            async for piece in made.verify():
                yield piece
        self.last = {
            **together([self._finished(bought.purchase) for bought in made.jobs]),
            "ids": made.ids,
            "text": "".join(made.texts),
            "repaired": made.repaired,
            "verdicts": verdicts(made.jobs),
            "uncertified": uncertified(made.jobs),
            "refunded_msat": sum(one.verified.refunded_msat for one in made.jobs if one.verified is not None),
        }

    async def embed(self, model: str, texts: Sequence[str], *, terms: Terms | None = None) -> np.ndarray:
        """The vectors of `texts`, float32 [len(texts), width]. Raises as `generate`."""
        body = orjson.dumps(list(texts))
        if not texts or len(body) > MAX_TEXTS_BYTES:
            raise BadInput("texts", f"none, or more than {MAX_TEXTS_BYTES} bytes")
        manifest = await self._manifest(model, "embed")
        edge = next(e for e in manifest.edges if e.source == "customer")
        frame = Frame(edge.name, 0, (Array("uint8", (len(body),), body),), {"chunk": 0})
        rows: list[np.ndarray] = []

        def accept(out: Frame[Array]) -> None:
            matrix = _matrix(out)
            if sum(map(len, rows)) + len(matrix) > len(texts) or (rows and matrix.shape[1:] != rows[0].shape[1:]):
                raise BadFrame("vectors", "more than one for a text, or of another width than those before")

        kind, left = self._kind(manifest), terms or self.terms
        jobs: list[Purchase] = []
        while True:
            bought = Purchase(self.session, kind, model, manifest, left, {}, [frame], accept)
            self.purchases.append(bought)
            try:
                async with bought:
                    jobs.append(bought)
                    async for out in bought.outputs():
                        rows.append(_matrix(out))
                break
            except NodewireError as error:
                if not may_begin(error, bought, failures=len(jobs) - 1, came=bool(rows)):
                    raise
                self.session.log.info("job %s ended (%s), beginning anew", bought.request.id[:8], error)
                left = without(left, bought.blamed, bought.spent_msat)
                rows.clear()
        vectors = np.concatenate(rows)
        if len(vectors) != len(texts):
            raise BadFrame("vectors", f"{len(vectors)} came for {len(texts)} texts")
        self.last = together([self._finished(one) for one in jobs])
        return vectors

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


def _matrix(frame: Frame[Array]) -> np.ndarray:
    array = only(frame, "vectors")
    if array.dtype != "float32" or len(array.shape) != 2 or not all(array.shape):
        raise BadFrame("vectors", f"{array.dtype} {list(array.shape)}, not a float32 matrix")
    return np.frombuffer(array.data, np.float32).reshape(array.shape)
