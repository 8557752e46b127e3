"""Zaps: each clause of NIP-57's appendices D to G, and what breaks it."""

import contextlib
import hashlib
import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadZap, NodewireError
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip57 import Invoice

SENDER, RECIPIENT, SERVER, STRANGER = (Keys(bytes([n]) * 32) for n in (1, 2, 3, 4))
JOB, BOLT11, LNURL = "ab" * 32, "lnbc210n1example", "lnurl1dp68gurn8ghj7"
PREIMAGE = "5d" * 32
NOW_S, AMOUNT_MSAT = 1_800_000_000, 21_000
RELAYS = ("wss://one.example.com", "wss://two.example.com")

REQUEST = nip57.build_request(
    SENDER,
    nip57.ZapTarget(RECIPIENT.public, lnurl=LNURL, event=JOB, address=f"31990:{RECIPIENT.public}:llama"),
    amount_msat=AMOUNT_MSAT,
    relays=RELAYS,
    created_at=NOW_S,
    content="chunk 3",
    others=[["chunk", "3"]],
)
DESCRIPTION = REQUEST.to_json()
INVOICE = Invoice(
    bolt11=BOLT11,
    amount_msat=AMOUNT_MSAT,
    description_hash=hashlib.sha256(DESCRIPTION.encode()).hexdigest(),
    payment_hash=hashlib.sha256(bytes.fromhex(PREIMAGE)).hexdigest(),
    payee="02" + "ee" * 32,
)
RECEIPT = nip57.build_receipt(SERVER, DESCRIPTION, bolt11=BOLT11, paid_at_s=NOW_S + 5, preimage=PREIMAGE)
EXPECTED = {
    "nostr_pubkey": SERVER.public,
    "recipient": RECIPIENT.public,
    "lnurl": LNURL.upper(),
    "payee": INVOICE.payee,
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def with_tags(event, *, drop=(), add=(), keys=SENDER, kind=None):
    tags = [tag for tag in event.tags if tag[0] not in drop] + [list(tag) for tag in add]
    return events.sign(
        keys, event.kind if kind is None else kind, created_at=event.created_at, content=event.content, tags=tags
    )


def test_a_request_says_what_it_was_built_from():
    zap = nip57.parse_request(DESCRIPTION, amount_msat=AMOUNT_MSAT, receipt_signer=SERVER.public)
    assert zap == nip57.check_request(REQUEST)
    assert (zap.sender, zap.recipient, zap.amount_msat) == (SENDER.public, RECIPIENT.public, AMOUNT_MSAT)
    assert (zap.relays, zap.lnurl, zap.event, zap.content) == (RELAYS, LNURL, JOB, "chunk 3")
    assert zap.address == f"31990:{RECIPIENT.public}:llama"
    assert ("chunk", "3") in zap.tags


@given(st.integers(1, nip57.MAX_MSAT), st.lists(texts, max_size=4), texts)
def test_whatever_is_asked_for_survives_the_request(amount_msat, relays, content):
    built = nip57.build_request(
        SENDER, nip57.ZapTarget(RECIPIENT.public), amount_msat=amount_msat, relays=relays, created_at=1, content=content
    )
    zap = nip57.parse_request(built.to_json(), amount_msat=amount_msat)
    assert (zap.amount_msat, list(zap.relays), zap.content) == (amount_msat, relays, content)


def test_a_request_may_leave_out_all_but_the_recipient():
    zap = nip57.check_request(events.sign(SENDER, 9_734, created_at=1, tags=[["p", RECIPIENT.public]]), amount_msat=5)
    assert (zap.amount_msat, zap.relays, zap.event, zap.address, zap.lnurl) == (None, (), None, None, None)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (with_tags(REQUEST, kind=1), "kind"),
        (events.sign(SENDER, 9_734, created_at=1), "tags"),
        (with_tags(REQUEST, drop="p"), "p"),
        (with_tags(REQUEST, add=[["p", STRANGER.public]]), "p"),
        (with_tags(REQUEST, drop="p", add=[["p", RECIPIENT.npub]]), "p"),
        (with_tags(REQUEST, add=[["e", JOB]]), "e"),
        (with_tags(REQUEST, drop="e", add=[["e", "note1"]]), "e"),
        (with_tags(REQUEST, drop="a", add=[["a", "31990:abc:x"]]), "a"),
        (with_tags(REQUEST, add=[["a", f"1:{JOB}:"]]), "a"),
        (with_tags(REQUEST, drop=["amount"], add=[["amount", "21001"]]), "amount"),
        (with_tags(REQUEST, drop=["amount"], add=[["amount", "-5"]]), "amount"),
        (with_tags(REQUEST, drop=["amount"], add=[["amount", str(nip57.MAX_MSAT + 1)]]), "amount"),
        (with_tags(REQUEST, add=[["P", STRANGER.public]]), "P"),
        (with_tags(REQUEST, add=[["P", SERVER.public], ["P", SERVER.public]]), "P"),
        (with_tags(REQUEST, drop=["relays"], add=[["relays", *["wss://x"] * 33]]), "relays"),
    ],
)
def test_a_request_that_breaks_a_clause_of_appendix_d_is_refused_by_its_name(event, field):
    with pytest.raises(BadZap) as raised:
        nip57.check_request(event, amount_msat=AMOUNT_MSAT, receipt_signer=SERVER.public)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (DESCRIPTION.replace("chunk 3", "chunk 4"), "signature"),
        (json.dumps({**json.loads(DESCRIPTION), "sig": "0" * 128}), "signature"),
        ("no JSON", "request"),
        ("{}", "request"),
        (json.dumps({**json.loads(DESCRIPTION), "content": "x" * 9_000}), "request"),
    ],
)
def test_a_request_that_is_not_signed_or_no_event_is_refused(text, field):
    with pytest.raises(BadZap) as raised:
        nip57.parse_request(text)
    assert raised.value.field == field


def test_a_request_that_breaks_a_clause_is_not_built():
    with pytest.raises(BadZap, match="p"):
        nip57.build_request(SENDER, nip57.ZapTarget("npub1"), amount_msat=1, relays=[], created_at=1)
    with pytest.raises(BadZap, match="amount"):
        nip57.build_request(SENDER, nip57.ZapTarget(RECIPIENT.public), amount_msat=0, relays=[], created_at=1)


def test_a_receipt_answers_its_request():
    assert nip57.check_receipt(events.parse(RECEIPT.to_json()), INVOICE, **EXPECTED) == nip57.check_request(REQUEST)
    assert (RECEIPT.created_at, RECEIPT.content) == (NOW_S + 5, "")
    assert (RECEIPT.tag("p"), RECEIPT.tag("P"), RECEIPT.tag("e")) == (RECIPIENT.public, SENDER.public, JOB)
    assert RECEIPT.tag("description") == DESCRIPTION


def other_request(recipient=RECIPIENT, amount_msat=AMOUNT_MSAT):
    target = nip57.ZapTarget(recipient.public)
    request = nip57.build_request(SENDER, target, amount_msat=amount_msat, relays=RELAYS, created_at=NOW_S).to_json()
    hashed = hashlib.sha256(request.encode()).hexdigest()
    return (
        nip57.build_receipt(SERVER, request, bolt11=BOLT11, paid_at_s=NOW_S),
        replace(INVOICE, description_hash=hashed),
    )


FOR_ANOTHER, FOR_ANOTHER_INVOICE = other_request(recipient=STRANGER)
OF_MORE, OF_MORE_INVOICE = other_request(amount_msat=AMOUNT_MSAT + 1)


@pytest.mark.parametrize(
    ("receipt", "invoice", "expected", "field"),
    [
        (with_tags(RECEIPT, keys=SERVER, kind=1), INVOICE, {}, "kind"),
        (with_tags(RECEIPT, keys=STRANGER), INVOICE, {}, "pubkey"),  # the hole that lets forged receipts start jobs
        (RECEIPT, INVOICE, {"nostr_pubkey": STRANGER.public}, "pubkey"),
        (with_tags(RECEIPT, keys=SERVER, drop=["bolt11"]), INVOICE, {}, "bolt11"),
        (RECEIPT, replace(INVOICE, bolt11="lnbc1other"), {}, "bolt11"),
        (with_tags(RECEIPT, keys=SERVER, drop=["description"]), INVOICE, {}, "description"),
        (
            with_tags(RECEIPT, keys=SERVER, drop=["description"], add=[["description", "zap!"]]),
            INVOICE,
            {},
            "request",
        ),
        (RECEIPT, replace(INVOICE, amount_msat=None), {}, "amount"),
        (RECEIPT, replace(INVOICE, amount_msat=AMOUNT_MSAT - 1), {}, "amount"),
        (OF_MORE, OF_MORE_INVOICE, {}, "amount"),
        (RECEIPT, replace(INVOICE, description_hash="00" * 32), {}, "description_hash"),
        (RECEIPT, replace(INVOICE, description_hash=None), {}, "description_hash"),
        (FOR_ANOTHER, FOR_ANOTHER_INVOICE, {}, "p"),
        (with_tags(RECEIPT, keys=SERVER, drop="p", add=[["p", STRANGER.public]]), INVOICE, {}, "p"),
        (with_tags(RECEIPT, keys=SERVER, add=[["p", STRANGER.public]]), INVOICE, {}, "p"),
        (with_tags(RECEIPT, keys=SERVER, drop="P", add=[["P", STRANGER.public]]), INVOICE, {}, "P"),
        (with_tags(RECEIPT, keys=SERVER, drop="e"), INVOICE, {}, "e"),
        (with_tags(RECEIPT, keys=SERVER, drop="e", add=[["e", "cd" * 32]]), INVOICE, {}, "e"),
        (with_tags(RECEIPT, keys=SERVER, drop="a"), INVOICE, {}, "a"),
        (
            with_tags(RECEIPT, keys=SERVER, drop=["preimage"], add=[["preimage", "00" * 32]]),
            INVOICE,
            {},
            "preimage",
        ),
        (with_tags(RECEIPT, keys=SERVER, drop=["preimage"], add=[["preimage", "x"]]), INVOICE, {}, "preimage"),
        (RECEIPT, INVOICE, {"lnurl": "lnurl1other"}, "lnurl"),
        (RECEIPT, INVOICE, {"payee": "02" + "dd" * 32}, "payee"),
    ],
)
def test_a_receipt_that_breaks_a_clause_is_refused_by_its_name(receipt, invoice, expected, field):
    with pytest.raises(BadZap) as raised:
        nip57.check_receipt(receipt, invoice, **{**EXPECTED, **expected})
    assert raised.value.field == field


def test_a_receipt_without_preimage_or_sender_and_a_zap_of_unknown_lnurl_and_payee_are_fine():
    receipt = with_tags(RECEIPT, keys=SERVER, drop=["preimage", "P"])
    nip57.check_receipt(receipt, INVOICE, nostr_pubkey=SERVER.public, recipient=RECIPIENT.public)


@given(
    st.lists(
        st.lists(st.sampled_from(["p", "e", "amount", "P", "a", "relays"]) | texts, min_size=1, max_size=3), max_size=5
    )
)
def test_garbage_tags_give_only_typed_errors(tags):
    with contextlib.suppress(NodewireError):
        nip57.check_request(events.sign(SENDER, 9_734, created_at=1, tags=tags))
    with contextlib.suppress(NodewireError):
        nip57.check_receipt(events.sign(SERVER, 9_735, created_at=1, tags=tags), INVOICE, **EXPECTED)


A, B, C = (keys.public for keys in (SENDER, RECIPIENT, SERVER))


@pytest.mark.parametrize(
    ("tags", "shares"),
    [
        ([], []),
        ([["zap", A, "r", "1"], ["zap", B, "r", "1"], ["zap", C, "r", "2"]], [(A, 250), (B, 250), (C, 500)]),
        ([["zap", A], ["zap", B, "r"]], [(A, 500), (B, 500)]),
        ([["zap", A], ["zap", B], ["zap", C]], [(A, 334), (B, 333), (C, 333)]),
        ([["zap", A, "r", "1"], ["zap", B, "r"]], [(A, 1_000)]),
        ([["zap", A, "r", "0.5"], ["zap", B, "r", "1.5"]], [(A, 250), (B, 750)]),
        ([["zap", A, "r", "0"], ["zap", B, "r", "1"]], [(B, 1_000)]),
        ([["p", A], ["zap", B, "r", "7"]], [(B, 1_000)]),
    ],
)
def test_a_zap_of_1000_msat_is_split_by_the_weights(tags, shares):
    assert [(share.pubkey, share.amount_msat) for share in nip57.split(tags, 1_000)] == shares


@given(st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=20).filter(any), st.integers(0, nip57.MAX_MSAT))
def test_the_shares_sum_up_and_none_is_a_millisat_off(weights, amount_msat):
    tags = [nip57.split_tag(A, "", weight) for weight in weights]
    shares = nip57.split(tags, amount_msat)
    assert sum(share.amount_msat for share in shares) == amount_msat
    for share, weight in zip(shares, [weight for weight in weights if weight], strict=True):
        assert abs(share.amount_msat - Fraction(amount_msat * weight, sum(weights))) < 1


@pytest.mark.parametrize(
    "tags",
    [
        [["zap"]],
        [["zap", "npub1"]],
        [["zap", A, "r", "-1"]],
        [["zap", A, "r", "1e9"]],
        [["zap", A, "r", "1/3"]],
        [["zap", A, "r", "9" * 10]],
        [["zap", A, "r", "0"]],
        [["zap", A, "r", "1"]] * 257,
    ],
)
def test_a_malformed_split_is_refused(tags):
    with pytest.raises(BadZap, match="zap"):
        nip57.split(tags, 1_000)


def test_amounts_and_weights_have_bounds():
    for amount_msat in (-1, nip57.MAX_MSAT + 1):
        with pytest.raises(BadInput):
            nip57.split([["zap", A]], amount_msat)
    for pubkey, weight in ((A, -1), (A, 10**9), ("npub1", 1)):
        with pytest.raises(BadInput):
            nip57.split_tag(pubkey, "", weight)
