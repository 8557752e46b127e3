"""What the providers of one job say about it over relays, and what that means for the job."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire import errors
from nodewire.customer.payments.receipts import ZapReceipts
from nodewire.customer.payments.rejected_frames import reported
from nodewire.errors import (
    TABLE,
    BadFrame,
    LinkLost,
    NodeFailed,
    NodewireError,
    NotAllowed,
    OverBudget,
    PaymentRequired,
    WorkerFailed,
    WorkRequired,
)
from nodewire.nostr.nips import nip44, nip57, nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.customer.payments.claims import Claims
    from nodewire.customer.payments.job_payments import ZapPayment
    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.model.manifest import Manifest

WORD_S = 3.0
"""Within which who ended a job must have said so itself, once others say that it has."""
_ITS_OWN = frozenset({NodeFailed.code, WorkerFailed.code})
"""Errors of a provider's own, which another provider may not have."""
log = logging.getLogger("nodewire.customer")


class ProviderRefusal(errors.Busy):
    """A provider of the plan takes no job now; `feedback` is the id of its signed word, `text` its reason."""

    def __init__(self, provider: str, feedback: str, text: str = "") -> None:
        self.is_out = text == NodeFailed.code
        """Whether it cannot serve for a reason of its own; else it has no free slot."""
        reason = "cannot serve for a reason of its own" if self.is_out else "has no free slot"
        super().__init__("provider", f"{provider[:8]} {reason}")
        self.provider = self.by = provider
        self.feedback = feedback


class MoreWork(WorkRequired):
    """A provider of the plan asks for more work than the request carries."""

    def __init__(self, provider: str, bits: int) -> None:
        super().__init__("nonce", f"{provider[:8]} asks for {bits} bits of work", bits)
        self.by = provider


class Answers:
    """Follows one request."""

    def __init__(
        self,
        keys: Keys,
        request: str,
        plan: Plan,
        manifest: Manifest,
        claims: Claims,
        background: JobTaskGroup,
        *,
        network: str,
        chunks: int,
    ) -> None:
        """`chunks`: how many the job has at most."""
        self.heard: set[str] = set()
        """Who has said anything."""
        self.blamed: set[str] = set()
        """Who reported an error of its own."""
        self.failed: set[str] = set()
        """Providers that said themselves that they cannot go on for a reason of their own."""
        self.withdrawn = False
        """Whether the customer has given the job up: then who says that it is not allowed has just heard it."""
        self.results: dict[str, result.ResultDetails] = {}
        """What each provider's result says (decrypted), by public key."""
        self.roots: dict[tuple[str, ChunkRoot], None] = {}
        """What providers said in their results that they committed to: of each task of theirs and each chunk that a
        job can have the first word."""
        self._rooted: set[tuple[str, str, int, int]] = set()
        self.zap_receipts = ZapReceipts(network)
        self._keys = keys
        self._request = request
        self._plan = plan
        self._manifest = manifest
        self._claims = claims
        self._chunks = chunks
        self._provider_of = {a.task: a.provider for a in plan.tasks}
        self._background = background
        self._said = asyncio.Condition()
        """Notified with every event of the job."""

    async def follow(self, pool: EventTransport) -> None:
        """Take what comes until cancelled."""
        answers = frozenset({kinds.FEEDBACK, kinds.result_of(kinds.INFERENCE), nip57.RECEIPT})
        providers = frozenset(self._plan.providers())  # anybody may say anything about a public request
        about = {"e": frozenset({self._request})}
        wanted = Filter(kinds=answers, authors=providers, tags=about)
        nutzaps = Filter(kinds=frozenset({nip61.NUTZAP}), authors=frozenset({self._keys.public}), tags=about)
        async with pool.subscribe([wanted, nutzaps]) as events:
            async for event in events:
                try:
                    self._take(event)
                    async with self._said:
                        self._said.notify_all()
                except NodewireError as error:
                    log.debug("%s by %s ignored: %s", event.kind, event.pubkey[:8], error)

    async def complete(self, paid: Callable[[], Iterable[ZapPayment]]) -> None:
        """Return when every provider has given its result, and a receipt for every zap."""
        async with self._said:
            await self._said.wait_for(lambda: not self.lacking(paid()))

    def lacking(self, paid: Iterable[ZapPayment]) -> set[str]:
        """The providers that have not given their result, or a receipt for a zap."""
        here = {*self._plan.providers()}
        named = (one for one in paid if one.provider in here and one.is_named)
        without = {one.provider for one in named if self.zap_receipts.find_receipt(one) is None}
        return (here - self.results.keys()) | without

    async def own_word(self) -> None:
        """Return when some provider has said itself that it is at fault."""
        async with self._said:
            await self._said.wait_for(lambda: bool(self.failed or self.blamed))

    def _take(self, event: Event) -> None:
        if event.kind == nip61.NUTZAP and event.pubkey == self._keys.public:
            self.zap_receipts.note(event)
        if event.pubkey not in self._plan.providers():
            return
        if event.kind == kinds.FEEDBACK:
            heard = feedback.parse(event)
            if heard.request == self._request:
                self._feedback(heard)
        elif event.kind == kinds.result_of(kinds.INFERENCE):
            said = result.parse(event)
            if said.request != self._request:
                return
            for root in said.roots:
                self._root(event.pubkey, root)
            text = nip44.decrypt(said.ciphertext, nip44.conversation_key(self._keys, event.pubkey))
            self.results[event.pubkey] = result.ResultDetails.parse(text)
        else:
            self.zap_receipts.note(event)

    def _root(self, provider: str, root: ChunkRoot) -> None:
        is_its_own = self._provider_of.get(root.task) == provider
        if is_its_own and root.chunk < self._chunks and not root.attempt and root.key not in self._rooted:
            self._rooted.add(root.key)
            self.roots[provider, root] = None

    def _feedback(self, said: Feedback) -> None:
        self.heard.add(said.provider)
        if said.status == "payment-required":
            self._claims.claimed(said)
        elif said.status == "error" and said.text == NotAllowed.code and self.withdrawn:
            return
        elif said.status == "busy":
            self._background.fail(ProviderRefusal(said.provider, said.id, said.text))
        elif said.status == "error" and said.text == WorkRequired.code:
            self._background.fail(MoreWork(said.provider, said.work))
        elif said.status == "error" and said.by in self._plan.providers() and said.text != LinkLost.code:
            self._background.spawn(self._fail_unless_said(said))
        elif said.status == "error":
            if said.text in _ITS_OWN and not said.by:
                self.failed.add(said.provider)
            self._background.fail(self.reported(said))

    async def _fail_unless_said(self, said: Feedback) -> None:
        """A provider repeats what another one is to have said, which is heard first."""
        await asyncio.sleep(WORD_S)
        if self._background.fault is None:
            self.blamed.add(said.by)
            self._background.fail(self.reported(said))

    def reported(self, said: Feedback) -> NodewireError:
        """What a provider's error means here."""
        who = said.provider[:8]
        if said.text == BadFrame.code:
            providers = {a.task: a.provider for a in self._plan.tasks}
            if (found := reported(said, self._manifest, providers)) is not None:
                return found
        if said.text != LinkLost.code:  # who lost a link is not who broke it
            self.blamed.add(said.provider)
        if said.text == OverBudget.code and self._claims.may_be_used_up():
            budget_msat = self._plan.terms.max_total_msat
            return OverBudget(
                "max_total_msat", f"the budget of {budget_msat / 1000:g} sat is used up; what came is paid"
            )
        if said.text == PaymentRequired.code:
            reason = f"{who} waits for a payment, of this job or of an earlier one; see `nodewire wallet settle`"
            unpaid = PaymentRequired("provider", reason)
            unpaid.by = said.provider
            return unpaid
        kind, why = TABLE.get(said.text, NodeFailed), self._why(said)
        if why is not None:
            error = kind(why.field or "provider", f"{why.reason} (says {who})")
        else:
            error = kind("provider", f"{who} reports {said.text or 'an error'}")
        error.by = said.provider
        return error

    def _why(self, said: Feedback) -> feedback.ErrorDetail | None:
        """What of the customer's own an error is about, if the provider says so."""
        if said.text not in feedback.THE_CUSTOMERS or not said.ciphertext:
            return None
        try:
            return feedback.ErrorDetail.parse(
                nip44.decrypt(said.ciphertext, nip44.conversation_key(self._keys, said.provider))
            )
        except NodewireError as error:
            log.debug("what %s says of its error is ignored: %s", said.provider[:8], error)
            return None
