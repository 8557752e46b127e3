"""One job of a stateless model, made as often as it takes: what breaks off or fails verification is bought anew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from nodewire.customer.again import may_begin, without
from nodewire.customer.bought import MAX_REPAIRS, Bought, judge
from nodewire.customer.purchase import Purchase
from nodewire.customer.session import Session
from nodewire.customer.verified import Verified
from nodewire.errors import BadFrame, NodewireError, PaymentRequired
from nodewire.kind import JobKind
from nodewire.plan.codec import EdgeCodec, Wish
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import LOCAL, Terms


@dataclass(slots=True)
class Called(ABC):
    """What is sent and what comes of it is a subclass's: `frames`, `take`, `forget`, `came`, `finish`."""

    session: Session
    kind: JobKind
    address: str
    manifest: Manifest
    terms: Terms
    begun: Callable[[Purchase], None]
    """Told every purchase before it is made."""
    edge_codec: EdgeCodec | None
    jobs: list[Bought] = field(default_factory=list, init=False)
    """All that were bought for it, in their order."""
    repaired: int = field(default=0, init=False)
    """How often it was made again."""

    @abstractmethod
    def frames(self) -> list[Frame[Array]]:
        """What the customer sends. Raises BadInput."""

    @abstractmethod
    def positions(self) -> int:
        """About how many there are in all."""

    @abstractmethod
    def take(self, out: Frame[Array]) -> None:
        """Keep an output. Raises BadFrame: it is not worth its money."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what came: it is bought anew."""

    @abstractmethod
    def came(self) -> bool:
        """Whether anything did."""

    @abstractmethod
    def finish(self) -> None:
        """Raises BadFrame: the outputs have ended, and something is missing."""

    async def buy(self) -> None:
        """Buy all of it. Raises as `Customer.embed`."""
        frames = self.frames()
        failures = 0
        while True:
            self.forget()
            unfit: list[str] = []
            made = Purchase(
                self.session,
                self.kind,
                self.address,
                self.manifest,
                self.terms,
                {},
                frames,
                partial(self._take, unfit),
                wish=Wish(self.edge_codec, self.positions()) if self.edge_codec is not None else None,
            )
            bought = Bought(made)
            self.begun(made)
            try:
                async with made:
                    self.jobs.append(bought)
                    async for _ in made.outputs():
                        pass
                break
            except NodewireError as error:
                # What is no output is its producer's fault: it has what came in before it checked, or had to.
                if not may_begin(error, made, failures=failures, came=self.came(), is_unfit=bool(unfit)):
                    raise
                self.session.log.info("job %s ended (%s), beginning anew", made.request.id[:8], error)
                blamed = made.blamed | {made.producer(edge) for edge in unfit} - {LOCAL}
                if isinstance(error, PaymentRequired):
                    blamed = await self.session.settler.still_owed(blamed)
                self._without(bought, blamed)
                failures += 1
        self.finish()

    def _take(self, unfit: list[str], out: Frame[Array]) -> None:
        """Take an output; `unfit` gets the edge of one that is none. Raises BadFrame."""
        try:
            self.take(out)
        except BadFrame:
            unfit.append(out.edge)
            raise

    def left(self) -> Terms:
        """The terms for what is bought next: without whom this did without, and less what it cost."""
        for bought in self.jobs:
            self._without(bought, ())
        return self.terms

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

    def _without(self, bought: Bought, whom: Collection[str]) -> None:
        """Go on without these providers, and with what is left of the budget."""
        self.terms = without(self.terms, whom, 0 if bought.counted else bought.purchase.spent_msat)
        bought.counted = True
