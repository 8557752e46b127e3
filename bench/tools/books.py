"""What a market's records say after its jobs: verdicts and requests from the relay, money from ledgers and bonds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nodewire.errors import BadInput
from nodewire.nostr.event import Event
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job.request import Request
from nodewire.protocol.job.request import parse as parse_request
from nodewire.protocol.verification import sample
from processes.market import Market, Provider

Outcome = Literal["pass", "fail", "withheld", "unsure"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "fail", "withheld", "unsure")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict's certificate (8852), as far as the books need it."""

    request: str
    task: str
    chunk: int
    provider: str
    outcome: str
    convicted: tuple[str, ...]
    """For the work, or as verifiers that lied."""
    verifiers: tuple[str, ...]
    certified_s: int

    @classmethod
    def read(cls, event: Event) -> Verdict | None:
        """The verdict in a certificate, or None: 8852 certifies epochs, too."""
        try:
            said = json.loads(event.content)["verdict"]
        except (ValueError, KeyError, TypeError):
            return None
        verifiers = tuple(str(public) for public, agreed in said["verifiers"] if agreed)
        convicted = tuple(one for one in (said["culprit"], *said.get("accomplices", ())) if one)
        parts = (said["request"], said["task"], int(said["chunk"]), said["provider"], said["outcome"], convicted)
        return cls(*parts, verifiers=verifiers, certified_s=event.created_at)


@dataclass(slots=True)
class Books:
    """`requests` in their order; `samples` by (request, task, chunk, provider); money by provider's name."""

    verdicts: list[Verdict] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    samples: set[tuple[str, str, int, str]] = field(default_factory=set)
    earned_msat: dict[str, int] = field(default_factory=dict)
    lost_msat: dict[str, int] = field(default_factory=dict)
    """What is gone of a bond: the whole of one that was slashed, else what was paid out of it."""

    @classmethod
    async def of(cls, market: Market, providers: Sequence[Provider], *, after_s: int = 0) -> Books:
        """All since the unix time `after_s`."""
        wanted = frozenset({kinds.CERTIFICATE, kinds.INFERENCE, kinds.VERIFICATION})
        books = cls.read(await market.events(Filter(kinds=wanted, since=after_s or None)))
        for provider in providers:
            books.lost_msat[provider.name] = await market.lost_msat(provider)
            books.earned_msat[provider.name] = market.earned_msat(provider.name)
        return books

    @classmethod
    def read(cls, events: Iterable[Event]) -> Books:
        books = cls()
        first: dict[tuple[str, str, int, str], Verdict] = {}
        for event in sorted(events, key=lambda one: one.created_at):
            if event.kind == kinds.CERTIFICATE and (verdict := Verdict.read(event)) is not None:
                # Several oracles may publish one certificate: it is one verdict.
                first.setdefault((verdict.request, verdict.task, verdict.chunk, verdict.provider), verdict)
            elif event.kind == kinds.VERIFICATION:
                try:
                    drawn = sample.parse(event).samples
                except BadInput:
                    continue
                books.samples |= {(one.request, one.task, one.chunk, one.provider) for one in drawn}
            elif event.kind == kinds.INFERENCE:
                books.requests.append(parse_request(event))
        books.verdicts = list(first.values())
        return books

    def net_msat(self, provider: Provider) -> int:
        return self.earned_msat[provider.name] - self.lost_msat[provider.name]

    def convictions(self, culprit: str) -> list[Verdict]:
        return [v for v in self.verdicts if culprit in v.convicted]

    def convicted(self) -> set[str]:
        return {culprit for v in self.verdicts for culprit in v.convicted}

    def outcomes(self, verdicts: Iterable[Verdict] | None = None) -> dict[Outcome, int]:
        of = self.verdicts if verdicts is None else list(verdicts)
        return {outcome: sum(v.outcome == outcome for v in of) for outcome in OUTCOMES}

    def worked(self, provider: Provider) -> bool:
        named = any(provider.public in request.plan.providers() for request in self.requests)
        return named or any(provider.public in verdict.verifiers for verdict in self.verdicts)

    def jobs_until(self, moment_s: float) -> int:
        """How many requests had been published by then."""
        return sum(request.created_at <= moment_s for request in self.requests)

    def plans_after(self, public: str, gone_s: float) -> int:
        """Plans that name the node, of requests published after `gone_s`."""
        return sum(r.created_at > gone_s and public in r.plan.providers() for r in self.requests)
