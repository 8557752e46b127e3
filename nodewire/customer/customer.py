"""`nodewire.Customer`: the Python API.

async with nodewire.Customer.open("customer.toml") as customer:
    async for piece in customer.generate(model, "def main():"):
        print(piece.text, end="")
    vectors = await customer.embed(model, ["a sentence", "another"])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from nodewire.config import CustomerConfig
from nodewire.customer.planning import PATIENCE_EPOCHS
from nodewire.customer.purchase import Purchase
from nodewire.customer.session import Session
from nodewire.customer.starting import start
from nodewire.customer.summary import summary, together
from nodewire.errors import (
    BadFrame,
    BadInput,
    LinkLost,
    NodewireError,
    NotAllowed,
    PaymentRequired,
    TimedOut,
    WorkerFailed,
)
from nodewire.kind import installed
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import MAX_EXCLUDED, Terms

MAX_PROMPT_BYTES = 1_000_000
MAX_TEXTS_BYTES = 16_000_000
_GOES_ON = (LinkLost, TimedOut, WorkerFailed, PaymentRequired)
MAX_AGAIN = 3
"""How often a generation that nobody could go on with is begun anew, as a new job from where it stopped."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a generation: its token ids and the text that became printable with them."""

    text: str
    ids: tuple[int, ...]
    end: bool
    reason: str


class Customer:
    """Buys work from the market. Made by `open`, used in `async with`."""

    def __init__(self, config: CustomerConfig) -> None:
        self.last: dict[str, Any] = {}
        """What the last finished job was and cost: request id, plan, payments, timing."""
        self.terms = Terms(max_chunk_msat=config.max_chunk_msat, max_total_msat=config.max_total_msat)
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
        self, model: str, prompt: str, *, terms: Terms | None = None, **params: Any
    ) -> AsyncIterator[Piece]:
        """Continue `prompt` on the manifest at address `model`; `params` are those of kind 8843 (max_tokens ...).

        Raises:
            BadInput: a parameter or the prompt is out of range.
            NoQuorum, NoProvider, OverBudget, TimedOut, LinkLost ...: nothing, or no more, was bought.
        """
        if not prompt or len(prompt.encode()) > MAX_PROMPT_BYTES:
            raise BadInput("prompt", f"empty, or more than {MAX_PROMPT_BYTES} bytes")
        manifest = await self._manifest(model, "generate")
        edge = next(e for e in manifest.edges if e.source == "customer")
        text = Array("uint8", (len(prompt.encode()),), prompt.encode())
        ids: list[int] = []
        texts: list[str] = []
        finished: list[dict[str, Any]] = []
        left = terms or self.terms
        failure: NodewireError | None = None

        def accept(out: Frame[Array]) -> None:
            if len(ids) - before + len(_piece(out).ids) > bought.params["max_tokens"]:
                raise BadFrame("tokens", "more came than were asked for")

        while True:
            before, tensors = len(ids), (text, *_history(ids))
            frame = Frame(edge.name, 0, tensors, {"chunk": 0})
            patience = 0 if failure is not None else PATIENCE_EPOCHS
            bought = self._purchase(model, manifest, left, params, [frame], accept, patience=patience)
            try:
                async with bought:
                    async for out in bought.outputs():
                        piece = _piece(out)
                        ids += piece.ids
                        texts.append(piece.text)
                        yield piece
            except NodewireError as error:
                if failure is not None and not bought.is_underway:
                    raise failure from error
                if not (isinstance(error, _GOES_ON) and bought.is_underway and len(finished) < MAX_AGAIN):
                    raise
                if isinstance(error, PaymentRequired) and len(ids) > before:
                    raise  # not an old debt, which is being settled, but this job's
                failure = error
                # Nobody was left to go on: a new job begins where this one ended.
                self.session.log.info("job %s ended (%s), beginning anew", bought.request.id[:8], error)
                left = _remaining(left, bought)
                if left.max_total_msat < bought.plan.chunk_msat or bought.params["max_tokens"] <= len(ids) - before:
                    raise
                params = {**bought.params, "max_tokens": bought.params["max_tokens"] - (len(ids) - before)}
                finished.append(self._finished(bought))
            else:
                finished.append(self._finished(bought))
                break
        self.last = {**together(finished), "ids": ids, "text": "".join(texts)}

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

        bought = self._purchase(model, manifest, terms, {}, [frame], accept)
        async with bought:
            async for out in bought.outputs():
                rows.append(_matrix(out))
        vectors = np.concatenate(rows)
        if len(vectors) != len(texts):
            raise BadFrame("vectors", f"{len(vectors)} came for {len(texts)} texts")
        self.last = self._finished(bought)
        return vectors

    async def _manifest(self, address: str, mode: str) -> Manifest:
        manifest = await self.session.market.manifest(address)
        if manifest.mode != mode:
            raise BadInput("model", f"{manifest.name} serves {manifest.mode}, not {mode}")
        return manifest

    def _purchase(
        self,
        address: str,
        manifest: Manifest,
        terms: Terms | None,
        params: Mapping[str, Any],
        inputs: Sequence[Frame[Array]],
        accept: Callable[[Frame[Array]], None],
        *,
        patience: int = PATIENCE_EPOCHS,
    ) -> Purchase:
        kinds = installed()
        if manifest.kind not in kinds:
            raise BadInput("model", f"no installed package serves kind {manifest.kind}")
        kind = kinds[manifest.kind]
        return Purchase(
            self.session, kind, address, manifest, terms or self.terms, params, inputs, accept, patience=patience
        )

    def _finished(self, bought: Purchase) -> dict[str, Any]:
        """The summary, with the time that a hop took: a step's time less its tasks' compute, over the ring's hops."""
        timing, results = bought.timing, bought.results.values()
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


def _history(ids: Sequence[int]) -> tuple[Array, ...]:
    """What an earlier job generated, as the prompt's second tensor."""
    if not ids:
        return ()
    array = np.array(ids, np.int64)
    return (Array("int64", array.shape, array.tobytes()),)


def _remaining(terms: Terms, bought: Purchase) -> Terms:
    """The terms less what was spent and who failed."""
    excluded = tuple(dict.fromkeys((*terms.excluded, *sorted(bought.blamed))))[:MAX_EXCLUDED]
    left_msat = max(0, terms.max_total_msat - bought.spent_msat)
    return terms.model_copy(update={"max_total_msat": left_msat, "excluded": excluded})


def _piece(frame: Frame[Array]) -> Piece:
    array, meta = _only(frame, "tokens"), frame.meta
    if array.dtype != "int64" or array.shape != (1,):
        raise BadFrame("tokens", f"{array.dtype} {list(array.shape)}, not one int64")
    ids = np.frombuffer(array.data, np.int64)
    return Piece(
        str(meta.get("text", "")), tuple(int(i) for i in ids), meta.get("end") is True, str(meta.get("reason", ""))
    )


def _only(frame: Frame[Array], name: str) -> Array:
    if len(frame.tensors) != 1:
        raise BadFrame(name, f"{len(frame.tensors)} tensors, one is expected")
    return frame.tensors[0]


def _matrix(frame: Frame[Array]) -> np.ndarray:
    array = _only(frame, "vectors")
    if array.dtype != "float32" or len(array.shape) != 2 or not all(array.shape):
        raise BadFrame("vectors", f"{array.dtype} {list(array.shape)}, not a float32 matrix")
    return np.frombuffer(array.data, np.float32).reshape(array.shape)
