"""What providers publish of themselves in their ads' tags: read if it is in order, void tag by tag if it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.nostr.event import MAX_BYTES, Event
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import ad_profile as published
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.ad_profile import (
    UNPROFILED,
    PublishedFit,
    PublishedProfile,
    PublishedRate,
    PublishedTask,
)
from tests.protocol.committee.actors import keys

ME = keys("published")
FIRST, SECOND = "aa" * 32, "bb" * 32
TASK = PublishedTask(peak_bytes=33_000_000, us=1_800, positions=64, us_together=9_100)
PROFILE = PublishedProfile(
    at_s=1_700_000_000,
    rates={"float32": PublishedRate(90 * 10**9, 12 * 10**9), "bfloat16": PublishedRate(200 * 10**9, 12 * 10**9)},
    fit=PublishedFit(call_us=140, slower=3.0, within=1.25),
    tasks={(FIRST, "driver"): replace(TASK, positions=1, us_together=1_800), (SECOND, "stage.0"): TASK},
)


def ad(**tasks: tuple[str, ...]) -> Ad:
    def offer(digest: str, names: tuple[str, ...]) -> ManifestOffer:
        offers = tuple(TaskOffer(task=name, price_msat=1, us_per_position=5) for name in names)
        return ManifestOffer(manifest=digest, tasks=offers, slots=2)

    held = tasks or {FIRST: ("driver",), SECOND: ("stage.0", "stage.1")}
    return Ad(name="me", manifests=tuple(offer(digest, names) for digest, names in held.items()))


def said(*tags: tuple[str, ...]) -> Event:
    """An ad's event with these tags beside its own; no signature is looked at here."""
    made = ads.build(ME, ad(), created_at=1)
    return replace(made, tags=(*made.tags, *tags))


def read(*tags: tuple[str, ...]) -> PublishedProfile:
    event = said(*tags)
    assert ads.parse(event) == ad()  # whatever stands in them
    return published.parse(event, ad())


def test_what_is_published_is_read_again():
    event = ads.build(ME, ad(), created_at=1, profile=published.build(PROFILE, ad()))
    assert ads.parse(event) == ad()
    assert published.parse(event, ad()) == PROFILE
    assert PROFILE.gflops == pytest.approx(30.0)


def test_an_ad_without_a_profile_is_as_it_was():
    assert ads.build(ME, ad(), created_at=1) == ads.build(
        ME, ad(), created_at=1, profile=published.build(UNPROFILED, ad())
    )
    assert {tag[0] for tag in ads.build(ME, ad(), created_at=1).tags} == {"d", "k", "x"}
    assert read() == UNPROFILED
    assert UNPROFILED.gflops is None


def test_only_tasks_that_are_offered_are_published():
    other = ad(**{SECOND: ("stage.1",)})
    event = ads.build(ME, other, created_at=1, profile=published.build(PROFILE, other))
    assert not published.parse(event, other).tasks


GOOD = {
    "profiled": ("profiled", "1700000000"),
    "rate": ("rate", "float32", "90000000000", "12000000000"),
    "fit": ("fit", "140", "3000", "1250"),
    "measured": ("measured", "1", "stage.0", "33000000", "1800", "64", "9100"),
}
HOSTILE = ("", "-1", "0x10", "1e9", "1.5", " 1", "١", "9" * 19, "9" * 5_000, "nan", "\x1b[2J", "1\n")
BAD = [
    *((name, index, value) for name, tag in GOOD.items() for index in range(1, len(tag)) for value in HOSTILE),
    ("rate", 1, "float64"),
    ("rate", 2, "0"),
    ("rate", 3, "0"),
    ("fit", 2, "0"),
    ("fit", 3, "999"),
    ("measured", 1, "2"),
    ("measured", 2, "driver"),
    ("measured", 4, "0"),
    ("measured", 5, "0"),
    ("measured", 5, "1"),
    ("measured", 6, "0"),
]


def spoilt(name: str, index: int, value: str) -> tuple[str, ...]:
    return tuple(value if k == index else one for k, one in enumerate(GOOD[name]))


@pytest.mark.parametrize(("name", "index", "value"), BAD, ids=lambda one: repr(one)[:24])
def test_a_bad_tag_is_void_and_the_others_stand(name, index, value):
    others = [tag for one, tag in GOOD.items() if one != name]
    assert read(*others, spoilt(name, index, value)) == read(*others)
    assert read(*GOOD.values()) != read(*others)


@pytest.mark.parametrize("name", GOOD)
def test_a_tag_that_is_too_short_or_too_long_is_void(name):
    tag = GOOD[name]
    for wrong in (*(tag[:k] for k in range(1, len(tag))), (*tag, "1")):
        assert read(wrong) == UNPROFILED


def test_of_two_about_the_same_the_first_counts():
    second = {
        "rate": ("rate", "float32", "1", "1"),
        "measured": ("measured", "1", "stage.0", "1", "1", "2", "1"),
        "profiled": ("profiled", "1"),
        "fit": ("fit", "1", "1", "1000"),
    }
    assert read(*GOOD.values(), *second.values()) == read(*GOOD.values())


def test_no_more_tags_are_looked_at_than_an_ad_may_have():
    many = [("measured", "0", "nobody", "1", "1", "1", "1")] * published.MAX_TASKS
    assert not read(*many, GOOD["measured"]).tasks
    assert read(*many[1:], GOOD["measured"]).tasks


def test_an_ad_of_very_many_tasks_publishes_the_first_and_stays_an_event():
    names = tuple(f"{'a' * 50}.{k}" for k in range(400))
    large = ad(**{FIRST: names})
    tasks = {(FIRST, name): PublishedTask(2**52, 2**39, 2**19, 2**39) for name in names}
    event = ads.build(ME, large, created_at=1, profile=published.build(replace(PROFILE, tasks=tasks), large))
    assert len(event.to_json().encode()) < MAX_BYTES
    assert [task for _, task in published.parse(event, large).tasks] == list(names[: published.MAX_TASKS])


_words = st.one_of(st.sampled_from((*GOOD, "x", "float32", "stage.0", "0", "1", "64")), st.text(max_size=12))


@given(st.lists(st.lists(_words, min_size=1, max_size=8).map(tuple), max_size=20))
def test_nothing_that_stands_in_tags_harms_who_reads_them(tags):
    others = [tag for tag in tags if tag[0] not in ("d", "k", "x")]
    found = published.parse(said(*others), ad())
    assert len(found.tasks) <= 3 and set(found.rates) <= set(published.DTYPES)
    assert found.gflops is None or 0 < found.gflops < 10**13
