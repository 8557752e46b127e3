"""Jobs that were bought for one piece of work, and what the committee made of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.customer.audit import verdict_watcher as verified
from nodewire.protocol.job import request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodewire.customer.audit.verdict_watcher import JobVerification
    from nodewire.customer.job.job import Purchase
    from nodewire.customer.job.session import Session
    from nodewire.customer.payments.receipt_finalizer import FinalReceipts

MAX_REPAIRS = 3
"""How often what failed verification is made again."""


@dataclass(slots=True)
class PurchasedJob:
    """One job, and from where on in the work its output is."""

    purchase: Purchase
    first: int = 0
    verified: JobVerification | None = None
    closed: FinalReceipts | None = None
    counted: bool = False
    """Whether what was spent on it has been taken from the budget."""


async def judge(bought: PurchasedJob, session: Session, progress: Callable[[JobVerification], None]) -> JobVerification:
    """Wait for the verdicts on a job, have them settled, and its receipts closed.

    What was paid and not committed to in time could not be drawn: it counts as failed.
    """
    purchase, market = bought.purchase, session.market
    bought.verified = await verified.follow(
        request.parse(purchase.request),
        purchase.answers.roots,
        purchase.payments.paid.values(),
        market=market,
        pool=session.pool,
        last_epoch=market.committee.epoch_at(int(time.time() * 1000)),
        progress=progress,
    )
    assert session.holder is not None and session.closings is not None  # as there is a market
    await verified.settle(bought.verified, purchase.request, session.holder, session.keys)
    bought.closed = await session.closings.finish(purchase.request.id)
    return bought.verified


def judgement(jobs: Sequence[PurchasedJob]) -> dict[str, Any]:
    """What was drawn of the jobs, what came of it, and what was never certified, as plain data."""
    return {
        "verdicts": verdicts(jobs),
        "uncertified": uncertified(jobs),
        "refunded_msat": sum(one.verified.refunded_msat for one in jobs if one.verified is not None),
    }


def verdicts(jobs: Sequence[PurchasedJob]) -> list[dict[str, Any]]:
    """What was drawn of the jobs and what came of it, as plain data."""
    return [
        {
            "request": sample.request,
            "task": sample.task,
            "chunk": sample.chunk,
            "provider": sample.provider,
            "outcome": found.verdicts[sample.key].outcome if sample.key in found.verdicts else "",
            "culprit": found.verdicts[sample.key].culprit if sample.key in found.verdicts else "",
            "certificate": found.certificates[sample.key].id if sample.key in found.certificates else "",
        }
        for bought in jobs
        if (found := bought.verified) is not None
        for sample in found.samples
    ]


def uncertified(jobs: Sequence[PurchasedJob]) -> list[dict[str, Any]]:
    """What was paid and no certificate held in time, as plain data: it was never drawn, so no verdict refunds it."""
    found = []
    for bought in jobs:
        final = bought.verified.final if bought.verified is not None else set()
        for id_, closing in bought.closed.closings.items() if bought.closed is not None else ():
            assert bought.closed is not None
            paid = {(one.chunk, one.attempt): one.amount_msat for one in bought.closed.receipts[id_].chunks}
            found += [
                {
                    "request": closing.request,
                    "provider": closing.provider,
                    "chunk": chunk,
                    "attempt": attempt,
                    "paid_msat": paid.get((chunk, attempt), 0),
                }
                for chunk, attempt in closing.uncertified
                if (closing.provider, chunk, attempt) not in final  # which closings do not wait for
            ]
    return found
