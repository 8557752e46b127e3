"""Verification: the samples that a beacon draws (kind 8844).

sampled  `c`, `n` = epoch/<number>, `e` = the request, `p` = each verifier; content = Sampled. Published by the leader
         of the epoch, else by anyone: it says nothing that cannot be derived (plan.sample).

A verifier's answer is its own root, in a commitment that is certified (nips/19-judging.md). It never sees what the
provider committed to. No leaves, salts or sketches are shown, so a relay's dump confirms no guess of a prompt.
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
