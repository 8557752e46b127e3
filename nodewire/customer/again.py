"""When a job that broke off is bought anew, and under which terms."""

from __future__ import annotations

from collections.abc import Collection

from nodewire.customer.purchase import Purchase
from nodewire.errors import LinkLost, NodewireError, PaymentRequired, TimedOut, WorkerFailed
from nodewire.protocol.plan import MAX_EXCLUDED, Terms

MAX_AGAIN = 3
"""How often a job that nobody could go on with is begun anew."""
_GOES_ON = (LinkLost, TimedOut, WorkerFailed, PaymentRequired)


def may_begin(error: NodewireError, purchase: Purchase, *, failures: int, came: bool, is_unfit: bool = False) -> bool:
    """Whether others may do better than those who failed with `error`; `came`: there was output before; `is_unfit`: it
    was one that is none."""
    if not ((is_unfit or isinstance(error, _GOES_ON)) and purchase.is_underway and failures < MAX_AGAIN):
        return False
    # Who asks for money before anything came means an old debt, which is being settled; else it means this job's.
    return not (isinstance(error, PaymentRequired) and came)


def without(terms: Terms, whom: Collection[str], spent_msat: int) -> Terms:
    """The terms without these providers, and less what has been spent."""
    excluded = tuple(dict.fromkeys((*terms.excluded, *sorted(whom))))[:MAX_EXCLUDED]
    left_msat = max(0, terms.max_total_msat - spent_msat)
    return terms.model_copy(update={"max_total_msat": left_msat, "excluded": excluded})
