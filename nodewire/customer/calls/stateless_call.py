"""One job of a stateless model, made as often as it takes: what breaks off or fails verification is bought anew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.customer.job.job import Purchase
from nodewire.customer.job.order import JobOrder
from nodewire.customer.job.purchased_job import MAX_REPAIRS, PurchasedJob, judge
from nodewire.customer.job.retry_policy import SecondChances, may_begin, without
from nodewire.customer.planning.planner import PATIENCE_EPOCHS
from nodewire.errors import NodewireError, NoProvider
from nodewire.plan.codec import EdgeCodec, Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nodewire.customer.audit.verdict_watcher import JobVerification
    from nodewire.customer.job.session import Session
    from nodewire.kind import JobKind
    from nodewire.protocol.job.plan import Terms
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame


@dataclass(slots=True)
class StatelessCall(ABC):
    """What is sent and what comes of it is a subclass's: `frames`, `add_output`, `forget`, `has_output`, `finish`."""

    session: Session
    kind: JobKind
    address: str
    manifest: Manifest
    terms: Terms
    begun: Callable[[Purchase], None]
    """Told every purchase before it is made."""
    edge_codec: EdgeCodec | None
    jobs: list[PurchasedJob] = field(default_factory=list, init=False)
    """All that were bought for it, in their order."""
    begun_anew: int = field(default=0, init=False)
    """How often a job broke off, and was made again by others."""
    repaired: int = field(default=0, init=False)
    """How often it was made again."""
    _chances: SecondChances = field(default_factory=SecondChances, init=False)

    @abstractmethod
    def frames(self) -> list[Frame[Array]]:
        """What the customer sends. Raises BadInput."""

    @abstractmethod
    def positions(self) -> int:
        """About how many there are in all."""

    @abstractmethod
    def add_output(self, out: Frame[Array]) -> None:
        """Keep an output. Raises BadFrame: it is not worth its money."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what came: it is bought anew."""

    @abstractmethod
    def has_output(self) -> bool:
        """Whether anything did."""

    @abstractmethod
    def finish(self) -> None:
        """Raises BadFrame: the outputs have ended, and something is missing."""

    async def buy(self) -> None:
        """Buy all of it. Raises as `Customer.embed`."""
        frames = self.frames()
        failure: NodewireError | None = None
        failures = 0
        while True:
            self.forget()
            made = Purchase(
                self.session,
                JobOrder(self.kind, self.address, self.manifest, {}, frames),
                self.terms,
                self.add_output,
                patience=PATIENCE_EPOCHS if failure is None else 1,
                wish=Wish(self.edge_codec, self.positions()) if self.edge_codec is not None else None,
            )
            bought = PurchasedJob(made)
            self.begun(made)
            try:
                async with made:
                    self.jobs.append(bought)
                    async for _ in made.outputs():
                        pass
                break
            except NodewireError as error:
                await made.paid()
                if failure is not None and (isinstance(error, NoProvider) or not made.is_underway):
                    if isinstance(error, NoProvider) and (terms := self._chances.next(self.terms)):
                        self.terms = terms
                        continue
                    raise failure from error
                may = may_begin(error, made, failures=failures, came=self.has_output())
                if not may or self._chances.believed(error):
                    raise
                self.session.log.info("job %s ended (%s), beginning anew", made.request.id[:8], error)
                failure, failures, self.begun_anew = error, failures + 1, self.begun_anew + 1
                whom = await self._chances.left_out(error, made, self.session)
                self._without(bought, whom)
        self.finish()

    def remaining_terms(self) -> Terms:
        """The terms for what is bought next: without whom this did without, and less what it cost."""
        for bought in self.jobs:
            self._without(bought, ())
        return self.terms

    async def verify(self, progress: Callable[[JobVerification], None] = lambda found: None) -> None:
        """Wait for the verdicts, and buy anew what failed, until nothing fails. Raises as `buy`."""
        for repair in range(MAX_REPAIRS + 1):
            bought = self.jobs[-1]
            found = await judge(bought, self.session, progress)
            if found.failed_chunk() is None or repair == MAX_REPAIRS:
                return
            self._without(bought, found.culprits())
            self.repaired += 1
            await self.buy()

    def _without(self, bought: PurchasedJob, whom: Collection[str]) -> None:
        """Go on without these providers, and with what is left of the budget."""
        self.terms = without(self.terms, whom, 0 if bought.counted else bought.purchase.spent_msat)
        bought.counted = True
