"""FEDSTR's tags: what is read of a request, and that nothing but typed errors comes of any."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadEvent, BadTag, NodewireError, TooLarge, Unsupported
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44
from nodewire.training.fedstr import events as fedstr
from nodewire.training.fedstr.events import Output, Source
from tests.kinds.digits import RECIPE

CUSTOMER, PROVIDER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
HASH, KEY = "ab" * 32, "cd" * 32
TAGS = [
    ["i", "https://a.example/d", "url", "", "data"],
    ["i", "https://a.example/s", "url", "", "state"],
    ["x", HASH, "data", "1000"],
    ["x", HASH, "state", "2000"],
    ["key", KEY, "data"],
    ["param", "task", "train"],
    ["param", "run", "fedavg"],
    ["param", "recipe", json.dumps(RECIPE.document())],
]

LINEAR = [["param", name, "4"] for name in ("inputs", "classes", "steps", "batch")] + [["param", "lr", "0.1"]]


def request(tags, content="", kind=8000):
    return events.sign(CUSTOMER, kind, created_at=1_700_000_000, content=content, tags=[["p", PROVIDER.public], *tags])


def encrypted(content):
    return request([["encrypted"]], nip44.encrypt(content, nip44.conversation_key(CUSTOMER, PROVIDER.public)))


@pytest.mark.parametrize("event", [request(TAGS), encrypted(json.dumps(TAGS))], ids=["plain", "encrypted"])
def test_a_request_says_the_same_in_the_plain_and_encrypted(event):
    assert fedstr.is_ours(event, PROVIDER)
    asked = fedstr.parse(event, PROVIDER)
    assert (asked.kind, asked.recipe, asked.round, asked.index) == (8840, RECIPE, 0, 0)
    assert asked.deadline_s == RECIPE.deadline
    assert asked.data == Source(HASH, 1000, url="https://a.example/d", key=KEY)
    assert asked.state == Source(HASH, 2000, url="https://a.example/s")


def test_a_result_has_room_for_the_largest_request_that_is_read():
    padding = ["alt", '"' * 6_500]  # which takes two bytes each, and four in what a result repeats
    inputs = [["i", "https://a.example/" + "a" * 1_000, "url", "", marker] for marker in ("data", "state", *"abcdef")]
    event = request([padding, *inputs, *TAGS[2:4], *TAGS[5:7], ["param", "model", "linear"], *LINEAR])
    asked = fedstr.parse(event, PROVIDER)
    result = fedstr.result(PROVIDER, asked, "c" * 4_000, created_at=1, amount_msat=2**62, bolt11="l" * 2_048)
    assert len(asked.text) > 20_000 and len(result.to_json()) <= events.MAX_BYTES


def test_text_is_base64_and_a_job_without_a_marker_is_data():
    inline = ["i", base64.b64encode(b"weights").decode(), "text", "", "state"]
    asked = fedstr.parse(request([inline, ["i", HASH, "job", "wss://a.example"], *TAGS[5:]]), PROVIDER)
    assert asked.data == HASH
    assert isinstance(asked.state, Source) and (asked.state.inline, asked.state.size) == (b"weights", 7)


@pytest.mark.parametrize(
    "event",
    [
        request([["-"]]),
        request(TAGS, kind=8001),
        request([tag for tag in TAGS if tag[1] != "task"]),
        request([["param", "task", "sing"], *TAGS[:5]]),
        request([*TAGS, ["encrypted"]], "no ciphertext"),
        encrypted("no JSON"),
        encrypted('{"param": "task"}'),
        encrypted('[["param", "task", 1]]'),
        encrypted("[[]]"),
        events.sign(CUSTOMER, 8000, created_at=1, tags=[["p", CUSTOMER.public], *TAGS]),
    ],
)
def test_what_is_somebody_elses_is_not_ours(event):
    assert not fedstr.is_ours(event, PROVIDER)


@pytest.mark.parametrize(
    ("tags", "error"),
    [
        ([*TAGS, TAGS[0]], BadTag),
        ([*TAGS, TAGS[2]], BadTag),
        ([*TAGS, TAGS[4]], BadTag),
        ([*TAGS, TAGS[6]], BadTag),
        ([*TAGS[:2], ["x", HASH, "data"], *TAGS[3:]], BadTag),
        ([*TAGS[:2], ["x", HASH, "data", "-1"], *TAGS[3:]], BadTag),
        ([*TAGS, *([["i", "a", "url"]] * 7)], BadTag),
        ([TAGS[0], ["i", HASH, "job", "", "state"], *TAGS[2:]], Unsupported),
        ([["i", "not base64", "text", "", "data"], *TAGS[1:]], BadTag),
        ([*TAGS, ["i", "a" * 1_300, "url"]], TooLarge),
        ([*TAGS, ["alt", "a" * 25_000]], TooLarge),
        ([*TAGS, ["bid", "1.5"]], BadTag),
        ([*TAGS, ["output", "text/plain"]], Unsupported),
        ([*TAGS, ["param", "deadline", "99999999999"]], BadTag),
        ([*TAGS[:7], ["param", "model", "gpt"]], Unsupported),
        ([*TAGS[:7], ["param", "model", "mlp"]], BadTag),
    ],
)
def test_what_is_malformed_is_refused_with_a_type(tags, error):
    with pytest.raises(error):
        fedstr.parse(request(tags), PROVIDER)


NAMES = (
    "task",
    "run",
    "recipe",
    "model",
    "inputs",
    "hidden",
    "classes",
    "steps",
    "batch",
    "lr",
    "seed",
    "round",
    "loss",
)
VALUES = st.sampled_from(
    ["train", "fedavg", "mlp", "linear", "url", "job", "text", "data", "state", "1", "nan", "1e999"]
)
WORD = VALUES | st.text(max_size=8)
TAG = st.lists(WORD, max_size=5).flatmap(
    lambda rest: st.sampled_from(["i", "x", "key", "bid", "output"]).map(lambda name: [name, *rest])
) | st.tuples(st.just("param"), st.sampled_from(NAMES), WORD).map(list)


@settings(max_examples=60)
@given(st.lists(TAG, max_size=24), st.permutations(TAGS), st.none() | st.text(max_size=200), st.booleans())
def test_whatever_tags_come_only_typed_errors_do(tags, valid, content, seals):
    tags = [["p", PROVIDER.public], *tags, *valid[:6], *([["encrypted"]] if content is not None else [])]
    if seals and content:
        content = nip44.encrypt(content, nip44.conversation_key(CUSTOMER, PROVIDER.public))
    event = events.Event("0" * 64, CUSTOMER.public, 0, 8000, tuple(map(tuple, tags)), content or "", "")
    fedstr.is_ours(event, PROVIDER)
    try:
        fedstr.parse(event, PROVIDER)
    except NodewireError:
        return


@pytest.mark.parametrize("url", ["", "ftp://a.example/" + HASH, "https://a.example/ " + HASH, "https://" + "a" * 249])
def test_a_result_whose_update_is_at_no_url_is_refused(url):
    said = {
        "v": 1,
        "urls": ["https://a.example/" + HASH],
        "sha256": HASH,
        "bytes": 9,
        "key": KEY,
        "update_sha256": HASH,
    }
    said |= {"update_bytes": 8, "samples": 3, "loss": 2}
    assert Output.from_document(said).urls == ("https://a.example/" + HASH,)
    with pytest.raises(BadEvent, match=r"urls\.0"):
        Output.from_document({**said, "urls": [url]})
