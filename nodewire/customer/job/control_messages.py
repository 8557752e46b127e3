"""The closes and requests that a job's members send to its customer over the wire."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, BadInput, NotAllowed
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.verification.statement import LACKING
from nodewire.wire.evidence.output_signer import OutputSigner, tell

if TYPE_CHECKING:
    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.customer.payments.job_payments import JobPayments
    from nodewire.wire.job.mailbox import JobMailbox

log = logging.getLogger("nodewire.customer")


async def follow(
    request: str,
    mailbox: JobMailbox,
    driver: str,
    payments: JobPayments,
    signing: OutputSigner | None,
    background: JobTaskGroup,
) -> None:
    """Take note of what the driver (a public key) signs off, which is what may be charged.

    Say again in the background what was signed of tasks that run here (`signing`).
    """
    async for peer, document in mailbox.controls():
        try:
            if signing is not None and document.get("t") == LACKING:
                again = signing.again(peer, document.get("edge"), document.get("first"))
                background.spawn(tell(mailbox.control, peer, again))
                continue
            close = Close.from_control(document)
            if close is None:
                continue
            if close.request != request or close.attempt:
                raise BadFrame("close", "of another job or attempt")
            close.check(driver)
        except (BadInput, NotAllowed) as error:  # one member's lie is not the driver's word
            log.warning("%s by %s was refused: %s", document.get("t"), peer[:8], error)
        else:
            await payments.closed(close.chunk, close.units)
