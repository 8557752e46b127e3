"""The final roots of a job: commitments and quorum certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.customer.audit.finding import Line, missing_line, not_yet, ok, wrong
from nodewire.customer.payments.receipt_finalizer import COMMIT_EPOCHS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.customer.audit.public_events import Record
    from nodewire.protocol.job.feedback import Feedback


def lines(record: Record) -> Iterator[Line]:
    for id_, reason in record.refused.items():
        yield wrong("record", f"event {id_[:16]}", reason)
    yield from _certificates(record)
    yield from _commitments(record)


def _certificates(record: Record) -> Iterator[Line]:
    finality = record.finality
    for epoch in sorted({one.epoch for one in finality.committed.values()}):
        certified = finality.certificates.get(epoch)
        what = f"epoch {epoch}"
        if certified is None and (again_s := record.seconds_to(epoch)):
            yield not_yet("certificate", what, "its oracles have still to vote", again_s)
        elif certified is None:
            yield missing_line("certificate", what, "no relay has a quorum certificate of it")
        elif epoch in finality.unread:
            yield missing_line("certificate", what, f"what it certifies cannot be read: {finality.unread[epoch]}")
        else:
            yield ok("certificate", what, f"{len(certified.votes)} oracles certified {certified.digest[:16]}")


def _commitments(record: Record) -> Iterator[Line]:
    plan = record.request.plan
    for (provider, chunk, attempt), said in sorted(record.claims.items(), key=lambda item: item[0][1:] + item[0][:1]):
        assert said.due is not None
        what = f"chunk {chunk} by {provider[:8]}"
        found = record.finality.of_chunk(plan, provider, chunk, attempt)
        held = record.finality.claimed(plan, provider, chunk, attempt, said.due.root)
        if held is not None:
            tasks = ", ".join(one.root.task for one in found)
            yield ok("commitment", what, f"{tasks} in {held.commitment[:16]}, certified in epoch {held.epoch}")
        elif found:
            yield wrong("commitment", what, "the certified roots are not those that payment was claimed with")
        else:
            yield _uncertified(record, said, what)


def _uncertified(record: Record, said: Feedback, what: str) -> Line:
    """What is claimed and not certified is nobody's fault before its time is over."""
    assert said.due is not None
    committee, plan = record.committee, record.request.plan
    last = plan.deadline_epoch(said.due.chunk, committee.epoch_ms)
    usual = min(last, committee.epoch_at(said.created_at * 1000) + COMMIT_EPOCHS)
    if again_s := record.seconds_to(usual):
        return not_yet("commitment", what, f"it is certified by epoch {usual}", again_s)
    if again_s := record.seconds_to(last):
        return not_yet("commitment", what, f"it is late, and in time until epoch {last}", again_s)
    return missing_line("commitment", what, "no certificate holds it, and its time is over")
