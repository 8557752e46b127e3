"""Verdicts: what the committee found of one sampled chunk, and the certificate (kind 8852) that 2f+1 oracles say so.

Votes are kind 8850 with `t` = vote, `n` = verdict/<sample key> (verdict/<sample key>/2 in a second ballot), `x` = the
verdict's digest, so two different votes by one oracle in one ballot are evidence against it (kind 8853).

certificate  `c`, `n`, `x` as its votes have them, `e` = the request; content = {"v": 1, "verdict": Verdict, "votes":
             [signed vote events]}. It proves itself: anyone may publish it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import orjson
from pydantic import Field, model_validator

from nodewire.errors import BadInput, BadQuorum, BadTag, NodewireError
from nodewire.nostr.event import Event, parse_unverified, sign
from nodewire.nostr.event import verify as verify_event
from nodewire.protocol import kinds
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.committee.committee import MAX_ORACLES, Committee
from nodewire.protocol.encoding import canonical, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Msat, Name, Schema
from nodewire.protocol.verification import complaint

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.CERTIFICATE
MAX_VERIFIERS = 3

Outcome = Literal["pass", "fail", "withheld", "unsure"]


def sample_key(provider: str, request: str, task: str, chunk: int, attempt: int) -> str:
    """The name of a sample, 64 hex digits. A root that a stranger commits for the job is another sample."""
    return canonical.digest("nodewire/sample/1", [provider, request, task, chunk, attempt])


def topic(ballot: str) -> str:
    """The topic of all votes in one ballot on a sample: the first is called by the sample's key."""
    return f"verdict/{ballot}"


def second(key: str) -> str:
    """The ballot on the sample with this key that follows where the first found no 2f+1 of one mind."""
    return f"{key}/2"


class Verdict(Schema):
    """`pass` of the provider's work, `fail`, `withheld` (it did not show what it must: a refund), or `unsure`."""

    TAG: ClassVar[str] = "nodewire/verdict/1"
    MAX_BYTES: ClassVar[int] = 4_096
    ERROR: ClassVar[type[BadInput]] = BadQuorum

    v: Literal[1] = 1
    committee: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    """The draw's: its certificate holds the root, its beacon drew the sample."""
    request: Hex32
    task: Name
    chunk: Count
    attempt: Count
    provider: Hex32
    root: Hex32
    """The provider's certified root of the chunk."""
    outcome: Outcome
    culprit: Hex32 | Literal[""] = ""
    """Who is convicted: the provider if it failed, a verifier that lied about work that passes, who equivocated, or
    nobody."""
    verifiers: tuple[tuple[Hex32, bool], ...] = Field(default=(), max_length=MAX_VERIFIERS)
    """The drawn verifiers that reported, and whether what they reported agrees with the outcome. In an `unsure` their
    being named says that the provider's work is in doubt though all evidence was there."""
    accomplices: tuple[Hex32, ...] = Field(default=(), max_length=MAX_VERIFIERS)
    """Verifiers that are convicted with a provider that failed: they committed to work as wrong as its own."""
    equivocated: tuple[Name, Count] | None = None
    """Edge and chunk of an input of this work: what the culprit signed that it sent is not what it committed to. So
    nobody can say what this work should be (`unsure`)."""
    claimed: Hex32 | Literal[""] = ""
    """The provider's claim (a kind 7000) whose roots no certificate held in time (`protocol.verification.complaint`):
    `withheld`. `root` is the claim's, `task` the first that the plan has for the provider, `epoch` the last one in
    time."""
    claimed_msat: Msat = 0
    price_msat: Msat = 0
    """Of a pass: what the plan pays for the task's chunk, by which it counts in the provider's account."""

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        self._check_blame()
        self._check_doubt()
        self._check_amounts()
        return self

    def _check_blame(self) -> None:
        """Whom the verdict names did what it is named for."""
        agreed = dict(self.verifiers)
        if len(agreed) != len(self.verifiers) or self.provider in agreed:
            raise ValueError("verifiers: one stands twice, or is the provider")
        if self.outcome == "fail" and self.culprit != self.provider:
            raise ValueError("culprit: the provider's work fails by nobody else")
        if self.outcome == "pass" and self.culprit and agreed.get(self.culprit, True):
            raise ValueError("culprit: no verifier that disagreed")
        if any(agreed.get(one, True) for one in self.accomplices) or (self.accomplices and self.outcome != "fail"):
            raise ValueError("accomplices: no verifier that disagreed with a fail")
        if len(set(self.accomplices)) != len(self.accomplices):
            raise ValueError("accomplices: one stands twice")

    def _check_doubt(self) -> None:
        """Who contradicted itself is convicted of that alone, and nobody is of work that is not known."""
        if self.equivocated is not None:
            if self.outcome != "unsure" or self.culprit in ("", self.provider):
                raise ValueError("equivocated: convicts the producer of an input, and says nothing of the work")
            if self.verifiers:
                raise ValueError("verifiers: nobody can agree on work whose input is not known")
            if self.equivocated[1] > self.chunk:
                raise ValueError("equivocated: a later chunk is no input of this one")
        elif self.outcome in ("withheld", "unsure") and self.culprit:
            raise ValueError("culprit: nobody is convicted in doubt")

    def _check_amounts(self) -> None:
        """A price stands for what passed, a claim for what was withheld."""
        if bool(self.claimed) != bool(self.claimed_msat):
            raise ValueError("claimed_msat: a claim without an amount, or an amount without a claim")
        if self.price_msat and self.outcome != "pass":
            raise ValueError("price_msat: only what passed counts by its price")
        if self.claimed and (self.outcome != "withheld" or self.verifiers):
            raise ValueError("claimed: what was never committed to was withheld, and nobody verified it")

    @property
    def key(self) -> str:
        """The sample's, or the case's about a claim."""
        if self.claimed:
            return complaint.case_key(self.provider, self.request, self.claimed)
        return sample_key(self.provider, self.request, self.task, self.chunk, self.attempt)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the work was computed again and is neither alike nor apart.

        An `unsure` for lack of evidence, or by an equivocation, names no verifier.
        """
        return self.outcome == "unsure" and bool(self.verifiers)

    @property
    def convicted(self) -> tuple[str, ...]:
        """Everybody whom it convicts."""
        return (self.culprit, *self.accomplices) if self.culprit else self.accomplices


@dataclass(frozen=True, slots=True)
class Certificate:
    """A verdict and the votes that certify it. Only `check` says that they do."""

    verdict: Verdict
    votes: tuple[Event, ...]

    def check(self, committee: Committee) -> None:
        """Check that 2f+1 oracles of `committee` signed votes for this verdict and nothing else is among the votes.

        Raises:
            BadQuorum: another committee, an outsider's or malformed vote, one for something else, or too few.

        """
        if self.verdict.committee != committee.digest():
            raise BadQuorum("committee", "the verdict names another committee")
        key, wanted = self.verdict.key, (self.verdict.committee, self.verdict.digest())
        voters, topics = set(), set()
        for event in self.votes:
            try:
                vote = oracle_round.parse(event)
                verify_event(event)
            except NodewireError as error:
                raise BadQuorum("votes", "one is malformed or not signed by its author") from error
            if not isinstance(vote, oracle_round.Vote) or (vote.committee, vote.x) != wanted:
                raise BadQuorum("votes", "one is for something else")
            topics.add(vote.topic)
            if not topics < {topic(key), topic(second(key))}:
                raise BadQuorum("votes", "not all of one ballot on this sample")
            if committee.oracle(vote.oracle) is None:
                raise BadQuorum("votes", "one is an outsider's")
            voters.add(vote.oracle)
        if len(voters) < committee.quorum:
            raise BadQuorum("votes", f"of {len(voters)} oracles, {committee.quorum} needed")


def build_vote(keys: Keys, verdict: Verdict, *, created_at: int) -> Event:
    """An oracle's vote for `verdict`."""
    return oracle_round.build_vote(keys, verdict.committee, topic(verdict.key), verdict.digest(), created_at=created_at)


def build(keys: Keys, certificate: Certificate, *, created_at: int, expires_at_s: int | None = None) -> Event:
    """`expires_at_s` counts for a verdict that convicts nobody and is about no claim; the others stay."""
    verdict = certificate.verdict
    tags_ = [("c", verdict.committee), ("n", topic(verdict.key)), ("x", verdict.digest()), ("e", verdict.request)]
    if not verdict.convicted and not verdict.claimed:
        tags_ += tags.expiration(expires_at_s)
    document = {"v": 1, "verdict": verdict.document(), "votes": [vote.as_dict() for vote in certificate.votes]}
    content = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
    return sign(keys, KIND, created_at=created_at, content=content, tags=tags_)


def parse(event: Event) -> Certificate:
    """The certificate in a verified event; its votes are neither verified nor counted until `check`.

    Raises:
        BadEvent, BadTag, BadQuorum, BadVersion: it is malformed.

    """
    tags.check_kind(event, KIND)
    document = tags.document(event, {"v", "verdict", "votes"})
    if not isinstance(document["votes"], list) or len(document["votes"]) > MAX_ORACLES:
        raise BadQuorum("votes", f"not a list of at most {MAX_ORACLES}")
    verdict = Verdict.from_document(document["verdict"])
    votes = tuple(parse_unverified(vote) for vote in document["votes"])
    cited = (tags.hex32(event, "c"), tags.text(event, "n"), tags.hex32(event, "x"))
    if cited != (verdict.committee, topic(verdict.key), verdict.digest()):
        raise BadTag("x", "the tags name another verdict")
    return Certificate(verdict, votes)
