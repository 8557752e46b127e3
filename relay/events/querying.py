"""Stored events that match filters, newest first, out of SQLite.

A filter is answered through one index, chosen here and named in the statement, so that no planner's guess decides how
long a query takes: ids, else the tag with the fewest values, else authors (with kinds), else kinds, else time. Each
value of the chosen field is one range of the index, read newest first up to the limit; the ranges are merged. What
comes back is sequence numbers; the JSON is loaded page by page, as fast as the client reads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from nodewire.nostr.nips.nip01 import Filter

_MOST_PAIRS = 500  # author-kind pairs read as ranges of their own; above that, all of an author's events are sorted
PAGE = 50  # events whose JSON is in memory at once, per client
_PAGE_BYTES = 131_072  # of JSON, after which a page ends early
_STATEMENT_EVENTS = 10

Where = tuple[list[str], list[object]]  # conditions and their parameters


class Statements(Protocol):
    """A connection to the database, as far as queries need one."""

    def execute(self, sql: str, parameters: Sequence[object], /) -> sqlite3.Cursor: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks, and when. Kinds in `hidden` are shown only to the keys they p-tag; `authed` are hex public keys.

    `path` is the origin that the query is charged to: an address, and a connection from there.
    """

    now_s: int
    authed: AbstractSet[str] = frozenset()
    hidden: AbstractSet[int] = frozenset()
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The JSON of the first `length` of the events that were asked for; those deleted since are left out."""

    jsons: list[str]
    length: int


@dataclass(frozen=True, slots=True)
class Found:
    """`seqs` in the order to send, the first page of them, and the last `seq` that the query could see."""

    seqs: list[int]
    first: Page
    seen: int


def find(db: Statements, filters: Sequence[Filter], reader: Reader, most: int) -> Found:
    """The matching events, each filter cut at its own limit or at `most`."""
    seen = db.execute("SELECT coalesce(max(seq), 0) FROM event", ()).fetchone()[0]
    rows: dict[int, tuple[int, bytes]] = {}
    for filter_ in filters:
        limit = most if filter_.limit is None else min(filter_.limit, most)
        if limit:
            found = [row for sql, params in _ranges(filter_, reader, limit) for row in db.execute(sql, params)]
            unique = {seq: (-created_at, id_) for seq, created_at, id_ in found}
            rows.update(sorted(unique.items(), key=lambda item: item[1])[:limit])
    seqs = sorted(rows, key=rows.__getitem__)
    return Found(seqs, load(db, seqs), seen)


def load(db: Statements, seqs: Sequence[int]) -> Page:
    """The first of these events, in this order: `PAGE` of them at most, and fewer where they are large."""
    found: list[str] = []
    length = 0
    while length < min(PAGE, len(seqs)) and sum(map(len, found)) < _PAGE_BYTES:
        some = seqs[length : min(length + _STATEMENT_EVENTS, PAGE)]
        rows = dict(db.execute(f"SELECT seq, json FROM event WHERE seq IN ({_marks(some)})", some))
        found += [rows[seq] for seq in some if seq in rows]
        length += len(some)
    return Page(found, length)


def count(db: Statements, filters: Sequence[Filter], reader: Reader) -> int:
    """How many events match any of `filters`, limits aside (NIP-45)."""
    alternatives: list[str] = []
    params: list[object] = []
    for filter_ in filters:
        terms, values = _conditions(filter_, _HAS_TAG_SET)
        alternatives.append(" AND ".join(terms) or "1")
        params += values
    terms, values = _visible(reader)
    matching = " OR ".join(f"({a})" for a in alternatives) or "0"
    sql = f"SELECT count(*) FROM event e WHERE ({matching}) AND {' AND '.join(terms)}"
    return int(db.execute(sql, [*params, *values]).fetchone()[0])


_ORDER = "ORDER BY e.created_at DESC, e.id LIMIT ?"
_COLUMNS = "SELECT e.seq, e.created_at, e.id FROM"
# Whether an event has one of some tags: looked up for one event at hand, or as a set that may lead the search.
_HAS_TAG_ROW = "EXISTS (SELECT 1 FROM tag x WHERE x.tag IN ({}) AND x.created_at = e.created_at AND x.seq = e.seq)"
_HAS_TAG_SET = "e.seq IN (SELECT x.seq FROM tag x WHERE x.tag IN ({}))"


def _ranges(filter_: Filter, reader: Reader, limit: int) -> Iterator[tuple[str, list[object]]]:
    """The statements, one per range of the chosen index, whose merged rows hold the filter's newest `limit`."""
    visible, visible_values = _visible(reader)
    letter = _leading_tag(filter_)
    if filter_.ids is not None or letter is None:
        terms, values = _conditions(filter_, _HAS_TAG_ROW, without=("authors", "kinds"))
        for source, own_terms, own_values in _columns(filter_):
            where = " AND ".join([*own_terms, *terms, *visible])
            yield f"{_COLUMNS} {source} WHERE {where} {_ORDER}", [*own_values, *values, *visible_values, limit]
        return
    terms, values = _conditions(filter_, _HAS_TAG_ROW, without=(letter, "since", "until", "kinds"))
    time_terms, time_values = _conditions(filter_, "", only=("since", "until", "kinds"), table="t")
    where = " AND ".join(["t.tag = ?", *time_terms, *terms, *visible])
    order = _ORDER.replace("e.created_at", "t.created_at")
    for value in filter_.tags[letter]:
        sql = f"{_COLUMNS} tag t CROSS JOIN event e ON e.seq = t.seq WHERE {where} {order}"
        yield sql, [letter + value, *time_values, *values, *visible_values, limit]


def _leading_tag(filter_: Filter) -> str | None:
    """The tag to search by; not `d` where an author is given, whose own events are fewer."""
    letters = [letter for letter in filter_.tags if letter != "d" or filter_.authors is None]
    return min(letters, key=lambda letter: len(filter_.tags[letter]), default=None)


def _columns(filter_: Filter) -> Iterator[tuple[str, list[str], list[object]]]:
    """Ranges of the indexes over the event's own columns: (table and index, conditions, parameters)."""
    authors = None if filter_.authors is None else sorted(bytes.fromhex(a) for a in filter_.authors)
    kinds = None if filter_.kinds is None else sorted(filter_.kinds)
    if filter_.ids is not None:
        yield "event e", *_conditions(filter_, "", only=("authors", "kinds"))
    elif authors is not None and kinds is not None and len(authors) * len(kinds) <= _MOST_PAIRS:
        for author, kind in itertools.product(authors, kinds):
            yield "event e INDEXED BY event_by_author_kind", ["e.pubkey = ?", "e.kind = ?"], [author, kind]
    elif authors is not None:
        terms, values = _conditions(filter_, "", only=("kinds",))
        index = "event_by_author" if kinds is None else "event_by_author_kind"
        for author in authors:
            yield f"event e INDEXED BY {index}", ["e.pubkey = ?", *terms], [author, *values]
    elif kinds is not None:
        for kind in kinds:
            yield "event e INDEXED BY event_by_kind", ["e.kind = ?"], [kind]
    else:
        yield "event e INDEXED BY event_by_time", [], []


def _conditions(
    filter_: Filter,
    has_tag: str,
    *,
    without: Collection[str] = (),
    only: Collection[str] | None = None,
    table: str = "e",
) -> Where:
    """The filter's fields as SQL conditions on `table`; a tag goes by its letter."""
    terms: list[str] = []
    values: list[object] = []

    def add(field: str, term: str, params: Sequence[object]) -> None:
        if field not in without and (only is None or field in only):
            terms.append(term)
            values.extend(params)

    if filter_.ids is not None:
        add("ids", f"{table}.id IN ({_marks(filter_.ids)})", [bytes.fromhex(i) for i in filter_.ids])
    if filter_.authors is not None:
        add("authors", f"{table}.pubkey IN ({_marks(filter_.authors)})", [bytes.fromhex(a) for a in filter_.authors])
    if filter_.kinds is not None:
        add("kinds", f"{table}.kind IN ({_marks(filter_.kinds)})", list(filter_.kinds))
    if filter_.since is not None:
        add("since", f"{table}.created_at >= ?", [filter_.since])
    if filter_.until is not None:
        add("until", f"{table}.created_at <= ?", [filter_.until])
    for letter, wanted in filter_.tags.items():
        add(letter, has_tag.format(_marks(wanted)), [letter + value for value in wanted])
    return terms, values


def _visible(reader: Reader) -> Where:
    """Alive, and not hidden from this reader."""
    terms, values = ["(e.expires_at IS NULL OR e.expires_at >= ?)"], list[object]([reader.now_s])
    if reader.hidden:
        own = _HAS_TAG_ROW.format(_marks(reader.authed))
        terms.append(f"(e.kind NOT IN ({_marks(reader.hidden)}) OR {own})")
        values += [*reader.hidden, *("p" + key for key in reader.authed)]
    return terms, values


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
