"""One generation, in as many jobs as it takes: what breaks off is begun anew, what fails verification is made again."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nodewire.customer.audit.verdict_watcher import JobVerification
from nodewire.customer.job.job import Purchase
from nodewire.customer.job.order import JobOrder
from nodewire.customer.job.purchased_job import MAX_REPAIRS, PurchasedJob, judge
from nodewire.customer.job.retry_policy import SecondChances, may_begin, without
from nodewire.customer.migration.contender import Contender
from nodewire.customer.migration.migrator import Migration, Migrator
from nodewire.customer.migration.race import Outcome, Race
from nodewire.customer.payments.job_payments import most_positions
from nodewire.customer.planning.planner import PATIENCE_EPOCHS, Draw
from nodewire.customer.tokens.logprobs import Likely
from nodewire.customer.tokens.reader import TokenReader
from nodewire.errors import NodewireError, NoProvider
from nodewire.plan.codec import CHARS_PER_TOKEN, EdgeCodec, Wish
from nodewire.protocol.tensors.frame import Array, Frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from nodewire.customer.audit.verdict_watcher import JobVerification
    from nodewire.customer.job.estimate import Estimate
    from nodewire.customer.job.session import Session
    from nodewire.customer.models.text import ModelText
    from nodewire.customer.tokens.logprobs import Likely
    from nodewire.customer.tokens.token_chunk import Piece
    from nodewire.kind import JobKind
    from nodewire.protocol.job.plan import Terms
    from nodewire.protocol.model.manifest import Manifest


@dataclass(slots=True)
class Generation:
    """`ids`, `texts` and `likely` are what is good so far; `jobs` all that were bought for it, in their order."""

    session: Session
    kind: JobKind
    address: str
    manifest: Manifest
    text: ModelText
    prompt: str
    terms: Terms
    params: dict[str, Any]
    begun: Callable[[Purchase], None]
    """Told every purchase before it is made."""
    edge_codec: EdgeCodec | None = None
    resplit_msat: int = 0
    """What moves to other rings may cost beside it."""
    moved: Callable[[Migration], None] = lambda move: None
    """Told what became of each of them."""
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    likely: list[tuple[Likely, ...]] = field(default_factory=list)
    """Of each id, if that was asked for."""
    jobs: list[PurchasedJob] = field(default_factory=list)
    lost: list[PurchasedJob] = field(default_factory=list)
    """Jobs that were bought to go on with, and not gone on with: no token is theirs alone."""
    moves: list[Migration] = field(default_factory=list)
    positions: int = 0
    """Of the prompt and of what is generated, by the newest driver's word."""
    repaired: list[int] = field(default_factory=list)
    """From which token on something was made again."""
    begun_anew: int = field(default=0, init=False)
    """How often a job broke off, and another went on from the text so far."""
    _chances: SecondChances = field(default_factory=SecondChances)
    _race: Race = field(init=False)
    _moving: Migrator = field(init=False)

    async def quote(self) -> tuple[Draw, Estimate]:
        """What it would come to now, of which nothing is bought. Raises as `Purchase.quote`."""
        return await self._purchase(self.terms, PATIENCE_EPOCHS).quote()

    async def stream(self) -> AsyncGenerator[Piece, None]:
        """Buy the rest of the generation. Raises as `Customer.generate`."""
        failure: NodewireError | None = None
        again = 0
        race = self._race = Race(self._decided, lambda contender: self._without(contender.bought, set()))
        moving = self._moving = Migrator(self, race, self.resplit_msat)
        try:
            while True:
                patience = 1 if failure is not None else PATIENCE_EPOCHS
                race.begin(self.job(self.terms, patience))
                try:
                    while (piece := await race.next(self.ids)) is not None:
                        self.ids += piece.ids
                        self.texts.append(piece.text)
                        self.likely.append(piece.likely)
                        self.positions = piece.position + 1
                        yield piece
                        moving.look()
                    return
                except NodewireError as error:
                    if race.is_whole:  # nothing is lacking
                        raise
                    await race.clear()
                    bought = race.lead.bought
                    purchase = bought.purchase
                    if failure is not None and (isinstance(error, NoProvider) or not purchase.is_underway):
                        if isinstance(error, NoProvider) and (terms := self._chances.next(self.terms)):
                            self.terms = terms
                            continue
                        raise failure from error
                    came = len(self.ids) - bought.first
                    if came > self.manifest.chunk:  # chunk 1 is whole: the first token is chunk 0's
                        again = 0
                    may = may_begin(error, purchase, failures=again, came=came > 0)
                    if not may or self._chances.believed(error):
                        raise
                    # A new job begins where this one ended.
                    self.session.log.info("job %s ended (%s), beginning anew", purchase.request.id[:8], error)
                    failure, again, self.begun_anew = error, again + 1, self.begun_anew + 1
                    whom = await self._chances.left_out(error, purchase, self.session)
                    self._without(bought, whom)
                    if self.terms.max_total_msat < purchase.plan.chunk_msat or self.remaining() <= 0:
                        raise
        finally:
            await moving.end()
            await race.end()
            for bought in (*self.jobs, *self.lost):
                await bought.purchase.paid()

    def job(self, terms: Terms, patience: int) -> Contender:
        """Another job of the text so far, under these terms; it begins at once."""
        bought, tokens = PurchasedJob(self._purchase(terms, patience), len(self.ids)), self.remaining()
        self.begun(bought.purchase)
        positions = most_positions(self.manifest, bought.purchase.inputs)
        return Contender(bought, positions, tokens, self._began)

    def _began(self, contender: Contender) -> None:
        if contender is self._race.lead:
            self.jobs.append(contender.bought)

    def _decided(self, contender: Contender, outcome: Outcome) -> None:
        if contender.is_begun:
            (self.jobs if outcome == "moved" else self.lost).append(contender.bought)
        self.moved(self._moving.decided(contender, outcome))

    async def verify(
        self, progress: Callable[[JobVerification], None] = lambda found: None
    ) -> AsyncGenerator[Piece, None]:
        """Wait for the verdicts on all jobs, and buy anew from the first chunk that failed, until nothing fails.

        The pieces that are made again follow those that were yielded before; `repaired` says where they belong.
        """
        for _ in range(MAX_REPAIRS):
            bad = await self._first_failed(progress)
            if bad is None:
                return
            self.repaired.append(bad)
            del self.ids[bad:]
            del self.texts[bad:]
            del self.likely[bad:]
            async with aclosing(self.stream()) as pieces:
                async for piece in pieces:
                    yield piece
        await self._first_failed(progress)

    async def _first_failed(self, progress: Callable[[JobVerification], None]) -> int | None:
        """The first token that a culprit of failed work had a hand in; the culprits are excluded from now on."""
        failed = []
        for bought in self.jobs:
            if bought.verified is not None:
                continue
            purchase, found = bought.purchase, await judge(bought, self.session, progress)
            self._without(bought, found.culprits())
            chunk = found.failed_chunk()
            if chunk is not None:
                # What was not sampled of its work is no better: everything from its first chunk on is made again.
                chunk = 0 if found.culprits() & {*purchase.plan.providers()} else chunk
                failed.append(bought.first + (1 + (chunk - 1) * self.manifest.chunk if chunk else 0))
        return min((n for n in failed if n < len(self.ids)), default=None)

    def remaining(self) -> int:
        """How many tokens are still wanted."""
        return int(self.params["max_tokens"]) - len(self.ids)

    def _without(self, bought: PurchasedJob, whom: set[str]) -> None:
        """Go on without these providers, and with what is left of the budget."""
        self.terms = without(self.terms, whom, 0 if bought.counted else bought.purchase.spent_msat)
        bought.counted = True

    def _purchase(self, terms: Terms, patience: int) -> Purchase:
        text = self.prompt.encode()
        tensors: tuple[Array, ...] = (Array("uint8", (len(text),), text),)
        if self.ids:  # what an earlier job generated, as the prompt's second tensor
            history = np.array(self.ids, np.int64)
            tensors += (Array("int64", history.shape, history.tobytes()),)
        edge = next(e for e in self.manifest.edges if e.source == "customer")
        most = self.remaining()
        inputs = [Frame(edge.name, 0, tensors, {"chunk": 0})]
        params = {"positions": most_positions(self.manifest, inputs, most), **self.params, "max_tokens": most}
        reader = TokenReader(self.text, params, self.ids, most_positions(self.manifest, inputs))
        return Purchase(
            self.session,
            JobOrder(self.kind, self.address, self.manifest, params, inputs),
            terms,
            reader.piece,
            patience=patience,
            wish=self._wish(most),
        )

    def _wish(self, most: int) -> Wish | None:
        if self.edge_codec is None:
            return None
        return Wish(self.edge_codec, -(-len(self.prompt) // CHARS_PER_TOKEN) + len(self.ids), most)
