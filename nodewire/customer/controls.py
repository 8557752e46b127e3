"""What the members of a job tell its customer over the wire: which chunks are over, and who takes over from whom."""

from __future__ import annotations

import logging

from nodewire.customer.payments import JobPayments
from nodewire.errors import BadFrame, BadInput, NotAllowed
from nodewire.job_task_group import JobTaskGroup
from nodewire.protocol.close import Close
from nodewire.protocol.sent import LACKING
from nodewire.wire.handover import Handover
from nodewire.wire.mailbox import JobMailbox
from nodewire.wire.signing import Signing, tell

log = logging.getLogger("nodewire.customer")


async def follow(
    request: str,
    mailbox: JobMailbox,
    handover: Handover,
    payments: JobPayments,
    signing: Signing | None,
    background: JobTaskGroup,
) -> None:
    """Take note of what the driver signs off, which is what may be charged, and of takeovers; say again in the
    background what was signed of tasks that run here (`signing`)."""
    async for peer, document in mailbox.controls():
        try:
            if signing is not None and document.get("t") == LACKING:
                again = signing.again(peer, document.get("edge"), document.get("first"))
                background.spawn(tell(mailbox.control, peer, again))
                continue
            close = Close.from_control(document)
            if close is None:
                await handover.heard(peer, document)
                continue
            newest = handover.takeover.attempt if handover.takeover is not None else 0
            if close.request != request or close.attempt > newest:
                raise BadFrame("close", "of another job or attempt")
            close.check(handover.driver)
        except (BadInput, NotAllowed) as error:  # one member's lie is not the driver's word
            log.warning("%s by %s was refused: %s", document.get("t"), peer[:8], error)
        else:
            await payments.closed(close.chunk, close.units)
