"""Verification: the samples that a beacon draws (kind 8844) and the reports of those drawn to verify (kind 6844).

sampled  `c`, `n` = epoch/<number>, `e` = the request, `p` = each verifier; content = Sampled. Published by the leader
         of the epoch, else by anyone: it says nothing that cannot be derived (plan.sample).
report   `c`, `e` = the request, `p` = the provider, `d` = the sample's key; content = Report. A verifier reports when
         its own commitment to what it computed is certified, and never sees what the provider committed to.

Neither shows leaves, salts or sketches: from a relay's dump no guess of a prompt can be confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Count, Hex32, Name, Schema
from nodewire.protocol.verification.verdict import MAX_VERIFIERS, sample_key

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.VERIFICATION
REPORT_KIND = kinds.result_of(kinds.VERIFICATION)
MAX_SAMPLES = 256
"""In one event."""


class Sample(Schema):
    """One drawn chunk of one task: what `provider` committed to as `root` is computed again by `verifiers`.

    The first verifier begins; the next do if it does not report in time, or if its result is in doubt.
    """

    provider: Hex32
    request: Hex32
    task: Name
    chunk: Count
    attempt: Count
    root: Hex32
    verifiers: tuple[Hex32, ...] = Field(max_length=MAX_VERIFIERS)

    @property
    def key(self) -> str:
        return sample_key(self.provider, self.request, self.task, self.chunk, self.attempt)


class JobSamples(Schema):
    NAME: ClassVar[str] = "sampled"
    MAX_BYTES: ClassVar[int] = 60_000
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    committee: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    """Whose certificate holds the roots, and whose beacon draws."""
    certificate: Hex32
    """Digest of that epoch's body."""
    request: Hex32
    samples: tuple[Sample, ...] = Field(min_length=1, max_length=MAX_SAMPLES)


class Report(Schema):
    """`root` is the verifier's own, certified in `epoch`; "withheld": it could not get what it must compute from."""

    MAX_BYTES: ClassVar[int] = 4_096
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    committee: Hex32
    drawn: int = Field(ge=0, le=tags.MAX_EPOCH)
    """The epoch of the draw."""
    provider: Hex32
    request: Hex32
    task: Name
    chunk: Count
    attempt: Count
    outcome: Literal["computed", "withheld"]
    root: Hex32 | Literal[""]
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)

    @property
    def key(self) -> str:
        return sample_key(self.provider, self.request, self.task, self.chunk, self.attempt)


def build(keys: Keys, sampled: JobSamples, *, created_at: int) -> Event:
    return sign(keys, KIND, created_at=created_at, content=sampled.to_json(), tags=_tags(sampled))


def _tags(sampled: JobSamples) -> list[tuple[str, str]]:
    verifiers = dict.fromkeys(v for sample in sampled.samples for v in sample.verifiers)
    of = [("c", sampled.committee), ("n", tags.epoch_topic(sampled.epoch)), ("e", sampled.request)]
    return [*of, *(("p", verifier) for verifier in verifiers)]


def parse(event: Event) -> JobSamples:
    """The samples in a verified event; whether they were drawn is for who reads them to derive.

    Who looks for its key among the tags must find it there, and for as long as it looks: they are exactly `build`'s.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: it is malformed.

    """
    tags.check_kind(event, KIND)
    sampled = JobSamples.parse(event.content)
    if (tags.hex32(event, "c"), tags.epoch_of(event)) != (sampled.committee, sampled.epoch):
        raise BadTag("n", "the tags name another committee or epoch than the content")
    if any(sample.request != sampled.request for sample in sampled.samples):
        raise BadEvent("samples", "one is of another request")
    if sorted(map(tuple, event.tags)) != sorted(_tags(sampled)):
        raise BadTag("p", "not just the committee, the epoch, the request and the verifiers")
    return sampled


def build_report(keys: Keys, report: Report, *, created_at: int) -> Event:
    tags_ = [("c", report.committee), ("e", report.request), ("p", report.provider), ("d", report.key)]
    return sign(keys, REPORT_KIND, created_at=created_at, content=report.to_json(), tags=tags_)


def parse_report(event: Event) -> Report:
    """The report in a verified event. Raises as `parse`."""
    tags.check_kind(event, REPORT_KIND)
    report = Report.parse(event.content)
    if (tags.hex32(event, "c"), tags.hex32(event, "e")) != (report.committee, report.request):
        raise BadTag("e", "the tags name another committee or request than the content")
    if (report.outcome == "computed") != (report.root != ""):
        raise BadEvent("root", "stands if and only if something was computed")
    return report
