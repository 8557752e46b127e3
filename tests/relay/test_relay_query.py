"""Queries out of SQLite and deliveries by the index give what a loop over all events gives."""

import asyncio
import threading
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewire.errors import TimedOut
from nodewire.nostr.event import Event
from nodewire.nostr.nips.nip01 import Filter, newest_first
from relay import Config, Limits
from relay.clients.fanout import Fanout, Subscription
from relay.events import schema
from relay.events.querying import PAGE, Reader, _ranges, count, find, load
from relay.events.reading import Archive, TooLong
from relay.events.storing import Job, store

AUTHORS = [c * 64 for c in "abc"]
IDS = [f"{n:064x}" for n in range(30)]
VALUES = ["x", "y", "", "z" * 64]
EVERYBODY = Reader(now_s=0)

tags = st.lists(st.tuples(st.sampled_from(["t", "p", "d", "T", "long"]), st.sampled_from(VALUES + AUTHORS)), max_size=4)


@st.composite
def events(draw):
    """Regular events with distinct ids; the archive trusts ids and signatures, which are checked before it."""
    ids = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=12))
    moments, kinds = st.integers(1, 4), st.sampled_from([1, 7, 1059])
    return [
        Event(id_, draw(st.sampled_from(AUTHORS)), draw(moments), draw(kinds), tuple(draw(tags)), "", "0" * 128)
        for id_ in ids
    ]


def maybe(strategy):
    return st.none() | strategy


filters = st.builds(
    Filter,
    ids=maybe(st.frozensets(st.sampled_from(IDS), max_size=12)),
    authors=maybe(st.frozensets(st.sampled_from(AUTHORS))),
    kinds=maybe(st.frozensets(st.sampled_from([1, 7, 1059, 5]))),
    tags=st.dictionaries(st.sampled_from("tpdT"), st.frozensets(st.sampled_from(VALUES + AUTHORS)), max_size=2),
    since=maybe(st.integers(0, 5)),
    until=maybe(st.integers(0, 5)),
    limit=maybe(st.integers(0, 5)),
)


@pytest.fixture
def archive(tmp_path):
    """(keep, db): a database that holds what `keep` was last given."""
    config = Config(db=tmp_path / "events.sqlite", synchronous="NORMAL")
    db = schema.open_writer(config.db, "NORMAL")

    def keep(events):
        db.executescript("DELETE FROM event; DELETE FROM tag")
        for event in events:
            assert store(db, Job(event, event.to_json(), None, lambda _: None), config).accepted

    yield keep, db
    db.close()


def naive(events, filters, most=500):
    found = set()
    for filter_ in filters:
        matching = sorted((e for e in events if filter_.matches(e)), key=newest_first)
        found.update(matching[: min(most, most if filter_.limit is None else filter_.limit)])
    return sorted(found, key=newest_first)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events(), st.lists(filters, min_size=1, max_size=3))
def test_a_query_finds_what_a_loop_over_all_events_finds(archive, events, filters):
    keep, db = archive
    keep(events)
    found = find(db, filters, EVERYBODY, 500)
    assert found.first.jsons == [e.to_json() for e in naive(events, filters)]
    unlimited = [Filter(f.ids, f.authors, f.kinds, f.tags, f.since, f.until) for f in filters]
    assert count(db, filters, EVERYBODY) == len(naive(events, unlimited))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events(), filters, st.frozensets(st.sampled_from(AUTHORS)))
def test_what_is_hidden_from_a_reader_is_neither_found_nor_counted(archive, events, filter_, authed):
    keep, db = archive
    keep(events)
    visible = [e for e in events if e.kind != 1059 or authed & set(e.values("p"))]
    reader = Reader(now_s=0, authed=authed, hidden=frozenset([1059]))
    assert find(db, [filter_], reader, 500).first.jsons == [e.to_json() for e in naive(visible, [filter_])]


@given(events(), st.lists(filters, max_size=6), st.data())
def test_an_event_reaches_exactly_the_subscriptions_whose_filters_it_matches(events, filters, data):
    fanout = Fanout()
    subscriptions = [Subscription(None, str(n), [f, filters[0]]) for n, f in enumerate(filters)]
    for subscription in subscriptions:
        fanout.add(subscription)
    gone = data.draw(st.sets(st.sampled_from(subscriptions))) if subscriptions else set()
    for subscription in gone:
        fanout.remove(subscription)
    for event in events:
        wanted = {s.name for s in subscriptions if s not in gone and any(f.matches(event) for f in s.filters)}
        assert {s.name for s in fanout.matching(event)} == wanted
    for subscription in subscriptions:
        fanout.remove(subscription)
    assert fanout._by_key == {}


def many(number):
    return [Event(f"{n:064x}", AUTHORS[0], n, 1, (), "", "0" * 128) for n in range(number)]


def test_a_long_answer_is_loaded_page_by_page(archive):
    keep, db = archive
    keep(many(PAGE + 7))
    found = find(db, [Filter()], EVERYBODY, 500)
    assert found.first.length == len(found.first.jsons) == PAGE
    assert len(found.seqs) == PAGE + 7
    assert load(db, found.seqs[PAGE:]).jsons == [e.to_json() for e in reversed(many(7))]


def test_the_relays_own_limit_holds_where_a_filter_has_none(archive):
    keep, db = archive
    keep(many(9))
    assert len(find(db, [Filter()], EVERYBODY, 4).seqs) == 4
    assert len(find(db, [Filter(limit=8)], EVERYBODY, 4).seqs) == 4


@pytest.mark.parametrize(
    ("filter_", "index"),
    [
        (Filter(ids=frozenset(IDS)), "sqlite_autoindex_event_1"),
        (Filter(tags={"t": frozenset("x")}, kinds=frozenset([1])), "SEARCH t USING PRIMARY KEY"),
        (Filter(authors=frozenset(AUTHORS), kinds=frozenset([1])), "event_by_author_kind"),
        (Filter(authors=frozenset(AUTHORS)), "event_by_author "),
        (Filter(kinds=frozenset([1])), "event_by_kind"),
        (Filter(), "event_by_time"),
        (Filter(since=3), "event_by_time"),
    ],
)
def test_every_filter_is_answered_through_an_index_in_the_order_wanted(archive, filter_, index):
    _, db = archive
    for sql, params in _ranges(filter_, EVERYBODY, 10):
        plan = " | ".join(row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, params))
        assert index in plan
        if filter_.ids is None:  # the few that are named by id may be sorted; of a tag, those of the same second
            assert "USE TEMP B-TREE FOR ORDER BY" not in plan


async def test_a_query_that_is_not_small_after_all_is_handed_to_a_thread(archive, tmp_path):
    keep, _ = archive
    keep(many(8_000))
    reading = Archive(tmp_path / "events.sqlite", Limits())
    wanted = [Filter(kinds=frozenset([1]), tags={"t": frozenset(["none"])}), Filter(kinds=frozenset([7]), since=0)]
    with pytest.raises(TooLong):
        reading._glance.run(lambda db: count(db, [Filter(until=10**9)], EVERYBODY), 20_000, 5.0)
    assert await reading.count([Filter(until=10**9)], EVERYBODY) == 8_000
    assert (await reading.find(wanted, EVERYBODY)).seqs == []
    await reading.close()


@pytest.mark.parametrize("limits", [Limits(query_steps=1_000_000), Limits(query_s=0.0)])
async def test_a_query_past_its_budget_is_given_up_and_says_what_to_do(archive, tmp_path, limits):
    charged = []
    reading = Archive(tmp_path / "events.sqlite", limits, lambda path, steps: charged.append((path, steps)))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(TimedOut, match="narrow the filter"):
        await reading._run(lambda db: db.execute(endless).fetchall(), ("a", "1"), True)
    assert {path for path, _ in charged} == {("a", "1")}
    assert len(charged) == 3
    if limits.query_s:
        assert sum(steps for _, steps in charged) <= 1_000_000 + 100_000 + 20_000 + 3 * 1_000
        assert await reading.count([Filter()], EVERYBODY) == 0
    await reading.close()


async def test_a_short_query_waits_for_no_long_one(archive, tmp_path):
    """Long ones of 50 connections wait; a short one of another address is answered first."""
    reading = Archive(tmp_path / "events.sqlite", Limits(query_steps=2_000_000))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    short = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000) SELECT count(*) FROM n"
    ended = []

    async def ask(name, path, sql):
        with suppress(TimedOut):
            await reading._run(lambda db: db.execute(sql).fetchall(), path, False)
        ended.append(name)

    greedy = [asyncio.create_task(ask("long", ("a", str(n)), endless)) for n in range(50)]
    while not reading._long._running:
        await asyncio.sleep(0)
    await ask("short", ("b", "0"), short)
    assert ended.index("short") <= 3  # long ones that were under way may have ended
    await asyncio.gather(*greedy)
    await reading.close()


async def test_a_query_of_many_ranges_that_find_nothing_waits_for_no_thread_and_is_paid_for(archive, tmp_path):
    """It cost nothing, by SQLite's own count, and waited behind whatever a thread was at."""
    charged: list[int] = []
    reading = Archive(tmp_path / "events.sqlite", Limits(), lambda path, steps: charged.append(steps))
    held, is_held = threading.Event(), threading.Event()
    blocked = asyncio.create_task(reading._short.run(("greedy", "0"), lambda db: is_held.set() or held.wait(60)))
    await asyncio.to_thread(is_held.wait, 60)
    wanted = [Filter(authors=frozenset(f"{n:064x}" for n in range(40)), kinds=frozenset([7]))]
    assert (await reading.find(wanted, EVERYBODY)).seqs == []
    assert charged[0] >= 40 * 100
    assert not blocked.done()
    held.set()
    await blocked
    await reading.close()
