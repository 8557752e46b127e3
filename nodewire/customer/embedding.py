"""One call of a stateless model, in as many jobs as it takes: what breaks off or fails verification is bought anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from nodewire.customer.again import may_begin, without
from nodewire.customer.bought import MAX_REPAIRS, Bought, judge
from nodewire.customer.generation import only
from nodewire.customer.purchase import Purchase
from nodewire.customer.session import Session
from nodewire.customer.verified import Verified
from nodewire.errors import BadFrame, BadInput, NodewireError, PaymentRequired
from nodewire.kind import JobKind
from nodewire.plan.codec import CHARS_PER_TOKEN, EdgeCodec, Wish
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import Terms

MAX_TEXTS_BYTES = 16_000_000


@dataclass(slots=True)
class Embedding:
    """`rows` are the vectors so far, float32 [n, width]; `jobs` all that were bought for them, in their order."""

    session: Session
    kind: JobKind
    address: str
    manifest: Manifest
    texts: Sequence[Any] | np.ndarray
    """One for each vector."""
    terms: Terms
    begun: Callable[[Purchase], None]
    """Told every purchase before it is made."""
    edge_codec: EdgeCodec | None = None
    rows: list[np.ndarray] = field(default_factory=list)
    jobs: list[Bought] = field(default_factory=list)
    repaired: int = 0
    """How often it was made again."""

    async def buy(self) -> None:
        """Buy all vectors. Raises as `Customer.embed`."""
        frames = self.frames()
        failures = 0
        while True:
            self.rows.clear()
            made = Purchase(
                self.session,
                self.kind,
                self.address,
                self.manifest,
                self.terms,
                {},
                frames,
                self._accept,
                wish=Wish(self.edge_codec, self.positions()) if self.edge_codec is not None else None,
            )
            bought = Bought(made)
            self.begun(made)
            try:
                async with made:
                    self.jobs.append(bought)
                    async for out in made.outputs():
                        self.rows.append(_matrix(out))
                break
            except NodewireError as error:
                if not may_begin(error, made, failures=failures, came=bool(self.rows)):
                    raise
                self.session.log.info("job %s ended (%s), beginning anew", made.request.id[:8], error)
                blamed = made.blamed
                if isinstance(error, PaymentRequired):
                    blamed = await self.session.settler.still_owed(blamed)
                self._without(bought, blamed)
                failures += 1
        if (came := sum(map(len, self.rows))) != len(self.texts):
            raise BadFrame("vectors", f"{came} came for {len(self.texts)} texts")

    def frames(self) -> list[Frame[Array]]:
        """What the customer sends. Raises BadInput."""
        body = orjson.dumps(list(self.texts))
        if not self.texts or len(body) > MAX_TEXTS_BYTES:
            raise BadInput("texts", f"none, or more than {MAX_TEXTS_BYTES} bytes")
        for n, text in enumerate(self.texts, start=1):
            if not text.strip():
                raise BadInput("texts", f"number {n} is empty")
        edge = next(e for e in self.manifest.edges if e.source == "customer")
        return [Frame(edge.name, 0, (Array("uint8", (len(body),), body),), {"chunk": 0})]

    def positions(self) -> int:
        """About how many there are in all: a token has some four characters."""
        return sum(-(-len(text) // CHARS_PER_TOKEN) for text in self.texts)

    async def verify(self, progress: Callable[[Verified], None] = lambda found: None) -> None:
        """Wait for the verdicts, and buy anew what failed, until nothing fails. Raises as `buy`."""
        for repair in range(MAX_REPAIRS + 1):
            bought = self.jobs[-1]
            found = await judge(bought, self.session, progress)
            if found.failed_chunk() is None or repair == MAX_REPAIRS:
                return
            self._without(bought, found.culprits())
            self.repaired += 1
            await self.buy()

    def vectors(self) -> np.ndarray:
        """Float32 [len(texts), width]."""
        return np.concatenate(self.rows)

    def _without(self, bought: Bought, whom: Collection[str]) -> None:
        """Go on without these providers, and with what is left of the budget."""
        self.terms = without(self.terms, whom, 0 if bought.counted else bought.purchase.spent_msat)
        bought.counted = True

    def _accept(self, out: Frame[Array]) -> None:
        matrix = _matrix(out)
        many = sum(map(len, self.rows)) + len(matrix) > len(self.texts)
        if many or (self.rows and matrix.shape[1:] != self.rows[0].shape[1:]):
            raise BadFrame("vectors", "more than one for a text, or of another width than those before")


def _matrix(frame: Frame[Array]) -> np.ndarray:
    array = only(frame, frame.edge)
    if array.dtype != "float32" or len(array.shape) != 2 or not all(array.shape):
        raise BadFrame("vectors", f"{array.dtype} {list(array.shape)}, not a float32 matrix")
    return np.frombuffer(array.data, np.float32).reshape(array.shape)
