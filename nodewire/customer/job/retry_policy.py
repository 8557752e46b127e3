"""When a job that broke off is bought anew, under which terms, and who is taken back where nobody else is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.customer.payments.rejected_frames import BEGINS_ANEW, FrameRejection, is_one_word
from nodewire.errors import LinkLost, NodeFailed, NodewireError, PaymentRequired, TimedOut
from nodewire.protocol.job.plan import MAX_EXCLUDED, Terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nodewire.customer.job.job import Purchase
    from nodewire.customer.job.session import Session

MAX_AGAIN = 3
"""How often a job is begun anew until a whole chunk of tokens has come: chunk 1, or a later one."""


def may_begin(error: NodewireError, purchase: Purchase, *, failures: int, came: bool) -> bool:
    """Whether others may do better than those who failed with `error`; `came`: there was output before."""
    if not purchase.is_underway or failures >= MAX_AGAIN:
        return False
    if type(error) is NodeFailed and not error.by:
        return False  # this customer's own machine failed, which no other provider mends
    if isinstance(error, PaymentRequired):
        # Who asks for money before anything came, or before it asked for any of this job's, means an old debt, which is
        # being settled; else it means this job's.
        return not came or (bool(error.by) and not purchase.payments.has_claimed(error.by))
    return isinstance(error, BEGINS_ANEW) or is_one_word(error)


def blamed(error: NodewireError, purchase: Purchase) -> set[str]:
    """Providers without whom the next one does better."""
    if is_one_word(error):
        return purchase.blamed | {error.by}
    return purchase.blamed | (error.whom if isinstance(error, FrameRejection) else set())


def silent(error: NodewireError, purchase: Purchase, whom: Collection[str]) -> tuple[str, ...]:
    """Who may have kept the job from going on where its time is over and `whom` to blame is nobody.

    It is all that were in it, since all of them answer. Else the next plan would have the same.
    """
    return purchase.plan.providers() if isinstance(error, TimedOut) and not whom else ()


def without(terms: Terms, whom: Collection[str], spent_msat: int) -> Terms:
    """The terms without these providers, and less what has been spent."""
    excluded = tuple(dict.fromkeys((*terms.excluded, *sorted(whom))))[:MAX_EXCLUDED]
    left_msat = max(0, terms.max_total_msat - spent_msat)
    return terms.model_copy(update={"max_total_msat": left_msat, "excluded": excluded})


@dataclass(slots=True)
class SecondChances:
    """Who is left out and may be honest: where nobody else is left each is taken back, once.

    Of who refused a frame and who sent it one lies: first the one is taken back, then the others in its place. Who
    said by itself that nothing can be done is taken back by nobody; if another says so too, it is believed.
    """

    _waiting: list[tuple[frozenset[str], frozenset[str]]] = field(default_factory=list)
    """Who is to be taken back, and who is left out instead."""
    _had: set[str] = field(default_factory=set)
    _paid: set[str] = field(default_factory=set)
    """Providers that refused for a debt that was then paid: each is asked again once, whatever it claims later."""
    _words: dict[str, str] = field(default_factory=dict)
    """By code, who was the first to say it."""

    async def left_out(self, error: NodewireError, purchase: Purchase, session: Session) -> set[str]:
        """The providers that the next job does without, after `purchase` broke off with `error`."""
        self.rejected(error)
        whom = blamed(error, purchase)
        self.lost(error, whom)
        if late := silent(error, purchase, whom):
            self.late(late)
            whom |= {*late}
        if isinstance(error, PaymentRequired):
            owed = await session.settler.still_owed(whom)
            whom, self._paid = owed | (whom & self._paid), self._paid | (whom - owed)
        return whom

    def rejected(self, error: NodewireError) -> None:
        """Who refused is taken for no liar yet; nobody who sent this customer itself what it could not use."""
        if isinstance(error, FrameRejection) and error.refuser:
            refuser = frozenset({error.refuser})
            self._waiting += [(refuser, frozenset()), (error.producers - refuser, refuser)]

    def lost(self, error: NodewireError, whom: Collection[str]) -> None:
        """These are gone by the word of somebody, who may have stood still himself.

        Of those who are missed, the newest are the likeliest to be there.
        """
        if isinstance(error, LinkLost):
            self._waiting[:0] = [(frozenset({one}), frozenset()) for one in sorted(whom)]

    def late(self, providers: Iterable[str]) -> None:
        """Of these one is silent and the others wait for it, as far as anybody knows: any may be taken back."""
        self._waiting += [(frozenset({one}), frozenset()) for one in providers]

    def believed(self, error: NodewireError) -> bool:
        """Whether it is what two providers say, one in this job and the other in one before it."""
        return is_one_word(error) and self._words.setdefault(error.code, error.by) != error.by

    def next(self, terms: Terms) -> Terms | None:
        """The terms with the next of them; None if there is none."""
        while self._waiting:
            back, instead = self._waiting.pop(0)
            back -= self._had
            if back:
                self._had |= back
                left = tuple(one for one in terms.excluded if one not in back)
                return without(terms.model_copy(update={"excluded": left}), instead, 0)
        return None
