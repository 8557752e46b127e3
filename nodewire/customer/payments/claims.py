"""Pays what the providers of a running job claim, again and again while the cause of a failure may pass."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError

if TYPE_CHECKING:
    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.customer.payments.job_payments import JobPayments
    from nodewire.protocol.job.feedback import Feedback

_PAY_AGAIN_S = (0.2, 1.0, 3.0)
log = logging.getLogger("nodewire.customer")


class Claims:
    """A claim that cannot be paid ends the job. Of one that is false its provider is blamed (`NodewireError.by`)."""

    def __init__(self, payments: JobPayments, background: JobTaskGroup) -> None:
        self.unpaid: dict[str, NodewireError] = {}
        """Why a claim (`payment-required`, by event id) is not paid yet."""
        self._payments = payments
        self._background = background

    def claimed(self, said: Feedback) -> None:
        try:
            if self._payments.expects(said):
                self._background.spawn(self._pay(said))
        except BadInput as error:
            error.by = said.provider
            self._background.fail(error)

    def may_be_used_up(self) -> bool:
        """Whether the budget may be too small for what is computed now."""
        return self._payments.may_be_used_up()

    async def _pay(self, said: Feedback) -> None:
        for pause_s in (*_PAY_AGAIN_S, None):
            try:
                await self._payments.asked(said)
                self.unpaid.pop(said.id, None)
                return
            except NodewireError as error:
                self.unpaid[said.id] = error
                log.warning("payment to %s: %s", said.provider[:8], error)
                if pause_s is None or not error.retryable:
                    if isinstance(error, BadInput):
                        error.by = said.provider
                    if not error.by:  # it is this customer's wallet; one provider's fault leaves the others paid
                        await self._payments.fail(error)
                    self._background.fail(error)
                    return
            await asyncio.sleep(pause_s)
