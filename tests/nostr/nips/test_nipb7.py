"""Blossom's tokens and server lists, as NIP-B7 and BUD-11 state them."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadEvent, BadSignature, BadTag, NodewireError, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nipb7

KEYS = Keys(b"\x01" * 32)
NOW_S, BLOB, OTHER = 1_800_000_000, "ab" * 32, "cd" * 32
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def token(verb="upload", hashes=(BLOB,), servers=(), now_s=NOW_S, expires_at_s=NOW_S + 60):
    return nipb7.build_token(
        KEYS, verb, now_s=now_s, expires_at_s=expires_at_s, hashes=hashes, servers=servers, content="Upload weights"
    )


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        (token(), {"verb": "upload", "sha256": BLOB}),
        (token(hashes=(OTHER, BLOB)), {"verb": "upload", "sha256": BLOB}),
        (token("get", hashes=()), {"verb": "get", "sha256": BLOB}),
        (token("list", hashes=()), {"verb": "list"}),
        (token(servers=("CDN.example.com",)), {"verb": "upload", "sha256": BLOB, "server": "cdn.Example.com"}),
        (token(now_s=NOW_S + 30), {"verb": "upload", "sha256": BLOB}),
    ],
)
def test_a_token_is_good_for_what_it_says(made, asked):
    nipb7.check_token(made, now_s=NOW_S, **asked)


@pytest.mark.parametrize(
    ("made", "asked", "field"),
    [
        (token(), {"verb": "delete", "sha256": BLOB}, "t"),
        (token(), {"verb": "upload", "sha256": OTHER}, "x"),
        (token(hashes=()), {"verb": "upload", "sha256": BLOB}, "x"),
        (token("get"), {"verb": "get", "sha256": OTHER}, "x"),
        (token(servers=("a.com",)), {"verb": "upload", "sha256": BLOB, "server": "b.com"}, "server"),
        (token(servers=("a.com",)), {"verb": "upload", "sha256": BLOB}, "server"),
        (token(expires_at_s=NOW_S), {"verb": "upload", "sha256": BLOB}, "expiration"),
        (token(now_s=NOW_S + 61), {"verb": "upload", "sha256": BLOB}, "created_at"),
        (events.sign(KEYS, 1, created_at=NOW_S), {"verb": "upload"}, "kind"),
        (events.sign(KEYS, 24_242, created_at=NOW_S, tags=[["t", "list"]]), {"verb": "list"}, "expiration"),
    ],
)
def test_a_token_for_something_else_is_refused_by_the_name_of_the_clause(made, asked, field):
    with pytest.raises(BadEvent) as raised:
        nipb7.check_token(made, now_s=NOW_S, **asked)
    assert raised.value.field == field


def test_a_token_names_blobs_by_their_sha256():
    with pytest.raises(BadTag, match="x"):
        token(hashes=("AB" * 32,))


@given(
    st.sampled_from(["get", "upload", "delete"]),
    st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=3),
)
def test_a_token_survives_its_header(verb, hashes):
    made = token(verb, hashes=hashes)
    assert nipb7.from_header(nipb7.to_header(made)) == made


def test_the_header_of_older_clients_in_plain_base64_is_read():
    made = token()
    assert nipb7.from_header("nostr " + base64.b64encode(made.to_json().encode()).decode()) == made


def test_a_token_that_was_tampered_with_is_refused():
    forged = base64.b64encode(token().to_json().replace("upload", "delete").encode()).decode()
    with pytest.raises(BadSignature):
        nipb7.from_header("Nostr " + forged)
    with pytest.raises(TooLarge):
        nipb7.from_header("Nostr " + "a" * 90_000)


@given(
    texts | texts.map(lambda text: "Nostr " + text) | st.binary().map(lambda b: "Nostr " + base64.b64encode(b).decode())
)
def test_a_garbage_header_gives_only_typed_errors(value):
    with pytest.raises(NodewireError):
        nipb7.from_header(value)


def test_a_server_list_keeps_its_order_and_leaves_out_what_is_no_url():
    urls = ["https://blossom.self.hosted", "http://127.0.0.1:3000"]
    made = nipb7.build_servers(KEYS, [*urls, "ftp://x"], created_at=1)
    assert nipb7.parse_servers(made) == tuple(urls)
    with pytest.raises(BadEvent):
        nipb7.parse_servers(events.sign(KEYS, 1, created_at=1))
    with pytest.raises(TooLarge):
        nipb7.parse_servers(nipb7.build_servers(KEYS, ["https://x"] * 65, created_at=1))
