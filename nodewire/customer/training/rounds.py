"""Drives a training: does what its state says is pending, writes down what came of it, and looks again."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from nodewire.customer.training import choosing, machine, watching
from nodewire.customer.training.choosing import Need
from nodewire.customer.training.coordinating import Coordinator
from nodewire.customer.training.journal import Journal
from nodewire.customer.training.machine import (
    Action,
    Audit,
    Audited,
    Await,
    Begun,
    Call,
    Delivered,
    DepositAsked,
    Event,
    Fetch,
    Judge,
    Judged,
    Lost,
    Opened,
    Paid,
    Pay,
    Publish,
    Received,
    State,
    Step,
    Stepped,
)
from nodewire.customer.training.requesting import Ask, Requests
from nodewire.customer.training.session import TrainingSession
from nodewire.errors import BadHash, BadInput, NodewireError, NoProvider, OverBudget, TooLarge, first_of
from nodewire.nostr import event as events
from nodewire.nostr import nip44, nip59
from nodewire.nostr.nip01 import Filter
from nodewire.nostr.subscription import Subscription
from nodewire.pay.debts import Key
from nodewire.protocol import audit, delivery, feedback, kinds
from nodewire.protocol import round as rounds
from nodewire.protocol.audit import Showing
from nodewire.protocol.delivery import Delivered as Opening
from nodewire.protocol.delivery import Progress
from nodewire.protocol.recipe import Recipe
from nodewire.protocol.round import DEPOSIT
from nodewire.protocol.trainer import Trainer
from nodewire.store.sealed import sealed_bytes

log = logging.getLogger("nodewire.customer")

ANSWER_S = 20.0
"""Within which a provider must answer a request."""
FIND_S = 30.0
"""For how long providers are looked for."""
AUDIT_S = 60.0
"""Within which a provider must show what is audited."""
_TICKET_S = 1.0
_AGAIN_S = 2.0
_HEADER_BYTES = 512

OnChange = Callable[[State, "Event | Progress", str], None]
"""Told of every event and every progress, with the provider that it is of ("" if none)."""


class Rounds:
    """One training, new or from its journal. `run` ends when it is trained and paid."""

    def __init__(
        self,
        session: TrainingSession,
        recipe: Recipe,
        kind: int,
        journal: Journal,
        coordinator: Coordinator,
        requests: Requests,
        *,
        shards: int,
        budget_msat: int,
        on_change: OnChange | None = None,
    ) -> None:
        self._session = session
        self._recipe = recipe
        self._kind = kind
        self._journal = journal
        self._coordinator = coordinator
        self._requests = requests
        self._shards = shards
        self._budget_msat = budget_msat
        self._on_change = on_change or (lambda state, event, provider: None)
        self._state = State()
        self._changed = asyncio.Event()
        self._running: dict[Action, asyncio.Task[None]] = {}
        self._showing: dict[tuple[str, str], asyncio.Future[Showing]] = {}
        """By request and provider, what audits wait for."""
        self._asked_s: dict[str, float] = {}
        """By request, when it went out (monotonic)."""

    async def run(self) -> State:
        """Train to the end; the coordinator has the weights then.

        Raises:
            NoProvider, OverBudget: it cannot go on, and may be begun again where it stands.
            NodewireError: data, worker or relays failed.
        """
        for event in self._journal.events():
            self._state = machine.apply(event, self._state)
        if not self._state.rounds:
            await self._open()
        else:
            await self._resume()
        mine = {"p": frozenset({self._session.keys.public})}
        results = frozenset({kinds.FEEDBACK, kinds.result_of(self._kind), kinds.result_of(kinds.VERIFICATION)})
        since = int(self._journal.fact("since", str(int(time.time()) - 5)))
        following = Filter(kinds=results, tags=mine, since=since)
        try:
            await self._follow(following)
        except BaseExceptionGroup as together:
            raise first_of(together) from together
        for request in self._state.requests:
            self._session.ledger.close_job(request)
        return self._state

    async def _follow(self, wanted: Filter) -> None:
        """Until it is over: do what is pending, hear what providers say."""
        async with self._session.pool.subscribe([wanted]) as subscription, asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(subscription))
            while not self._state.is_over:
                self._changed.clear()
                self._begin(group)
                await self._changed.wait()
            listening.cancel()
            for task in self._running.values():
                task.cancel()

    async def _open(self) -> None:
        """Split the data, seal the shards and the first weights."""
        sealed = [await self._coordinator.shard(index) for index in range(self._shards)]
        self._take(Opened(self._recipe.rounds, tuple(sealed), await self._coordinator.theta()))

    async def _resume(self) -> None:
        """Bring the coordinator to where the journal ends, and ask again what may not have been heard."""
        state = self._state
        assert state.theta is not None
        await self._coordinator.restore(state.theta, state.round)
        for work in state.works:
            if work.status in ("received", "accepted"):
                await self._fetched(work.request, work.provider, work.result)
            if work.status == "asked":
                await self._session.pool.publish(events.parse(state.requests[work.request]))

    def _take(self, event: Event) -> None:
        """Something happened: it is written down, and what is pending is looked at again."""
        after = machine.apply(event, self._state)
        if after is self._state:
            return
        self._journal.append(event)
        self._state = after
        self._changed.set()
        self._on_change(after, event, getattr(event, "provider", ""))

    def _begin(self, group: asyncio.TaskGroup) -> None:
        """Begin what is pending, end what is not any more."""
        wanted = machine.pending(self._state)
        for action in list(self._running):
            task = self._running[action]
            if action not in wanted and isinstance(action, Call | Await):
                task.cancel()
            if task.done() or task.cancelling():
                del self._running[action]
        publishing = any(isinstance(action, Publish) for action in self._running)
        for action in wanted:
            if action not in self._running and not (publishing and isinstance(action, Publish)):
                self._running[action] = group.create_task(self._do(action))
                self._running[action].add_done_callback(lambda _: self._changed.set())

    async def _do(self, action: Action) -> None:
        match action:
            case Publish(round_, indices):
                await self._publish(round_, indices)
            case Call(request, provider):
                await self._call(request, provider)
            case Await(request, provider):
                await self._await(request, provider)
            case Fetch(request, provider):
                await self._fetch(request, provider)
            case Judge(round_, waiting):
                await self._judge(round_, waiting)
            case Audit(request, provider):
                await self._audit(request, provider)
            case Pay(request, provider, part):
                await self._pay(request, provider, part)
            case Step(round_):
                loss = await self._coordinator.step(round_)
                self._take(Stepped(round_, loss, await self._coordinator.theta()))

    async def _publish(self, round_: int, indices: tuple[int, ...]) -> None:
        """Find providers for shards, sign the requests and send them out."""
        state = self._state
        assert state.theta is not None
        gflop = rounds.work_gflop(self._recipe, self._recipe.steps)
        needs = {
            index: choosing.need_of(
                self._recipe, self._kind, blob_bytes=max(state.shards[index].bytes, state.theta.bytes), gflop=gflop
            )
            for index in indices
        }
        market, dealt = await self._find(needs)
        # Who has a shard of this round already gets a deposit for another: what it is owed for the first is paid later.
        taken = {work.provider for work in self._state.works if work.status != "idle"}
        last = {known: request for known, request in self._state.paid_last.items() if known not in taken}
        groups = choosing.grouped(dealt, last)
        price_msat = sum(self._requests.price(provider, market, None)[0] for provider in dealt.values())
        if state.committed_msat + price_msat > self._budget_msat:
            raise OverBudget(
                "budget", f"{state.committed_msat + price_msat} msat with round {round_}, at most {self._budget_msat}"
            )
        made = []
        for previous, some in groups:
            ask = Ask(round_, [(index, dealt[index]) for index in some], previous)
            made.append(await self._requests.make(ask, market, state.theta, state.shards))
        for published in made:
            self._asked_s[published.request] = time.monotonic()
            self._take(published)
        for published in made:
            await self._session.pool.publish(events.parse(published.event))

    async def _find(self, needs: Mapping[int, Need]) -> tuple[Mapping[str, Trainer], dict[int, str]]:
        """The trainers' ads, and one of them for every shard; waited for, for a while. Raises NoProvider."""
        until_s = time.monotonic() + FIND_S
        while True:
            market = await choosing.trainers(self._session.pool)
            works = {work.index: work for work in self._state.works}
            try:
                return market, choosing.deal(
                    needs,
                    market,
                    busy=Counter(work.provider for work in works.values() if work.status in ("asked", "working")),
                    before={index: works[index].provider for index in needs if works[index].provider},
                    excluded={index: works[index].excluded for index in needs},
                    failures=Counter(provider for provider, _ in self._state.failures),
                )
            except NoProvider:
                if time.monotonic() > until_s:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _call(self, request: str, provider: str) -> None:
        """Send the ticket, again and again: relays keep none."""
        keys, pool = self._session.keys, self._session.pool
        ticket = self._state.debts[request, provider].row.ticket
        until_s = time.monotonic() + ANSWER_S
        while time.monotonic() < until_s:
            now_s = int(time.time())
            rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=ticket)
            try:
                await pool.publish(nip59.wrap(rumor, keys, provider, now_s=now_s, ephemeral=True), timeout_s=5.0)
            except NodewireError as error:
                log.debug("ticket: %s", error)
            await asyncio.sleep(_TICKET_S)
        self._take(Lost(request, provider, "no answer"))

    async def _await(self, request: str, provider: str) -> None:
        """Wait as long as results take here, then give the provider up."""
        begun_s = self._asked_s.setdefault(request, time.monotonic())
        while True:
            patience_s = watching.patience_s(self._state.took_ms, self._recipe.deadline)
            left_s = begun_s + patience_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.sleep(min(1.0, left_s))  # what others take may shorten it meanwhile
        self._take(Lost(request, provider, f"no result within {patience_s:.0f} s"))

    async def _fetch(self, request: str, provider: str) -> None:
        work = self._state.work(request, provider)
        if work is None:
            return
        fine, reason = await self._fetched(request, provider, work.result)
        self._take(Received(request, provider) if fine else Lost(request, provider, reason))

    async def _judge(self, round_: int, waiting: Sequence[tuple[str, str]]) -> None:
        judged = await self._coordinator.judge(round_)
        for request, provider in waiting:
            accepted, reason = judged[self._state.debts[request, provider].row.index]
            audit_ = accepted and float(self._recipe.audit.fraction) > 0
            self._take(Judged(request, provider, accepted, reason, audit_))

    async def _audit(self, request: str, provider: str) -> None:
        """Draw segments, now that the work is committed to; ask for their ends, and compute them again."""
        debt = self._state.debts[request, provider]
        delivered = delivery.parse(events.parse(debt.result))
        opened, index = self._opened(delivered), debt.row.index
        wanted = await self._coordinator.draw(debt.round, index, secrets.token_bytes(32), delivered.commitment)
        if not wanted:  # a customer that died has forgotten what it would need
            self._take(Audited(request, provider, True, ""))
            return
        answer: asyncio.Future[Showing] = asyncio.get_running_loop().create_future()
        self._showing[request, provider] = answer
        keys, now_s = self._session.keys, int(time.time())
        try:
            await self._session.pool.publish(
                audit.ask(keys, self._kind, request, provider, wanted, created_at=now_s), timeout_s=10.0
            )
            async with asyncio.timeout(AUDIT_S):
                shown = {one.segment: one for one in (await answer).shown}
            files = {n: (await self._session.blobs.get(shown[n].blob), shown[n]) for n in wanted if n in shown}
        except TimeoutError:
            self._take(Audited(request, provider, False, "withheld: it shows nothing"))
            return
        except NodewireError as error:
            self._take(Audited(request, provider, False, f"{error.code}: {error}"[:200]))
            return
        passed, reason = await self._coordinator.audit(delivered, debt.round, index, opened, files)
        self._take(Audited(request, provider, passed, reason))

    async def _fetched(self, request: str, provider: str, result: str) -> tuple[bool, str]:
        """Fetch and open what was delivered, and give it to the coordinator; if it is no result, why."""
        row = self._state.debts[request, provider].row
        try:
            delivered = delivery.parse(events.parse(result))
            opened = self._opened(delivered)
            if opened.commitment(provider, request, self._state.round, row.index) != delivered.commitment:
                raise BadHash("x", "not what the result commits to")
            if len(opened.states) != -(-row.steps // self._recipe.audit.segment):
                raise BadInput("states", f"{len(opened.states)} for {row.steps} steps")
            most = sealed_bytes(self._recipe.upload_bytes() + _HEADER_BYTES * (len(self._recipe.shapes()) + 1))
            if delivered.blob.bytes > most:
                raise TooLarge("result", f"{delivered.blob.bytes} bytes, at most {most}")
            if delivered.amount_msat != row.balance_msat:
                raise BadInput("amount", f"{delivered.amount_msat} msat, agreed on {row.balance_msat}")
            path = await self._session.blobs.get(delivered.blob)
        except NodewireError as error:
            return False, f"{error.code}: {error}"[:200]
        return await self._coordinator.result(row.index, row.steps, path, opened.key, opened.sha256)

    def _opened(self, delivered: delivery.Delivery) -> Opening:
        return Opening.parse(self._decrypted(delivered.ciphertext, delivered.provider))

    def _decrypted(self, ciphertext: str, provider: str) -> str:
        return nip44.decrypt(ciphertext, nip44.conversation_key(self._session.keys, provider))

    async def _pay(self, request: str, provider: str, part: int) -> None:
        """Pay a deposit or a balance, however often it takes: what is owed stays owed."""
        row = self._state.debts[request, provider].row
        amount_msat = row.deposit_msat if part == DEPOSIT else row.balance_msat
        url, pause_s = row.lnurl, _AGAIN_S
        while True:
            try:
                debt = await self._session.pay(Key(request, provider, part), amount_msat, url)
            except NodewireError as error:
                log.warning("%d msat to %s are not paid yet: %s", amount_msat, provider[:8], error)
                await asyncio.sleep(pause_s)
                pause_s = min(60.0, 2 * pause_s)
                url = await self._endpoint(provider, url)
                continue
            self._take(Paid(request, provider, part, amount_msat, debt.fee_msat))
            return

    async def _endpoint(self, provider: str, known: str) -> str:
        """Where a provider is paid now: it may have been restarted elsewhere."""
        try:
            ad = (await choosing.trainers(self._session.pool)).get(provider)
        except NodewireError:
            return known
        return ad.lnurl if ad is not None and ad.lnurl else known

    async def _listen(self, subscription: Subscription) -> None:
        async for event in subscription:
            try:
                self._heard(event)
            except NodewireError as error:
                log.info("%d by %s ignored: %s", event.kind, event.pubkey[:8], error)

    def _heard(self, event: events.Event) -> None:
        """A provider's word about a shard; of strangers, or of what is over, nothing is taken."""
        request = event.tag("e") or ""
        if (request, event.pubkey) not in self._state.debts:
            return
        if event.kind == kinds.result_of(kinds.VERIFICATION):
            waiting = self._showing.get((request, event.pubkey))
            if waiting is not None and not waiting.done():
                waiting.set_result(Showing.parse(self._decrypted(event.content, event.pubkey)))
            return
        if event.kind != kinds.FEEDBACK:
            delivery.parse(event)
            took_s = time.monotonic() - self._asked_s.get(request, time.monotonic())
            self._take(Delivered(request, event.pubkey, event.to_json(), round(took_s * 1000)))
            return
        said = feedback.parse(event)
        match said.status:
            case "payment-required":
                row = self._state.debts[request, event.pubkey].row
                if said.due is None or (said.due.chunk, said.due.amount_msat) != (DEPOSIT, row.deposit_msat):
                    raise BadInput("payment-required", "not the deposit that was agreed on")
                self._take(DepositAsked(request, event.pubkey))
            case "processing":
                self._take(Begun(request, event.pubkey))
            case "error" | "busy":
                self._take(Lost(request, event.pubkey, said.text or said.status))
            case "partial":
                progress = Progress.parse(self._decrypted(said.ciphertext, event.pubkey))
                self._on_change(self._state, progress, event.pubkey)
            case "success":
                return
