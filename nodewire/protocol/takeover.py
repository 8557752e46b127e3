"""Who runs a task after its provider has died: the signed document that raises a job's attempt. NIPS.md, "Takeovers".

Only the standby that the plan names may enter for a task, so takeovers differ in nothing but how many tasks they move:
`replaced` is cumulative, one document says the whole assignment, and two signers who did not know of each other are
reconciled by a third takeover over both. It travels as a control document {"t": "takeover", "takeover": ...} and is
published as an event of kind 8857. A node that knows more answers {"t": "stale", "takeover": its own newest}.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadPlan, BadSignature, BadTag, NodewireError, NoProvider, NotAllowed
from nodewire.nostr import event as _event
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys, verify
from nodewire.protocol import canonical, kinds, tags
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import LOCAL, Plan, ends
from nodewire.protocol.schema import Count, Hex32, Hex64, Name, Schema

CONTROL = "takeover"
"""The control document's type."""
STALE = "stale"
"""The type of the answer to a takeover that is older than, or does not contain, what its reader knows."""
LOST = "lost"
"""The type of a node's word to the driver that it has lost its link to `peer`."""
MAX_REPLACED = 128
MAX_ATTEMPT = 2**16 - 1

Replaced = tuple[Name, Hex32, Hex32, Count]
"""Task, the provider that left, the standby that entered, and the first chunk that is the standby's."""


class Takeover(Schema):
    """With `attempt` begins an assignment in which every task of `replaced` is its standby's."""

    TAG: ClassVar[str] = "nodewire/takeover/1"
    MAX_BYTES: ClassVar[int] = 40_960
    ERROR: ClassVar[type[BadInput]] = BadPlan

    v: Literal[1] = 1
    request: Hex32
    attempt: Annotated[int, Field(ge=1, le=MAX_ATTEMPT)]
    previous: Hex32
    """digest() of the takeover that this one goes on from; the request's id for the first."""
    replaced: tuple[Replaced, ...] = Field(min_length=1, max_length=MAX_REPLACED)
    """All since the job began, in the plan's order of tasks."""
    signer: Hex32
    """The driver's provider, or the customer."""
    sig: Hex64

    @classmethod
    def sign(
        cls, keys: Keys, *, request: str, attempt: int, previous: str, replaced: tuple[tuple[str, str, str, int], ...]
    ) -> Self:
        said = {
            "v": 1,
            "request": request,
            "attempt": attempt,
            "previous": previous,
            "replaced": replaced,
            "signer": keys.public,
        }
        return cls.from_document({**said, "sig": keys.sign(_hash(said)).hex()})

    @classmethod
    def issue(
        cls, keys: Keys, *, request: str, plan: Plan, gone: Collection[str], chunk: int, known: Iterable[Takeover] = ()
    ) -> Self:
        """The takeover that replaces the providers in `gone`, on top of all those in `known` (that were checked).

        `chunk` is the first that has not been closed: it and what follows is the standbys'.

        Raises:
            NoProvider: a task of theirs has no standby, or its standby is gone too; a new request must be made.
            NotAllowed: nobody in `gone` holds a task, and nothing has been replaced.
        """
        before = sorted(known, key=lambda takeover: (takeover.attempt, takeover.signer == plan.customer))
        since = {left: first for takeover in before for _, left, _, first in takeover.replaced}
        leaving = set(gone) | set(since)
        replaced = []
        for assigned in plan.tasks:
            if assigned.provider not in leaving:
                continue
            if assigned.standby is None or assigned.standby in leaving:
                raise NoProvider("standby", f"none is left for {assigned.task}")
            first = since.get(assigned.provider, chunk)
            replaced.append((assigned.task, assigned.provider, assigned.standby, first))
        if not replaced:
            raise NotAllowed("gone", "holds no task of the plan")
        attempt, previous = (before[-1].attempt, before[-1].digest()) if before else (0, request)
        return cls.sign(keys, request=request, attempt=attempt + 1, previous=previous, replaced=tuple(replaced))

    def digest(self) -> str:
        """By which the next takeover cites this one: of what is signed, without the signature."""
        said = self.document()
        del said["sig"]
        return _hash(said).hex()

    def control(self) -> dict[str, Any]:
        """The control document that carries it."""
        return {"t": CONTROL, CONTROL: self.document()}

    def stale(self) -> dict[str, Any]:
        """The control document that answers an older takeover with this one."""
        return {"t": STALE, CONTROL: self.document()}

    @classmethod
    def from_control(cls, document: Mapping[str, Any]) -> Self | None:
        """The takeover in a control document of type `takeover` or `stale`; None in others. Raises as `parse`."""
        return cls.from_document(document.get(CONTROL)) if document.get("t") in (CONTROL, STALE) else None

    def check(self, request: str, plan: Plan, manifest: Manifest, newest: Takeover | None = None) -> None:
        """Check that this is a takeover of the job, signed by who may; `newest` is the last one that was accepted.

        A driver that entered by a takeover of the customer's may sign from then on, so that one must be known first.

        Raises:
            BadPlan: of another job, or not what the plan's standbys allow.
            NotAllowed: the job is no generation; the signer is neither the customer nor the driver, or the driver
                replaces the driver.
            BadSignature: not signed by `signer`.
        """
        if manifest.mode != "generate":  # nobody would go over to it: such a job is made again as a whole
            raise NotAllowed("mode", f"a call ({manifest.mode}) is not handed over")
        if self.request != request:
            raise BadPlan("request", "a takeover of another job")
        if (self.attempt == 1) != (self.previous == request):
            raise BadPlan("previous", "the first takeover, and no other, follows the request")
        if self.signer != plan.customer:
            driver = manifest.driver.name
            if self.signer != assigned(plan, newest)[driver] or self.signer != assigned(plan, self).get(driver):
                raise NotAllowed("signer", "neither the customer nor the driver that stays")
        self._check_replaced(plan)
        said = self.document()
        signature = bytes.fromhex(said.pop("sig"))
        if not verify(self.signer, _hash(said), signature):
            raise BadSignature("sig", "not the signer's")

    def outranks(self, newest: Takeover | None, customer: str) -> bool:
        """Whether a node that holds `newest` goes over to this one; if not, and they differ, it answers with `newest`.

        The higher attempt wins, at equal attempts the customer's; but nobody who was replaced comes back, so a
        takeover that lacks what `newest` replaced is stale whatever its attempt.
        """
        if newest is None:
            return True
        later = self.attempt > newest.attempt or (
            self.attempt == newest.attempt and self.signer == customer != newest.signer
        )
        return later and {entry[:3] for entry in newest.replaced} <= {entry[:3] for entry in self.replaced}

    def _check_replaced(self, plan: Plan) -> None:
        tasks = {task for task, _, _, _ in self.replaced}
        since = {provider: first for _, provider, _, first in self.replaced}
        left = since.keys()
        must = tuple((a.task, a.provider, a.standby, since[a.provider]) for a in plan.tasks if a.provider in left)
        if LOCAL in left or len(tasks) != len(self.replaced) or must != self.replaced:
            raise BadPlan("replaced", "not just all tasks of those who leave, each to its standby, in the plan's order")
        if left & {entered for _, _, entered, _ in self.replaced}:
            raise BadPlan("replaced", "one who leaves would enter")


def newest(said: Iterable[Takeover], request: str, plan: Plan, manifest: Manifest) -> Takeover | None:
    """The job's newest takeover that holds, out of all that were published, in whatever order; None if none does."""
    found, _ = accepted(said, request, plan, manifest)
    return found[-1] if found else None


def accepted(
    said: Iterable[Takeover], request: str, plan: Plan, manifest: Manifest
) -> tuple[list[Takeover], list[tuple[Takeover, NodewireError]]]:
    """The takeovers that hold of those that were published, one per attempt, each on top of those before; and those
    that are none, with what `check` says of them.

    They are read by attempt. Of the same attempt the customer's counts, of the same signer's the lowest digest: so it
    is the same for everyone who has read the same.
    """
    held: list[Takeover] = []
    refused: list[tuple[Takeover, NodewireError]] = []
    for one in sorted(said, key=lambda one: (one.attempt, one.signer == plan.customer, one.digest(), one.sig)):
        before = held[-1] if held else None
        try:
            one.check(request, plan, manifest, before)
        except NodewireError as error:
            refused.append((one, error))
            continue
        if one.outranks(before, plan.customer):
            held = [known for known in held if known.attempt < one.attempt] + [one]
    return held, refused


def assigned(plan: Plan, takeover: Takeover | None) -> dict[str, str]:
    """Every task's provider under `takeover` ("local" where the customer runs it), in the plan's order."""
    entered = {task: standby for task, _, standby, _ in takeover.replaced} if takeover is not None else {}
    return {a.task: entered.get(a.task, a.provider) for a in plan.tasks}


def payees(plan: Plan, takeover: Takeover | None, chunk: int) -> dict[str, str]:
    """Who is paid for each task of `chunk` ("local" for nobody): who left, up to the chunk in which it did."""
    if takeover is None:
        return assigned(plan, None)
    early = {task for task, _, _, first in takeover.replaced if chunk < first}
    now = assigned(plan, takeover)
    return {a.task: a.provider if a.task in early else now[a.task] for a in plan.tasks}


def signers(plan: Plan, takeover: Takeover | None, task: str, chunk: int) -> tuple[str, ...]:
    """Whose word on what `task` put out in `chunk` counts under `takeover`: that of who is paid for it, and next the
    standby's, which computed it again; of what the customer runs itself the customer's."""
    both = payees(plan, takeover, chunk)[task], assigned(plan, takeover)[task]
    return tuple(dict.fromkeys(plan.customer if one == LOCAL else one for one in both))


def under(accepted: Sequence[Takeover], attempt: int) -> Takeover | None:
    """The takeover that whoever committed at `attempt` went by, of those that were accepted, by attempt: none at 0.

    One that is later than a commitment says nothing about it. If the very one was never published, the next one holds
    all that it replaced.
    """
    if attempt == 0:
        return None
    return next((one for one in accepted if one.attempt >= attempt), accepted[-1] if accepted else None)


def price_msat(plan: Plan, takeover: Takeover | None, provider: str, chunk: int) -> int:
    """What one unit of `chunk` costs at `provider`; a standby works at the price of whom it replaces, a hedge at that
    of whom it computes along with."""
    mine, hedges = payees(plan, takeover, chunk), plan.hedges
    return sum(a.price_msat for a in plan.tasks if provider in (mine[a.task], hedges.get(a.task)))


def hedges(plan: Plan, takeover: Takeover | None) -> dict[str, str]:
    """By task who computes it along under `takeover`, and has not entered for it."""
    entered = {task for task, *_ in takeover.replaced} if takeover is not None else set()
    return {task: hedge for task, hedge in plan.hedges.items() if task not in entered}


def present(plan: Plan, takeover: Takeover | None) -> tuple[str, ...]:
    """Who is in the job under `takeover`: who has its tasks, the customer, and those who compute along."""
    members = (*assigned(plan, takeover).values(), plan.customer, *hedges(plan, takeover).values())
    return tuple(dict.fromkeys(one for one in members if one != LOCAL))


def ends_after(manifest: Manifest, plan: Plan, takeover: Takeover | None) -> dict[str, tuple[str, str]]:
    """For every edge the public keys of its producer and its consumer under `takeover`, as `plan.ends`."""
    now = assigned(plan, takeover)
    tasks = tuple(a.model_copy(update={"provider": now[a.task]}) for a in plan.tasks)
    return ends(manifest, plan.model_copy(update={"tasks": tasks}))


def build(keys: Keys, takeover: Takeover, *, created_at: int) -> Event:
    """The event that makes a takeover public; it proves itself, so anybody may sign the event."""
    concerned = dict.fromkeys(node for _, left, entered, _ in takeover.replaced for node in (left, entered))
    event_tags = [["e", takeover.request], *(["p", node] for node in concerned)]
    return _event.sign(keys, kinds.TAKEOVER, created_at=created_at, content=takeover.to_json(), tags=event_tags)


def parse(event: Event) -> Takeover:
    """The takeover in `event`, whose signature has been checked; `check` is still to be called.

    Raises:
        BadEvent, BadTag, BadPlan, BadVersion, TooLarge: with the field at fault.
    """
    tags.check_kind(event, kinds.TAKEOVER)
    if not event.content:
        raise BadEvent("content", "empty")
    takeover = Takeover.parse(event.content)
    if tags.text(event, "e") != takeover.request:
        raise BadTag("e", "not the request that the takeover names")
    if set(event.values("p")) != {node for _, left, entered, _ in takeover.replaced for node in (left, entered)}:
        raise BadTag("p", "not those who leave and enter")
    return takeover


def _hash(said: dict[str, Any]) -> bytes:
    return canonical.tagged_hash(Takeover.TAG, canonical.encode(said))
