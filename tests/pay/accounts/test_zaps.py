"""NIP-57, clause by clause: each has a zap that keeps it and one that breaks it."""

from __future__ import annotations

import dataclasses
import hashlib

import bolt11
import coincurve
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadInvoice, BadZap
from nodewire.nostr import event as nostr
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.lightning import invoices

CUSTOMER, PROVIDER, OTHER = Keys(b"\x01" * 32), Keys(b"\x02" * 32), Keys(b"\x03" * 32)
NODE_SECRET = b"\x09" * 32
KEY = Key("10" * 32, PROVIDER.public, 3, 1)
LNURL = "lnurl1dp68gurn8ghj7um9dej8xct5w4kxgcted9nhgtmvd9hx2"
RELAYS = ("wss://a.example", "wss://b.example")
PREIMAGE = "07" * 32
PAID_AT_S = 1_700_000_100


def request_event(keys=CUSTOMER, **changes):
    """A good zap request; `changes` replace a tag by name, add it, or (None) drop it."""
    tags = {
        "relays": [*RELAYS],
        "amount": ["21000"],
        "p": [KEY.payee],
        "e": [KEY.job],
        "chunk": ["3"],
        "attempt": ["1"],
        "lnurl": [LNURL],
    }
    kind = changes.pop("kind", nip57.REQUEST)
    more = changes.pop("more", [])
    tags = {**tags, **changes}
    listed = [[name, *values] for name, values in tags.items() if values is not None]
    return nostr.sign(keys, kind, created_at=1_700_000_000, tags=[*listed, *more])


def parse(event, amount_msat=21_000):
    return nip57.parse_request(event.to_json(), amount_msat=amount_msat, receipt_signer=PROVIDER.public)


def invoice_for(text, **changes):
    values = {
        "network": "bcrt",
        "amount_msat": 21_000,
        "payment_hash": invoices.hash_of(PREIMAGE),
        "created_at_s": 1_700_000_000,
        "expiry_s": 600,
        "description_hash": hashlib.sha256(text.encode()).hexdigest(),
    }
    return invoices.issue(NODE_SECRET, **{**values, **changes}).bolt11


def test_a_chunks_request_is_parsed_back_as_it_was_built():
    event = zaps.build_request(CUSTOMER, KEY, 21_000, relays=RELAYS, lnurl=LNURL, created_at=5)
    request = parse(event)
    assert (request.sender, request.recipient, request.event) == (CUSTOMER.public, KEY.payee, KEY.job)
    assert (request.amount_msat, request.relays, request.lnurl) == (21_000, RELAYS, LNURL)
    assert zaps.chunk_of(request) == KEY


def test_d1_the_signature_must_be_valid():
    text = request_event().to_json()
    assert nip57.parse_request(text)
    for damaged in (text.replace('"21000"', '"22000"'), dataclasses.replace(request_event(), id="00" * 32).to_json()):
        with pytest.raises(BadZap, match="signature"):
            nip57.parse_request(damaged)
    forged = dataclasses.replace(request_event(), sig=request_event(OTHER).sig)
    with pytest.raises(BadZap, match="signature"):
        parse(forged)


def test_d2_there_must_be_tags():
    with pytest.raises(BadZap, match="tags"):
        parse(nostr.sign(CUSTOMER, nip57.REQUEST, created_at=1))


@pytest.mark.parametrize(
    ("clause", "changes", "field"),
    [
        ("another kind", {"kind": 1}, "kind"),
        ("D3 no p", {"p": None}, "p"),
        ("D3 two p", {"more": [["p", OTHER.public]]}, "p"),
        ("D3 a p that is no key", {"p": ["alice"]}, "p"),
        ("D4 two e", {"more": [["e", "11" * 32]]}, "e"),
        ("D4 an e that is no id", {"e": ["JOB"]}, "e"),
        ("D5 relays without end", {"relays": ["wss://a"] * 33}, "relays"),
        ("D6 another amount", {"amount": ["21001"]}, "amount"),
        ("D6 an amount that is no number", {"amount": ["21e3"]}, "amount"),
        ("D7 an a that is no coordinate", {"a": ["38840:x:y"]}, "a"),
        ("D8 two P", {"more": [["P", PROVIDER.public], ["P", PROVIDER.public]]}, "P"),
        ("D8 a P that is not the receipt's key", {"P": [OTHER.public]}, "P"),
    ],
)
def test_a_request_that_breaks_a_clause_is_refused_by_the_tag(clause, changes, field):
    with pytest.raises(BadZap) as raised:
        parse(request_event(**changes))
    assert raised.value.field == field, clause


@pytest.mark.parametrize(
    "changes",
    [
        {"e": None},
        {"relays": None},
        {"amount": None},
        {"lnurl": None},
        {"a": [f"38840:{OTHER.public}:tiny"]},
        {"P": [PROVIDER.public]},
        {"more": [["unknown", "tag"]]},
    ],
)
def test_a_request_may_leave_out_or_add_what_the_clauses_allow(changes):
    assert parse(request_event(**changes)).recipient == KEY.payee


def test_a_request_is_bounded():
    with pytest.raises(BadZap, match="request"):
        parse(request_event(more=[["x", "y" * 9_000]]))


@pytest.mark.parametrize(
    "changes", [{"e": None}, {"chunk": None}, {"chunk": ["-1"]}, {"attempt": [str(2**31)]}, {"chunk": ["01"]}]
)
def test_a_request_that_names_no_chunk_pays_for_none(changes):
    with pytest.raises(BadZap):
        zaps.chunk_of(parse(request_event(**changes)))


def receipt(request=None, keys=PROVIDER, invoice=None, **changes):
    """A good receipt for `request`; `changes` replace a tag's value by name, add it, or (None) drop it."""
    request = request or request_event()
    text = request.to_json()
    tags = {
        "p": KEY.payee,
        "P": CUSTOMER.public,
        "e": KEY.job,
        "bolt11": invoice or invoice_for(text),
        "description": text,
        "preimage": PREIMAGE,
    }
    kind, more = changes.pop("kind", nip57.RECEIPT), changes.pop("more", [])
    tags = {**tags, **changes}
    listed = [[name, value] for name, value in tags.items() if value is not None]
    return nostr.sign(keys, kind, created_at=PAID_AT_S, tags=[*listed, *more])


def check(event, **options):
    return zaps.check_receipt(event, **{"nostr_pubkey": PROVIDER.public, "network": "bcrt", "key": KEY, **options})


def test_e_the_providers_receipt_is_what_the_clauses_ask_for():
    text = request_event(a=[f"38840:{OTHER.public}:tiny"]).to_json()
    bolt11_text = invoice_for(text)
    event = nip57.build_receipt(PROVIDER, text, bolt11=bolt11_text, paid_at_s=PAID_AT_S, preimage=PREIMAGE)
    assert (event.kind, event.content, event.created_at, event.pubkey) == (9735, "", PAID_AT_S, PROVIDER.public)
    assert (event.tag("p"), event.tag("P"), event.tag("e")) == (KEY.payee, CUSTOMER.public, KEY.job)
    assert event.tag("a") == f"38840:{OTHER.public}:tiny"
    assert (event.tag("bolt11"), event.tag("description"), event.tag("preimage")) == (bolt11_text, text, PREIMAGE)
    counted = check(event, lnurl=LNURL)
    assert counted.invoice.amount_msat == 21_000
    assert counted.request.sender == CUSTOMER.public


@pytest.mark.parametrize("changes", [{"preimage": None}, {"P": None}])
def test_e_what_is_optional_may_be_missing(changes):
    assert check(receipt(**changes))


@pytest.mark.parametrize(
    ("clause", "changes", "field"),
    [
        ("another kind", {"kind": 9734}, "kind"),
        ("F1 not the endpoint's key", {"keys": OTHER}, "pubkey"),
        ("E no bolt11", {"bolt11": None}, "bolt11"),
        ("E no description", {"description": None}, "description"),
        (
            "E another request than the invoice's",
            {"description": request_event(amount=None).to_json()},
            "description_hash",
        ),
        ("E another recipient", {"p": OTHER.public}, "p"),
        ("E no recipient", {"p": None}, "p"),
        ("E another event", {"e": "11" * 32}, "e"),
        ("E no event", {"e": None}, "e"),
        ("E an address that the request lacks", {"a": f"38840:{OTHER.public}:x"}, "a"),
        ("E another sender", {"P": OTHER.public}, "P"),
        ("E a preimage of something else", {"preimage": "08" * 32}, "preimage"),
    ],
)
def test_a_receipt_that_breaks_a_clause_is_refused_by_the_tag(clause, changes, field):
    with pytest.raises(BadZap) as raised:
        check(receipt(**changes))
    assert raised.value.field == field, clause


def test_e_the_invoice_must_commit_to_the_request():
    wrong = invoice_for("something else")
    with pytest.raises(BadZap, match="description_hash"):
        check(receipt(invoice=wrong))
    plain = invoice_for("", description_hash=None, description="a coffee")
    with pytest.raises(BadZap, match="description_hash"):
        check(receipt(invoice=plain))


def test_f2_the_invoices_amount_must_be_the_requests():
    with pytest.raises(BadZap, match="amount"):
        check(receipt(invoice=invoice_for(request_event().to_json(), amount_msat=20_999)))


def test_f3_the_lnurl_must_be_the_recipients():
    assert check(receipt(), lnurl=LNURL)
    assert check(receipt(request_event(lnurl=None)), lnurl=LNURL)
    with pytest.raises(BadZap, match="lnurl"):
        check(receipt(), lnurl="lnurl1other")


def test_the_request_inside_a_receipt_must_keep_appendix_d():
    with pytest.raises(BadZap, match="P"):
        check(receipt(request_event(P=[OTHER.public])))
    unsigned = dataclasses.replace(request_event(), sig="00" * 64)
    with pytest.raises(BadZap, match="signature"):
        check(receipt(unsigned))


def test_a_forged_n_field_in_the_invoice_is_refused():
    other = coincurve.PrivateKey(b"\x05" * 32).public_key.format().hex()
    digest = hashlib.sha256(request_event().to_json().encode()).hexdigest()
    fields = {"payment_hash": "11" * 32, "payment_secret": "22" * 32, "description_hash": digest, "payee": other}
    raw = bolt11.Bolt11("bcrt", 1_700_000_000, bolt11.Tags.from_dict(fields), bolt11.MilliSatoshi(21_000))
    forged = bolt11.encode(raw, NODE_SECRET.hex(), keep_payee=True)
    with pytest.raises(BadInvoice):
        check(receipt(invoice=forged))


@pytest.mark.parametrize(
    "key",
    [
        dataclasses.replace(KEY, job="11" * 32),
        dataclasses.replace(KEY, chunk=4),
        dataclasses.replace(KEY, attempt=0),
        dataclasses.replace(KEY, payee=OTHER.public),
    ],
)
def test_a_receipt_counts_for_its_own_chunk_only(key):
    with pytest.raises(BadZap, match="p: " if key.payee != KEY.payee else "e: "):
        check(receipt(), key=key)


def test_a_receipt_is_counted_once():
    first = check(receipt())
    with pytest.raises(BadZap, match="before"):
        check(receipt(preimage=None), seen={first.invoice.payment_hash})


def test_the_invoice_must_be_of_the_recipients_node_where_that_is_known():
    node = coincurve.PrivateKey(NODE_SECRET).public_key.format().hex()
    assert check(receipt(), payee=node)
    with pytest.raises(BadZap, match="payee"):
        check(receipt(), payee="02" + "11" * 32)


def test_another_networks_invoice_is_refused():
    with pytest.raises(BadInvoice, match="network"):
        check(receipt(), network="bc")


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**40), min_size=1, max_size=40).filter(any))
def test_a_split_is_exact_and_fair_to_the_msat(total_msat, weights):
    shares = zaps.split(total_msat, weights)
    assert sum(shares) == total_msat
    assert all(
        abs(share * sum(weights) - total_msat * weight) < sum(weights)
        for share, weight in zip(shares, weights, strict=True)
    )
    assert zaps.split(total_msat, weights) == shares


def test_a_splits_remainder_goes_to_the_largest_then_the_earliest():
    assert zaps.split(10, [1, 1, 1]) == [4, 3, 3]
    assert zaps.split(5, [3, 3, 2]) == [2, 2, 1]
    assert zaps.split(3, [0, 7]) == [0, 3]


@pytest.mark.parametrize(("total_msat", "weights"), [(1, [0]), (1, []), (1, [2, -1]), (-1, [1])])
def test_an_impossible_split_is_refused(total_msat, weights):
    with pytest.raises(BadInput):
        zaps.split(total_msat, weights)
