"""`nodewire.Customer`: the Python API.

async with nodewire.Customer.open("customer.toml") as customer:
    model = "smollm2"  # or an address: see `find_model`
    async for piece in customer.generate(model, "def main():"):
        print(piece.text, end="")
    vectors = await customer.embed(model, ["a sentence", "another"])
    outputs = await customer.run(model, {"pixels": pixels, "ids": ids})
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nodewire.config import CustomerConfig
from nodewire.core.bounded_dict import BoundedDict
from nodewire.customer import bootstrap, static_swarm
from nodewire.customer.calls.arrays import array_of, like
from nodewire.customer.calls.batch_splitter import BatchSplitter, Programs
from nodewire.customer.calls.embeddings import Embedding
from nodewire.customer.calls.generation import Generation
from nodewire.customer.calls.tensor_call import Evaluation, jobs
from nodewire.customer.calls.transcript import transcribed
from nodewire.customer.contacts import people
from nodewire.customer.job.job import Purchase
from nodewire.customer.job.purchased_job import MAX_REPAIRS, PurchasedJob, judgement
from nodewire.customer.job.retry_policy import MAX_AGAIN
from nodewire.customer.job.summary import summary, together
from nodewire.customer.migration.migrator import MAX_MOVES, Migration
from nodewire.customer.models.names import ModelAt
from nodewire.customer.models.text import ModelText
from nodewire.errors import BadInput, NodewireError, NotAllowed
from nodewire.kind import JobKind, installed
from nodewire.plan.codec import EdgeCodec
from nodewire.protocol.job.plan import Plan, Terms
from nodewire.protocol.market.token_price import per_million_msat
from nodewire.protocol.model.chat_template import ChatTemplate
from nodewire.swarm.member import SwarmCustomer

if TYPE_CHECKING:
    import numpy as np

    from nodewire.customer.calls.stateless_call import StatelessCall
    from nodewire.customer.job.estimate import Estimate
    from nodewire.customer.job.session import Session
    from nodewire.customer.tokens.token_chunk import Piece
    from nodewire.plan.codec import EdgeCodec
    from nodewire.protocol.model.manifest import Manifest

MAX_PROMPT_BYTES = 1_000_000
Begun = Callable[[Purchase], None]
Ended = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class CallListener:
    """Who is told of one call while it goes on: by that, of several under way, each is told from the others."""

    begun: Begun | None = None
    """Told every purchase before it is made."""
    ended: Ended | None = None
    """Told what `Customer.last` is when the call has ended."""
    moved: Callable[[Migration], None] = lambda move: None
    """Told of every move to other providers, which only generations make."""


@dataclass(frozen=True, slots=True)
class Quote:
    """What a generation would come to. `holders`: how many live providers held each task."""

    manifest: Manifest
    plan: Plan
    holders: Mapping[str, int]
    estimate: Estimate

    def document(self) -> dict[str, Any]:
        """The quote as plain data; prices in msat, of a chunk and of a million tokens."""
        chunk = self.manifest.chunk
        return {
            "model": self.manifest.name,
            "epoch": self.plan.epoch,
            "tasks": [
                {
                    "task": one.task,
                    "provider": one.provider,
                    "price_msat": one.price_msat,
                    "holders": self.holders.get(one.task, 0),
                }
                for one in self.plan.tasks
            ],
            "chunk": chunk,
            "chunk_msat": self.plan.chunk_msat,
            "msat_per_million": int(per_million_msat(self.plan.chunk_msat, chunk)),
            "share_ppm": self.plan.verification.share_ppm,
            **self.estimate.document(),
        }


NO_LISTENER = CallListener()
_USE = {
    "generate": "`nodewire generate` continues a prompt with it",
    "embed": "it takes texts (--text, `nodewire embed`), or tensors if it is registered with --as-tensors",
    "run": "`nodewire run --input` sends it tensors",
}
MAX_READ = 4
"""Models whose programs, or tokenizers, a customer keeps in mind."""


class Customer:
    """Buys work from the market. Made by `open`, used in `async with`."""

    def __init__(self, config: CustomerConfig | SwarmCustomer, *, is_buyer: bool = True) -> None:
        self.last: dict[str, Any] = {}
        """What the last finished job was and cost: request id, plan, payments, timing. Of several that are under way at
        once each tells its own to its listener's `ended`."""
        self.terms = Terms(
            max_chunk_msat=config.max_chunk_msat, max_total_msat=config.max_total_msat, lookahead=config.lookahead
        )
        self.purchases: deque[Purchase] = deque(maxlen=(MAX_AGAIN + 1 + MAX_MOVES) * (MAX_REPAIRS + 1))
        """The newest that were begun, the last one last: as many as one call may begin."""
        self._config, self._is_buyer = config, is_buyer
        self._batchings = BoundedDict[str, BatchSplitter](MAX_READ)
        """By manifest's digest, the newest last."""
        self._texts = BoundedDict[str, ModelText](MAX_READ)
        """By manifest's digest, the newest last."""
        self._session: Session | None = None
        self._stack = AsyncExitStack()

    @classmethod
    def open(cls, config: Path | str | CustomerConfig | SwarmCustomer, *, is_buyer: bool = True) -> Self:
        """A customer with the configuration in a TOML file. Raises BadConfig.

        One process at a time buys with a key: entering raises Busy in a second one. Who is no buyer only settles.
        """
        return cls(CustomerConfig.load(Path(config)) if isinstance(config, Path | str) else config, is_buyer=is_buyer)

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            self._session = await self._opened(self._config)
            await self._know(self._config)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _opened(self, config: CustomerConfig | SwarmCustomer) -> Session:
        if isinstance(config, SwarmCustomer):
            return await static_swarm.start(self._stack, config)
        return await bootstrap.start(self._stack, config, is_buyer=self._is_buyer)

    async def _know(self, config: CustomerConfig | SwarmCustomer) -> None:
        """Find out whom the configuration means. Raises as `people`."""
        if isinstance(config, SwarmCustomer):
            return
        whom, found = config.whom, dict[str, tuple[str, ...]]()
        for field, named in (("trusted", whom.trusted), ("ends", whom.ends), ("excluded", whom.excluded)):
            found[field] = await people(self.session.pool, named, f"whom.{field}")
        self.terms = self.terms.model_copy(update={"driver": whom.driver, "regions": whom.regions, **found})

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    @property
    def session(self) -> Session:
        if self._session is None:
            raise NotAllowed("customer", "use it inside `async with`")
        return self._session

    async def find_model(self, model: str) -> ModelAt:
        """The address and version of what is called `model`, an address or a name: as `ModelNames.find` has it.

        Every method finds its `model` so, and asks relays for a name in each call: who makes many finds it once.

        Raises:
            BadInput: it is no name and no address.
            Ambiguous: it may be several models; `candidates` has their addresses.
            NotFound: nobody has such a model.

        """
        return ModelAt(model) if self.session.models is None else await self.session.models.find(model)

    @property
    def pinned(self) -> tuple[str, ...]:
        """The names that the configuration pins."""
        return () if isinstance(self._config, SwarmCustomer) else tuple(self._config.names)

    async def generate(
        self,
        model: str | ModelAt,
        prompt: str,
        *,
        terms: Terms | None = None,
        wait: bool = False,
        edge_codec: EdgeCodec | None = None,
        transcribe: bool = False,
        resplit_msat: int | None = None,
        listener: CallListener = NO_LISTENER,
        **params: Any,
    ) -> AsyncGenerator[Piece, None]:
        """Continue `prompt` on the model that is called `model`, or that was found.

        `params` are those of kind 8843 (max_tokens ...).

        With `wait` (and terms whose `verify` is "sampled") it ends when the committee has judged what was sampled of
        it. Tokens from a chunk that failed on are bought again, from others; `last` has the text as it is then, and in
        `repaired` from which tokens on the pieces that came late replace what came before.

        `edge_codec` has tensors between providers narrowed, which is lossy: to bf16 or int8 on every edge, or where it
        pays (auto). `terms.codecs` says it edge by edge. `transcribe`: `last` has a signed transcript, too (a document
        of nodewire.protocol.job.transcript). `resplit_msat`: what it may cost to move to quicker rings on the way, in
        place of the configuration's; `last["moves"]` has all moves.

        Raises:
            BadInput: a parameter or the prompt is out of range.
            Ambiguous, NotFound: as `find_model`.
            NoQuorum, NoProvider, OverBudget, TimedOut, LinkLost ...: nothing, or no more, was bought.

        """
        _check(prompt)
        address, manifest = await self._manifest(model, "generate")
        kind = self._kind(manifest)
        checked = dict(kind.check(manifest, params))
        terms = terms or self.terms
        made = Generation(
            self.session,
            kind,
            address,
            manifest,
            await self._text(manifest),
            prompt,
            terms,
            checked,
            begun=self._telling(listener.begun),
            edge_codec=edge_codec,
            resplit_msat=self._resplit(terms, resplit_msat),
            moved=listener.moved,
        )
        try:
            async with aclosing(made.stream()) as pieces:  # who leaves in the middle has it settled before going on
                async for piece in pieces:
                    yield piece
        except NodewireError as error:
            if (named := self.session.named(error)) is error:
                raise
            raise named from error
        if wait:
            async with aclosing(made.verify()) as pieces:
                async for piece in pieces:
                    yield piece
        done = await self._generated(made)
        if transcribe:
            done["transcript"] = (await transcribed(made)).document()
        self._tell(done, listener.ended)

    async def quote(
        self,
        model: str | ModelAt,
        prompt: str,
        *,
        terms: Terms | None = None,
        edge_codec: EdgeCodec | None = None,
        **params: Any,
    ) -> Quote:
        """What `generate` would come to with the same arguments.

        The plan that the market would give now, about how much, and at most. Nothing is requested, and the wallet is
        not asked.

        Raises:
            BadInput, Ambiguous, NotFound, NoQuorum, NoProvider, OverBudget: as `generate`.


        """
        _check(prompt)
        address, manifest = await self._manifest(model, "generate")
        kind, text = self._kind(manifest), await self._text(manifest)
        checked, terms = dict(kind.check(manifest, params)), terms or self.terms
        made = Generation(
            self.session, kind, address, manifest, text, prompt, terms, checked, lambda bought: None, edge_codec
        )
        drawn, whole = await made.quote()
        return Quote(manifest, drawn.plan, drawn.holders, whole)

    async def _generated(self, made: Generation) -> dict[str, Any]:
        """What was bought, and what came of it."""
        likely = {"logprobs": [list(map(asdict, rows)) for rows in made.likely]} if "logprobs" in made.params else {}
        return {
            **together([self._finished(b.purchase) for b in (*made.jobs[:-1], *made.lost, made.jobs[-1])]),
            "begun_anew": made.begun_anew,
            "moves": [asdict(move) for move in made.moves],
            "ids": made.ids,
            "text": "".join(made.texts),
            "repaired": made.repaired,
            **likely,
            **await self._judgement(made.jobs),
        }

    async def embed(
        self,
        model: str | ModelAt,
        texts: Sequence[str],
        *,
        terms: Terms | None = None,
        wait: bool = False,
        edge_codec: EdgeCodec | None = None,
        listener: CallListener = NO_LISTENER,
    ) -> np.ndarray:
        """The vectors of `texts`, float32 [len(texts), width].

        With `wait` (and terms whose `verify` is "sampled") it returns when the committee has judged what was sampled
        of it; if that failed, all of it has been bought again from others (`last["repaired"]` says how often).
        `edge_codec`, `listener`, and what it raises, as `generate`. `last["tokens"]` is how many the
        texts are, by the driver's word.
        """
        address, manifest = await self._manifest(model, "embed")
        made = Embedding(
            self.session,
            self._kind(manifest),
            address,
            manifest,
            terms or self.terms,
            self._telling(listener.begun),
            edge_codec,
            texts,
        )
        await made.buy()
        self._tell({**await self._finish([made], wait=wait), "tokens": made.tokens}, listener.ended)
        return made.vectors()

    async def run(
        self,
        model: str | ModelAt,
        inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        terms: Terms | None = None,
        wait: bool = False,
        edge_codec: EdgeCodec | None = None,
    ) -> Any:
        """What a model of mode `run` makes of named tensors: its outputs by name; of several calls a list of them.

        Tensors are numpy's arrays, torch's, or `Array`s, and outputs come as the inputs were given (numpy has bfloat16
        as float32). Nothing is converted, and floats may be anything, infinite or not a number too. A call that is
        larger than the model takes at once is made in parts, if its rows are known to be independent. `wait` as `embed`
        has it, of each job that the calls are bought in; `edge_codec` as `generate`.

        Raises:
            BadInput, TooLarge: a name, dtype, shape or integer is not what the model takes; nothing was bought.
            NoQuorum, NoProvider, OverBudget, TimedOut, LinkLost ...: as `generate`.

        """
        address, manifest = await self._manifest(model, "run")
        one = isinstance(inputs, Mapping)
        given = [inputs] if isinstance(inputs, Mapping) else list(inputs)
        if not given:
            raise BadInput("inputs", "no call")
        batching = await self._batching(manifest)
        signature = batching.signature
        parts = [await batching.parts(signature.arrays(call, array_of)) for call in given]
        portions = jobs(signature, [call for part in parts for call in part.calls])
        kind, terms, made = self._kind(manifest), terms or self.terms, list[Evaluation]()
        for calls in portions:
            made.append(
                Evaluation(
                    self.session, kind, address, manifest, terms, self.purchases.append, edge_codec, signature, calls
                )
            )
            await made[-1].buy()
            terms = made[-1].remaining_terms()
        self._tell(await self._finish(made, wait=wait))
        came = iter([outputs for portion in made for outputs in portion.outputs])
        outputs = [part.whole([next(came) for _ in part.calls]) for part in parts]
        found = [like(call, whole) for call, whole in zip(given, outputs, strict=True)]
        return found[0] if one else found

    async def chat_template(self, model: str | ModelAt) -> ChatTemplate | None:
        """How messages become a prompt for the model that is called `model`; None if its author has not said.

        `nodewire.chat.renderer` makes the prompt, which is generated from with `special_tokens=False`.

        Raises:
            NotFound, BadHash, BadManifest ...: there is no such manifest, or what it cites is not to be had.

        """
        record = self.session.public_record
        _, manifest = await self._manifest(model, "generate")
        cited = manifest.chat
        if cited is None:
            return None
        path = await record.fetch_blob(cited.sha256, cited.bytes)
        return ChatTemplate.unpack(await asyncio.to_thread(path.read_bytes))

    def _resplit(self, terms: Terms, msat: int | None) -> int:
        msat = self._config.resplit_msat if msat is None else msat
        return terms.max_total_msat // 4 if msat is None else msat

    def _tell(self, done: dict[str, Any], ended: Ended | None = None) -> None:
        self.last = done
        if ended is not None:
            ended(done)

    async def _finish(self, made: Sequence[StatelessCall], *, wait: bool) -> dict[str, Any]:
        """Have it verified, if that is waited for, and say what was bought."""
        terms = made[-1].remaining_terms()
        for one in made if wait else ():
            one.terms = terms  # what is made again costs what is left of the budget for all
            await one.verify()
            terms = one.remaining_terms()
        jobs = [bought for one in made for bought in one.jobs]
        return {
            **together([self._finished(bought.purchase) for bought in jobs]),
            "begun_anew": sum(one.begun_anew for one in made),
            "repaired": sum(one.repaired for one in made),
            **await self._judgement(jobs),
        }

    async def _judgement(self, jobs: Sequence[PurchasedJob]) -> dict[str, Any]:
        """What the committee made of the jobs, what came back, and what was paid and got for earlier ones meanwhile."""
        settler, refunds = self.session.settler, self.session.refunds
        got = refunds.got_msat if refunds is not None else {}
        await settler.caught_up()
        back = sum(got.pop(one.purchase.request.id, 0) for one in jobs)
        judged = judgement(jobs)
        judged["refunded_msat"] += back
        judged["earlier"] = {**settler.take_old(), "refunded_msat": sum(got.values())}
        got.clear()
        return judged

    def _telling(self, begun: Begun | None) -> Begun:
        def tell(purchase: Purchase) -> None:
            self.purchases.append(purchase)
            if begun is not None:
                begun(purchase)

        return tell

    async def _batching(self, manifest: Manifest) -> BatchSplitter:
        """What a model takes, read once for many calls."""
        digest = manifest.digest()
        if digest not in self._batchings:
            self._batchings[digest] = await BatchSplitter.load(manifest, Programs(self.session.public_record))
        return self._batchings[digest]

    async def _text(self, manifest: Manifest) -> ModelText:
        """How a model's ids are read, fetched once for many generations."""
        digest = manifest.digest()
        if digest not in self._texts:
            self._texts[digest] = await ModelText.load(manifest, self.session.public_record)
        return self._texts[digest]

    async def _manifest(self, model: str | ModelAt, mode: str) -> tuple[str, Manifest]:
        """The address and the manifest of a model."""
        found = model if isinstance(model, ModelAt) else await self.find_model(model)
        manifest = await self.session.public_record.manifest(found.address, found.digest)
        if manifest.mode != mode:
            raise BadInput("model", f"{manifest.name} serves {manifest.mode}, not {mode}: {_USE[manifest.mode]}")
        return found.address, manifest

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


def _check(prompt: str) -> None:
    """Raises BadInput."""
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError as error:
        raise BadInput("prompt", "a lone surrogate, which is no text") from error
    if not 0 < size <= MAX_PROMPT_BYTES:
        raise BadInput("prompt", f"empty, or more than {MAX_PROMPT_BYTES} bytes")
