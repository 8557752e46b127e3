"""Audit: re-derive a plan from what it cites, and say in which fields it differs from what it had to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import NodewireError
from nodewire.plan.assign import Busy, CertifiedEpoch, assign
from nodewire.protocol.committee import beacon as _beacon
from nodewire.protocol.market import snapshot as _snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.nostr.event import Event
    from nodewire.protocol.committee.beacon import BeaconPartial
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.quorum_certificate import Certificate
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.model.manifest import Manifest


@dataclass(frozen=True, slots=True)
class PlanMismatch:
    """`path` of the plan (dots and indexes) is `found` where `expected` follows from what the plan cites."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class EpochEvidence:
    """What a request shows of the epoch that its plan stands on, unchecked."""

    certificate: Certificate
    """Its votes are checked by `audit`."""
    partials: Iterable[BeaconPartial]
    """Of the beacon; those that prove nothing are passed over."""
    snapshot_blob: bytes
    """The blob that the plan cites, unread."""


def audit(
    plan: Plan,
    *,
    customer: str,
    manifest: Manifest,
    committee: Committee,
    evidence: EpochEvidence,
    busy: Sequence[Event] = (),
    manifest_digest: str | None = None,
) -> list[PlanMismatch]:
    """What is wrong with `plan`, carried by a request of `customer`; an empty list if it is the one that follows.

    Args:
        plan: as the request carries it.
        customer: the request's author, a public key.
        manifest: of the model that the plan names.
        committee: on whose word the plan stands.
        evidence: of the plan's epoch.
        busy: the verified feedback events that the plan cites, in any order.
        manifest_digest: of `manifest`, if it is known already.

    """
    certificate = evidence.certificate
    findings = list(_citations(plan, customer, manifest_digest or manifest.digest(), committee, certificate))
    snapshot: Snapshot | None = None
    beacon = plan.beacon
    exclusions: list[Busy] = []
    try:
        certificate.check(committee)
    except NodewireError as error:
        findings.append(PlanMismatch("certificate", "a valid quorum certificate", str(error)))
    try:
        beacon = _beacon.combine(committee, certificate.digest, evidence.partials)
    except NodewireError as error:
        findings.append(PlanMismatch("beacon", "2f+1 valid partials", str(error)))
    try:
        snapshot = _snapshot.unpack(evidence.snapshot_blob, certificate.body.snapshot)
    except NodewireError as error:
        findings.append(PlanMismatch("snapshot", certificate.body.snapshot, str(error)))
    try:
        by_id = {event.id: event for event in busy}
        exclusions = [Busy.cited(by_id[id_], customer) for id_ in plan.busy]
    except KeyError as error:
        findings.append(PlanMismatch("busy", "the cited feedback event", f"no event {error.args[0]}"))
    except NodewireError as error:
        findings.append(PlanMismatch("busy", "a busy feedback", str(error)))
    if snapshot is None or findings:
        return findings
    try:
        expected = assign(
            manifest,
            snapshot,
            epoch=CertifiedEpoch(committee, certificate.body, beacon),
            terms=plan.terms,
            customer=customer,
            k=plan.k,
            busy=exclusions,
            manifest_digest=plan.manifest,
        )
    except NodewireError as error:
        return [PlanMismatch(error.field, f"no plan at all ({error.code}: {error.reason})", "a plan")]
    return list(_differences("", expected.document(), plan.document()))


def _citations(
    plan: Plan, customer: str, manifest: str, committee: Committee, certificate: Certificate
) -> Iterable[PlanMismatch]:
    body = certificate.body
    expected = {
        "customer": customer,
        "manifest": manifest,
        "committee": committee.digest(),
        "certificate": certificate.digest,
        "epoch": body.epoch,
        "snapshot": body.snapshot,
    }
    for name, value in expected.items():
        if getattr(plan, name) != value:
            yield PlanMismatch(name, str(value), str(getattr(plan, name)))


def _differences(path: str, expected: Any, found: Any) -> Iterable[PlanMismatch]:
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for key in expected:
            yield from _differences(f"{path}.{key}" if path else key, expected[key], found[key])
    elif isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        for i, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _differences(f"{path}[{i}]", one, other)
    elif expected != found:
        yield PlanMismatch(path, str(expected)[:200], str(found)[:200])
