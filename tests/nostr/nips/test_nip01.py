"""Filters, classes of kinds and messages, as NIP-01 states them."""

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, NodewireError, TooLarge, Unsupported
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip01
from nodewire.nostr.nips.nip01 import (
    ClientAuth,
    ClientCount,
    ClientEvent,
    Close,
    ClosedMessage,
    Eose,
    Filter,
    Notice,
    Ok,
    RelayAuth,
    RelayCount,
    RelayEvent,
    Req,
)

KEYS = Keys(b"\x01" * 32)
EVENT = events.sign(
    KEYS, 1, created_at=1_000, content="hi", tags=[["t", "a", "b"], ["e", "0" * 64], ["x"], ["long", "v"]]
)

hex64 = st.binary(min_size=32, max_size=32).map(bytes.hex)
moments = st.integers(0, 2**53 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
optional_sets = lambda values: st.none() | st.sets(values, max_size=4)  # noqa: E731
filters = st.builds(
    Filter,
    ids=optional_sets(hex64),
    authors=optional_sets(hex64),
    kinds=optional_sets(st.integers(0, 65_535)),
    tags=st.dictionaries(st.sampled_from("abcdABCDtxz"), st.sets(texts, max_size=4), max_size=3),
    since=st.none() | moments,
    until=st.none() | moments,
    limit=st.none() | moments,
)
sub_ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)
filter_lists = st.lists(filters, min_size=1, max_size=3).map(tuple)
client_messages = st.one_of(
    st.just(ClientEvent(EVENT)),
    st.just(ClientAuth(EVENT)),
    st.builds(Req, sub_ids, filter_lists),
    st.builds(ClientCount, sub_ids, filter_lists),
    st.builds(Close, sub_ids),
)
relay_messages = st.one_of(
    st.builds(RelayEvent, sub_ids, st.just(EVENT)),
    st.builds(Ok, hex64, st.booleans(), texts),
    st.builds(Eose, sub_ids),
    st.builds(ClosedMessage, sub_ids, texts),
    st.builds(Notice, texts),
    st.builds(RelayAuth, texts),
    st.builds(RelayCount, sub_ids, moments, st.booleans()),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=12,
)
VERBS = ["EVENT", "REQ", "CLOSE", "AUTH", "COUNT", "OK", "EOSE", "CLOSED", "NOTICE", "NEG-OPEN"]


@given(filters)
def test_a_filter_survives_its_json(wanted):
    assert nip01.parse_filter(orjson.loads(orjson.dumps(wanted.as_dict()))) == wanted


@given(client_messages)
def test_a_clients_message_is_parsed_back(message):
    assert nip01.parse_client(message.to_json()) == message


@given(relay_messages)
def test_a_relays_message_is_parsed_back(message):
    assert nip01.parse_relay(message.to_json()) == message


@given(st.lists(json_values, max_size=5), st.sampled_from(VERBS))
def test_garbage_gives_only_typed_errors(rest, verb):
    text = orjson.dumps([verb, *rest])
    for parse in (nip01.parse_client, nip01.parse_relay):
        with contextlib.suppress(NodewireError):
            parse(text)


@given(st.dictionaries(st.sampled_from(["ids", "#e", "#t", "kinds", "since", "limit", "search", ""]), json_values))
def test_a_garbage_filter_gives_only_typed_errors(data):
    with contextlib.suppress(NodewireError):
        nip01.parse_filter(data)


@given(st.binary(max_size=64) | st.text(max_size=64))
def test_text_that_is_no_message_gives_only_typed_errors(data):
    with contextlib.suppress(NodewireError):
        nip01.decode(data)


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (Filter(), True),
        (Filter(kinds={1, 2}), True),
        (Filter(kinds={2}), False),
        (Filter(kinds=set()), False),
        (Filter(authors={KEYS.public}), True),
        (Filter(authors={"0" * 64}), False),
        (Filter(ids={EVENT.id}), True),
        (Filter(ids={"0" * 64}), False),
        (Filter(since=1_000, until=1_000), True),
        (Filter(since=1_001), False),
        (Filter(until=999), False),
        (Filter(tags={"t": {"a", "z"}}), True),
        (Filter(tags={"t": {"b"}}), False),  # only a tag's first value is indexed
        (Filter(tags={"t": {"a"}, "e": {"0" * 64}}), True),
        (Filter(tags={"t": {"a"}, "p": {"0" * 64}}), False),
        (Filter(tags={"x": {""}}), False),
        (Filter(kinds={1}, limit=0), True),
    ],
)
def test_a_filter_matches_when_all_its_conditions_hold(wanted, matches):
    assert wanted.matches(EVENT) is matches


def test_a_filter_does_not_change_with_the_sets_it_was_made_of():
    kinds = {1}
    wanted = Filter(kinds=kinds)
    kinds.clear()
    assert wanted.matches(EVENT)


@pytest.mark.parametrize(
    ("data", "error", "field"),
    [
        ([], BadInput, "filter"),
        ({"ids": "ab"}, BadInput, "ids"),
        ({"ids": ["ab"]}, BadInput, "ids"),
        ({"authors": ["A" * 64]}, BadInput, "authors"),
        ({"#p": ["ab"]}, BadInput, "#p"),
        ({"#e": [7]}, BadInput, "#e"),
        ({"#t": [7]}, BadInput, "#t"),
        ({"kinds": [True]}, BadInput, "kinds"),
        ({"kinds": [65_536]}, BadInput, "kinds"),
        ({"since": -1}, BadInput, "since"),
        ({"until": 1.5}, BadInput, "until"),
        ({"limit": None}, BadInput, "limit"),
        ({"search": "x"}, Unsupported, "search"),
        ({"#tt": ["x"]}, Unsupported, "#tt"),
        ({"#1": ["x"]}, Unsupported, "#1"),
        ({"&t": ["x"]}, Unsupported, "&t"),
        ({"kinds": [1] * 2_049}, TooLarge, "kinds"),
        ({"#t": ["é" * 513]}, TooLarge, "#t"),
    ],
)
def test_a_malformed_filter_is_refused_by_the_name_of_its_field(data, error, field):
    with pytest.raises(error) as raised:
        nip01.parse_filter(data)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('["REQ","",{}]', BadInput),
        ('["REQ","' + "x" * 65 + '",{}]', BadInput),
        ('["REQ","s"]', BadInput),
        ('["REQ","s"' + ",{}" * 65 + "]", TooLarge),
        ('["CLOSE"]', BadInput),
        ('["NEG-OPEN","s",{},"61"]', Unsupported),
        ("[]", BadInput),
        ("{}", BadInput),
        ("[" * 5_000, BadInput),
        ('"' + "é" * 70_000 + '"', TooLarge),
    ],
)
def test_a_malformed_message_of_a_client_is_refused(text, error):
    with pytest.raises(error):
        nip01.parse_client(text)


def test_a_relays_message_may_lack_its_text_or_carry_more_than_we_know():
    assert nip01.parse_relay(f'["OK","{"0" * 64}",true]') == Ok("0" * 64, True, "")
    assert nip01.parse_relay('["EOSE","s","finish"]') == Eose("s")  # NIP-67
    assert nip01.parse_relay('["COUNT","s",{"count":5,"hll":"00"}]') == RelayCount("s", 5)
    with pytest.raises(BadInput):
        nip01.parse_relay(f'["OK","{"0" * 64}",1,""]')


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("duplicate: seen", "duplicate"),
        ("auth-required: x", "auth-required"),
        ("no colon", ""),
        ("two words: x", ""),
        ("", ""),
    ],
)
def test_the_prefix_of_a_message_is_the_word_before_its_colon(message, word):
    assert nip01.prefix(message) == word


def test_kinds_fall_into_classes():
    assert [k for k in (0, 1, 3, 9_999, 10_000, 19_999, 20_000) if nip01.is_replaceable(k)] == [0, 3, 10_000, 19_999]
    assert [k for k in (19_999, 20_000, 29_999, 30_000) if nip01.is_ephemeral(k)] == [20_000, 29_999]
    assert [k for k in (29_999, 30_000, 39_999, 40_000) if nip01.is_addressable(k)] == [30_000, 39_999]


def test_an_address_names_kind_author_and_d():
    def made(kind, *tags):
        return events.sign(KEYS, kind, created_at=1, tags=tags)

    assert nip01.address(made(31_990, ["d", "x"], ["d", "y"])) == f"31990:{KEYS.public}:x"
    assert nip01.address(made(31_990)) == f"31990:{KEYS.public}:"
    assert nip01.address(made(11_998, ["d", "x"])) == f"11998:{KEYS.public}:"
    assert nip01.address(made(1)) is None


def test_of_two_events_as_new_as_each_other_the_lower_id_stays():
    one, other = (events.sign(KEYS, 0, created_at=5, content=c) for c in "ab")
    low, high = sorted((one, other), key=lambda e: e.id)
    newer = events.sign(KEYS, 0, created_at=6)
    assert nip01.supersedes(low, high)
    assert not nip01.supersedes(high, low)
    assert not nip01.supersedes(low, low)
    assert nip01.supersedes(newer, low)
    assert sorted([high, low, newer], key=nip01.newest_first) == [newer, low, high]
