"""What a provider measured of itself and its tasks, as tags of its ad (31990). nips/04-ads.md.

    ["profiled", <unix seconds>]
    ["rate", <dtype>, <operations a second>, <bytes a second>]
    ["fit", <call_us>, <slower, in thousandths>, <within, in thousandths>]
    ["measured", <which x tag, from 0>, <task>, <peak bytes>, <us of one position>, <positions>, <us of these at once>]

They are claims that nobody certifies, and `assign/2` does not know of them. So a tag that is not as it should be is
void, and nothing else is: what remains counts, and the ad stands.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from nodewire.errors import BadTag
from nodewire.protocol.encoding import tags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.event import Event
    from nodewire.protocol.market.ad import Ad

PROFILED, RATE, FIT, MEASURED = "profiled", "rate", "fit", "measured"
DTYPES = ("float32", "bfloat16", "float16")
FITTED = "float32"
"""The dtype of whose rates `fit` speaks."""
MAX_TASKS = 64
"""Of an ad: a snapshot carries the ads of all nodes."""
MAX_PER_S = 10**18
MAX_US = 2**40
MAX_POSITIONS = 2**20
MAX_THOUSANDTHS = 10**7
MAX_BYTES = 2**53 - 1
_THOUSAND = 1_000


@dataclass(frozen=True, slots=True)
class PublishedRate:
    """What the device's best kernels do with a dtype."""

    flops_per_s: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class PublishedFit:
    """How far tasks are from `rates` (`plan.cost`).

    A call takes `call_us`, and `slower` times what its work would at best. Half of the calls that were measured are
    within a factor of `within` of that.
    """

    call_us: int
    slower: float
    within: float


@dataclass(frozen=True, slots=True)
class PublishedTask:
    """`us` of one position in a call, `us_together` of `positions` in one.

    These are as many as gave the most in a second, of those that were tried. `peak_bytes` of its process, above an
    empty one.
    """

    peak_bytes: int
    us: int
    positions: int
    us_together: int


@dataclass(frozen=True, slots=True)
class PublishedProfile:
    """`tasks` by manifest's digest and name; `at_s` 0 if it is not said when."""

    at_s: int = 0
    rates: Mapping[str, PublishedRate] = field(default_factory=dict)
    fit: PublishedFit | None = None
    tasks: Mapping[tuple[str, str], PublishedTask] = field(default_factory=dict)

    @property
    def gflops(self) -> float | None:
        """What tasks can be expected to run at, 10^9 operations a second; None where it cannot be told."""
        if self.fit is None or FITTED not in self.rates:
            return None
        return self.rates[FITTED].flops_per_s / self.fit.slower / 1e9


UNPROFILED = PublishedProfile()


def build(profile: PublishedProfile, ad: Ad) -> list[tuple[str, ...]]:
    """The tags that go with an ad: of tasks, those that it offers, and no more than MAX_TASKS."""
    said: list[tuple[str, ...]] = []
    for dtype, rate in profile.rates.items():
        said.append((RATE, dtype, str(rate.flops_per_s), str(rate.bytes_per_s)))
    if profile.fit is not None:
        slower, within = (round(one * _THOUSAND) for one in (profile.fit.slower, profile.fit.within))
        said.append((FIT, str(profile.fit.call_us), str(slower), str(within)))
    measured: list[tuple[str, ...]] = []
    for index, offer in enumerate(ad.manifests):
        for task in offer.tasks:
            if (one := profile.tasks.get((offer.manifest, task.task))) is not None:
                numbers = (one.peak_bytes, one.us, one.positions, one.us_together)
                measured.append((MEASURED, str(index), task.task, *map(str, numbers)))
    said += measured[:MAX_TASKS]
    return [(PROFILED, str(profile.at_s)), *said] if said else []


def parse(event: Event, ad: Ad) -> PublishedProfile:
    """What the tags of `ad`'s event say, as far as they are in order. Of two about the same the first counts."""
    at_s, rates, fit = 0, dict[str, PublishedRate](), None
    tasks: dict[tuple[str, str], PublishedTask] = {}
    for tag in _called(event, PROFILED, 1):
        with suppress(BadTag):
            at_s = _number(tag, 1, 0, tags.MAX_EPOCH, length=2)
    for tag in _called(event, RATE, len(DTYPES)):
        with suppress(BadTag):
            rate = PublishedRate(*(_number(tag, k, 1, MAX_PER_S, length=4) for k in (2, 3)))
            if tag[1] in DTYPES:
                rates.setdefault(tag[1], rate)
    for tag in _called(event, FIT, 1):
        with suppress(BadTag):
            call_us = _number(tag, 1, 0, MAX_US, length=4)
            slower, within = (_number(tag, k, least, MAX_THOUSANDTHS) for k, least in ((2, 1), (3, _THOUSAND)))
            fit = PublishedFit(call_us, slower / _THOUSAND, within / _THOUSAND)
    for tag in _called(event, MEASURED, MAX_TASKS):
        with suppress(BadTag):
            offer = ad.manifests[_number(tag, 1, 0, len(ad.manifests) - 1, length=7)]
            peak, us = _number(tag, 3, 0, MAX_BYTES), _number(tag, 4, 1, MAX_US)
            positions, together = _number(tag, 5, 1, MAX_POSITIONS), _number(tag, 6, 1, MAX_US)
            if any(tag[2] == one.task for one in offer.tasks) and (positions > 1 or us == together):
                tasks.setdefault((offer.manifest, tag[2]), PublishedTask(peak, us, positions, together))
    return PublishedProfile(at_s, rates, fit, tasks)


def _called(event: Event, name: str, most: int) -> list[tuple[str, ...]]:
    """The first `most` tags of this name, good or bad: what stands behind them is not read."""
    return list(islice((tag for tag in event.tags if tag[0] == name), most))


def _number(tag: tuple[str, ...], index: int, least: int, most: int, length: int = 0) -> int:
    """Raises BadTag: it is no decimal number from `least` to `most`, or the tag has not `length` elements."""
    if length and len(tag) != length:
        raise BadTag(tag[0], f"{len(tag)} elements instead of {length}")
    value = tags.number(tag[0], tag[index], most)
    if value < least:
        raise BadTag(tag[0], f"{value}, at least {least}")
    return value
