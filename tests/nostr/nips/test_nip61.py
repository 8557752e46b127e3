"""NIP-61, clause by clause: what a recipient takes, and what is a nutzap for it."""

from __future__ import annotations

import orjson
import pytest

from nodewire.errors import BadZap
from nodewire.nostr.event import sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip61

RECIPIENT, SENDER, LOCK = Keys(b"\x02" * 32), Keys(b"\x01" * 32), Keys(b"\x07" * 32)
MINT = "https://mint.example"
INFO = nip61.parse_info(
    nip61.build_info(
        RECIPIENT,
        relays=["wss://a.example", "wss://b.example"],
        mints=[(MINT, "usd", "sat"), ("https://dollars.example", "usd"), ("https://any.example",)],
        pubkey=LOCK.public,
        created_at=1,
    )
)


def secret(*, kind="P2PK", data=f"02{LOCK.public}", **others):
    return orjson.dumps([kind, {"nonce": "b00b", "data": data} | others]).decode()


def proof(amount=4, said=None, **changes):
    whole = {"amount": amount, "id": "00" * 8, "secret": said or secret(), "C": "02" + "11" * 32}
    return orjson.dumps({**whole, **changes}).decode()


def nutzap(*proofs, tags=(), p=RECIPIENT.public, u=MINT, kind=nip61.NUTZAP, content="thanks"):
    told = [["proof", one] for one in proofs or (proof(),)]
    named = [["p", p]] if p else []
    return sign(SENDER, kind, created_at=1, content=content, tags=[*told, ["u", u], *named, *tags])


def test_what_a_recipient_takes_is_read_as_it_was_written():
    assert INFO.relays == ("wss://a.example", "wss://b.example") and INFO.author == RECIPIENT.public
    assert INFO.pubkey == LOCK.public
    assert INFO.takes(MINT) and INFO.takes(MINT, "usd") and INFO.takes("https://any.example")
    assert not INFO.takes("https://dollars.example") and not INFO.takes(MINT + "/")


def test_a_key_with_its_prefix_is_the_same_key():
    event = sign(RECIPIENT, nip61.INFO, created_at=1, tags=[["mint", MINT], ["pubkey", f"02{LOCK.public}"]])
    assert nip61.parse_info(event).pubkey == LOCK.public


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        ([["pubkey", LOCK.public]], "mint"),
        ([["mint"], ["pubkey", LOCK.public]], "mint"),
        ([["mint", "https://" + "x" * 300], ["pubkey", LOCK.public]], "mint"),
        ([["mint", MINT, *["sat"] * 40], ["pubkey", LOCK.public]], "mint"),
        ([["mint", f"https://{n}.example"] for n in range(40)], "mint"),
        ([["mint", MINT]], "pubkey"),
        ([["mint", MINT], ["pubkey", LOCK.public], ["pubkey", SENDER.public]], "pubkey"),
        ([["mint", MINT], ["pubkey", RECIPIENT.public]], "pubkey"),
        ([["mint", MINT], ["pubkey", f"02{RECIPIENT.public}"]], "pubkey"),
        ([["mint", MINT], ["pubkey", f"03{LOCK.public}"]], "pubkey"),
        ([["mint", MINT], ["pubkey", "x"]], "pubkey"),
        ([["relay", "wss://a"]] * 40 + [["mint", MINT], ["pubkey", LOCK.public]], "relay"),
        ([["relay", "wss://" + "a" * 300], ["mint", MINT], ["pubkey", LOCK.public]], "relay"),
    ],
)
def test_what_a_recipient_cannot_say_is_refused_by_its_field(tags, field):
    with pytest.raises(BadZap) as refused:
        nip61.parse_info(sign(RECIPIENT, nip61.INFO, created_at=1, tags=tags))
    assert refused.value.field == field


def test_another_kind_is_neither():
    for kind, parse in ((1, nip61.parse), (nip61.NUTZAP, nip61.parse_info)):
        with pytest.raises(BadZap) as refused:
            parse(nutzap(kind=kind))
        assert refused.value.field == "kind"


def test_a_nutzap_is_read_as_it_was_written():
    made = nip61.build(
        SENDER, INFO, MINT, [proof(4), proof(1, secret(tags=[["sigflag", "SIG_INPUTS"]], nonce="c0de"))], created_at=5
    )
    one = nip61.parse(made)
    assert (one.amount_sat, one.mint, one.recipient, one.sender) == (5, MINT, RECIPIENT.public, SENDER.public)
    assert [each.nonce for each in one.proofs] == ["b00b", "c0de"] and one.event is None
    assert nip61.parse(nutzap(proof(4), tags=[["e", "ab" * 32]])).event == "ab" * 32
    assert nip61.parse(nutzap(proof(said=secret(tags=[])))).amount_sat == 4


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (nutzap(p=""), "p"),
        (nutzap(tags=[["p", SENDER.public]]), "p"),
        (nutzap(p="x"), "p"),
        (nutzap(u=""), "u"),
        (nutzap(tags=[["u", "https://other.example"]]), "u"),
        (nutzap(u="https://" + "x" * 300), "u"),
        (nutzap(tags=[["unit", "usd"]]), "unit"),
        (nutzap(tags=[["unit", "sat"], ["unit", "usd"]]), "unit"),
        (nutzap(tags=[["e", "ab"]]), "e"),
        (nutzap(tags=[["e", "ab" * 32], ["e", "cd" * 32]]), "e"),
        (nutzap(content="x" * 2_000), "content"),
        (sign(SENDER, nip61.NUTZAP, created_at=1, tags=[["u", MINT], ["p", RECIPIENT.public]]), "proof"),
        (nutzap(*[proof(said=secret(nonce=f"{n}")) for n in range(40)]), "proof"),
        (nutzap(proof(), proof()), "proof"),
        (nutzap("{"), "proof"),
        (nutzap("[1]"), "proof"),
        (nutzap(proof(extra="x" * 3_000)), "proof"),
        (nutzap(proof(0)), "proof"),
        (nutzap(proof(-4)), "proof"),
        (nutzap(proof(True)), "proof"),
        (nutzap(proof(2**53)), "proof"),
        (nutzap(proof("4")), "proof"),
        (nutzap(proof(2**52), proof(2**52, secret(nonce="1"))), "proof"),
        (nutzap(proof(said="x")), "proof"),
        (nutzap(proof(said="plain text")), "proof"),
        (nutzap(proof(said="[1, 2]")), "proof"),
        (nutzap(proof(said='["P2PK", "nonce"]')), "proof"),
        (nutzap(proof(said='["P2PK", [1]]')), "proof"),
        (nutzap(proof(said="[" * 400)), "proof"),
        (nutzap(proof(said=secret(nonce="x" * 400))), "proof"),
        (nutzap(proof(said=secret(nonce=7))), "proof"),
        (nutzap(proof(said=secret(nonce="x" * 200))), "proof"),
        (nutzap(proof(said=secret(kind="HTLC"))), "proof"),
        (nutzap(proof(said=secret(data=LOCK.public))), "proof"),
        (nutzap(proof(said=secret(data=f"03{LOCK.public}"))), "proof"),
        (nutzap(proof(said=secret(tags=[["locktime", "1"], ["refund", f"02{SENDER.public}"]]))), "proof"),
        (nutzap(proof(said=secret(tags=[["sigflag", "SIG_ALL"]]))), "proof"),
        (nutzap(proof(said=secret(tags=[["pubkeys", f"02{SENDER.public}"]]))), "proof"),
        (nutzap(proof(said=secret(tags=[["n_sigs", "2"]]))), "proof"),
        (nutzap(proof(said=secret(tags={}))), "proof"),
        (nutzap(proof(said=secret(other="1"))), "proof"),
    ],
)
def test_what_is_no_nutzap_is_refused_by_its_field_and_shows_no_secret(event, field):
    with pytest.raises(BadZap) as refused:
        nip61.parse(event)
    assert refused.value.field == field and "b00b" not in str(refused.value)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (nutzap(p=SENDER.public), "p"),
        (nutzap(u="https://dollars.example"), "u"),
        (nutzap(u="https://other.example"), "u"),
        (nutzap(u=MINT + "/"), "u"),
        (nutzap(proof(said=secret(data=f"02{SENDER.public}"))), "proof"),
        (nutzap(proof(), proof(said=secret(nonce="1", data=f"02{SENDER.public}"))), "proof"),
        (nutzap(proof(said=secret(data=f"02{RECIPIENT.public}"))), "proof"),
    ],
)
def test_a_nutzap_that_its_recipient_does_not_take_is_refused(event, field):
    nip61.check(nip61.parse(nutzap()), INFO)
    with pytest.raises(BadZap) as refused:
        nip61.check(nip61.parse(event), INFO)
    assert refused.value.field == field


def test_a_nutzap_that_its_recipient_would_refuse_is_not_built():
    with pytest.raises(BadZap):
        nip61.build(SENDER, INFO, "https://other.example", [proof()], created_at=1)
