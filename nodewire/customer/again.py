"""When a job that broke off is bought anew, under which terms, and who is taken back where nobody else is left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from nodewire.customer.purchase import Purchase
from nodewire.customer.rejected import Rejected
from nodewire.errors import LinkLost, NodewireError, PaymentRequired, TimedOut, Unsupported, WorkerFailed
from nodewire.protocol.plan import MAX_EXCLUDED, Terms

MAX_AGAIN = 3
"""How often a job that nobody could go on with is begun anew."""
_GOES_ON = (LinkLost, TimedOut, WorkerFailed, PaymentRequired, Rejected, Unsupported)


def may_begin(error: NodewireError, purchase: Purchase, *, failures: int, came: bool) -> bool:
    """Whether others may do better than those who failed with `error`; `came`: there was output before."""
    if not (isinstance(error, _GOES_ON) and purchase.is_underway and failures < MAX_AGAIN):
        return False
    if isinstance(error, Unsupported):  # by one provider; what runs here will not do it another time either
        return bool(blamed(error, purchase))
    # Who asks for money before anything came means an old debt, which is being settled; else it means this job's.
    return not (isinstance(error, PaymentRequired) and came)


def blamed(error: NodewireError, purchase: Purchase) -> set[str]:
    """Providers without whom the next one does better."""
    whom = error.whom if isinstance(error, Rejected) else {error.by} if isinstance(error, Unsupported) else set()
    return purchase.blamed | whom - {""}


def without(terms: Terms, whom: Collection[str], spent_msat: int) -> Terms:
    """The terms without these providers, and less what has been spent."""
    excluded = tuple(dict.fromkeys((*terms.excluded, *sorted(whom))))[:MAX_EXCLUDED]
    left_msat = max(0, terms.max_total_msat - spent_msat)
    return terms.model_copy(update={"max_total_msat": left_msat, "excluded": excluded})


@dataclass(slots=True)
class SecondChances:
    """Who is left out and may be honest: where nobody else is left each is taken back, once.

    Of who refused a frame and who sent it one lies: first the one is taken back, then the others in its place.
    """

    _waiting: list[tuple[frozenset[str], frozenset[str]]] = field(default_factory=list)
    """Who is to be taken back, and who is left out instead."""
    _had: set[str] = field(default_factory=set)

    def wronged(self, providers: Collection[str]) -> None:
        """These were replaced, and say that they were there."""
        self._waiting.append((frozenset(providers), frozenset()))

    def rejected(self, error: NodewireError) -> None:
        """Who refused is taken for no liar yet; nobody who sent this customer itself what it could not use."""
        if isinstance(error, Rejected) and error.refuser:
            refuser = frozenset({error.refuser})
            self._waiting += [(refuser, frozenset()), (error.producers - refuser, refuser)]

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
