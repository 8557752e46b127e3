"""What a fault did to a generation: how long it stood still, whether anybody was paid twice. Part of
bench.market.chaos."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.report import spread
from bench.tools.jobs import Generated

Kind = Literal["kill", "stop"]


@dataclass(slots=True)
class Fault:
    """What is done to one generation: `kind` to the plan's provider number `victim` (modulo how many there are) after
    `after` pieces and `delay` of a step; after 0 pieces `delay` is the part of the usual time to the first token."""

    kind: Kind
    victim: int
    after: int
    delay: float

    @classmethod
    def drawn(cls, rng: random.Random, tokens: int, kinds: Sequence[Kind]) -> Fault:
        return cls(rng.choice(kinds), rng.randrange(2**16), rng.randrange(0, max(1, tokens - 4)), rng.random())


@dataclass(slots=True)
class Outcome:
    """One generation with its fault. Times in ms; None where they could not be measured."""

    fault: Fault
    victim: str = ""
    tasks: tuple[str, ...] = ()
    request: str = ""
    anew: int = 0
    """How many further jobs it took."""
    identical: bool = False
    error: str = ""
    missed: bool = False
    stall_ms: float | None = None
    back_s: float | None = None


@dataclass(frozen=True, slots=True)
class Normal:
    """Medians of fault-free generations."""

    step_ms: float
    first_ms: float


def stall_ms(done: Generated, struck: float, stood: float) -> float | None:
    """The longest time without output that ends after the fault, in ms. `struck`: when the signal was sent; `stood`:
    when the request was seen on the relay; both monotonic. None if nothing came after it."""
    gaps = [b - a for a, b in zip([stood, *done.moments], done.moments, strict=False) if b > struck]
    return max(gaps) * 1_000 if gaps else None


def paid_twice(paid: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """(chunk, payee) of one job that were paid more than once. `paid`: the customer's paid debts (payee, chunk)."""
    times = Counter((debt["chunk"], debt["payee"]) for debt in paid)
    return sorted(key for key, count in times.items() if count > 1)


@dataclass(slots=True)
class Part:
    """Generations with their faults; those of documents that were made before come first."""

    lookahead: int
    outcomes: list[Outcome] = field(default_factory=list)
    double_paid: list[dict[str, Any]] = field(default_factory=list)

    def add(self, document: Path, arm: str, seed: int) -> None:
        """Go on from what a run of this bench has printed, broken off or not.

        Raises ValueError: it had other choices to make.
        """
        said = json.loads(document.read_text())
        before = said["arms"].get(arm)
        if before is None:
            return
        if (said["seed"], before["lookahead"]) != (seed, self.lookahead):
            raise ValueError(f"{document}: seed {said['seed']}, lookahead {before['lookahead']}")
        for one in before["generations"]:
            self.outcomes.append(Outcome(**{**one, "fault": Fault(**one["fault"])}))
        self.double_paid += before["double_paid"]

    def document(self) -> dict[str, Any]:
        struck = [o for o in self.outcomes if o.victim]
        return {
            "lookahead": self.lookahead,
            "generations": [asdict(o) for o in self.outcomes],
            "missed": sum(o.missed for o in self.outcomes),
            "identical": sum(o.identical for o in self.outcomes),
            "anew": sum(bool(o.anew) for o in self.outcomes),
            "errors": sorted({o.error.partition(":")[0] for o in self.outcomes if o.error}),
            "double_paid": self.double_paid,
            **{
                f"{kind}_{name}": spread(
                    [x for o in struck if o.fault.kind == kind and (x := getattr(o, name)) is not None]
                )
                for kind in ("kill", "stop")
                for name in ("stall_ms", "back_s")
            },
        }
