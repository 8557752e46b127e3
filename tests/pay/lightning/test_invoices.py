"""Invoices are read with suspicion: BOLT 11's own example is understood, and every known trap is refused by name."""

from __future__ import annotations

import time

import bolt11
import coincurve
import pytest
from bech32 import bech32_decode, bech32_encode
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadInvoice, TooLarge
from nodewire.pay.lightning import invoices

SECRET = bytes.fromhex("e126f68f7eafcc8b74f54d269fe206be715000f94dac067d1c04a8ca3b2db734")
NODE = "03e7156ae33b0a208d0744199163177e909e80176e55d97a2f221ede0f934dd9ad"
# BOLT 11, "Please send $3 for a cup of coffee to the same peer, within one minute".
COFFEE = (
    "lnbc2500u1pvjluezsp5zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zygspp5qqqsyqcyq5rqwzqfqqqsyqcyq5rqwzqfqqqsyq"
    "cyq5rqwzqfqypqdq5xysxxatsyp3k7enxv4jsxqzpu9qrsgquk0rl77nj30yxdy8j9vdx85fkpmdla2087ne0xh8nhedh8w27kyke0lp53ut353s06f"
    "v3qfegext0eh0ymjpf39tuven09sam30g4vgpfna3rh"
)
VALUES = {
    "network": "bcrt",
    "amount_msat": 21_001,
    "payment_hash": "11" * 32,
    "created_at_s": 1_700_000_000,
    "expiry_s": 600,
    "description_hash": "33" * 32,
}


def raw(secret=SECRET, *, amount_msat=21_001, keep_payee=False, **fields):
    """An invoice by the library alone, without the checks of `issue`."""
    tags = {"payment_hash": "11" * 32, "payment_secret": "22" * 32, "description_hash": "33" * 32, **fields}
    amount = None if amount_msat is None else bolt11.MilliSatoshi(amount_msat)
    invoice = bolt11.Bolt11("bcrt", 1_700_000_000, bolt11.Tags.from_dict(tags), amount)
    return bolt11.encode(invoice, secret.hex(), keep_payee=keep_payee)


def test_the_example_of_bolt_11_is_understood():
    invoice = invoices.decode(COFFEE, network="bc")
    assert (invoice.amount_msat, invoice.description, invoice.payee) == (250_000_000, "1 cup coffee", NODE)
    assert invoice.payment_hash == "0001020304050607080900010203040506070809000102030405060708090102"
    assert (invoice.created_at_s, invoice.expires_at_s) == (1_496_314_658, 1_496_314_658 + 60)
    assert invoices.decode(COFFEE.upper()) == invoice


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, invoices.MAX_MSAT),
    st.integers(1, 86_400),
    st.sampled_from(invoices.NETWORKS),
    st.binary(min_size=32, max_size=32),
)
def test_what_is_issued_is_decoded_back(amount_msat, expiry_s, network, digest):
    invoice = invoices.issue(
        SECRET,
        network=network,
        amount_msat=amount_msat,
        payment_hash=digest.hex(),
        created_at_s=1_700_000_000,
        expiry_s=expiry_s,
        description_hash=digest[::-1].hex(),
    )
    assert invoices.decode(invoice.bolt11, network=network) == invoice
    assert (invoice.amount_msat, invoice.payee, invoice.payment_hash) == (amount_msat, NODE, digest.hex())
    assert invoice.expires_at_s == 1_700_000_000 + expiry_s


def test_a_forged_n_field_is_refused():
    other = coincurve.PrivateKey(b"\x05" * 32).public_key.format().hex()
    with pytest.raises(BadInvoice):
        invoices.decode(raw(payee=other, keep_payee=True))
    assert invoices.decode(raw(payee=NODE, keep_payee=True)).payee == NODE


def test_an_n_field_that_the_signature_fits_but_is_not_recovered_to_is_refused():
    honest = raw(payee=NODE, keep_payee=True)
    prefix, words = bech32_decode(honest)
    # The last byte of the signature is the recovery id: its low bit picks the other public key for the same signature.
    words[-1] ^= 1
    flipped = bech32_encode(prefix, words)
    assert bolt11.decode(flipped).payee == NODE
    with pytest.raises(BadInvoice, match="n"):
        invoices.decode(flipped)


def test_another_network_is_refused():
    with pytest.raises(BadInvoice, match="network"):
        invoices.decode(COFFEE, network="bcrt")


def test_an_invoice_without_an_amount_is_refused():
    with pytest.raises(BadInvoice, match="amount"):
        invoices.decode(raw(amount_msat=None))


@pytest.mark.parametrize("prefix", ["lnbcrt2500000001p", "lnbcrt0u", "lnbcrt01u", "lnbcrt10x", "lnbcrt10u-", "lnxx10u"])
def test_a_prefix_that_says_no_whole_amount_of_a_known_network_is_refused(prefix):
    _, words = bech32_decode(raw())
    with pytest.raises(BadInvoice, match="amount"):
        invoices.decode(bech32_encode(prefix, words))


def test_mixed_case_is_refused():
    with pytest.raises(BadInvoice, match="case"):
        invoices.decode(COFFEE[:30] + COFFEE[30:].upper())


def test_length_is_bounded_before_anything_is_decoded():
    with pytest.raises(TooLarge):
        invoices.decode("lnbcrt1" + "q" * 1_000_000)


def test_one_changed_character_is_noticed():
    for at in range(4, len(COFFEE), 17):
        changed = COFFEE[:at] + ("q" if COFFEE[at] != "q" else "p") + COFFEE[at + 1 :]
        with pytest.raises(BadInput):
            invoices.decode(changed)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 31), max_size=300), st.sampled_from(["lnbcrt10u", "lnbc1", "ln", ""]))
def test_whatever_comes_the_error_is_typed(words, prefix):
    for text in (bech32_encode(prefix, words), prefix + "".join(map(chr, words))):
        with pytest.raises(BadInput):
            invoices.decode(text)


def test_an_unknown_feature_that_is_required_is_refused():
    with pytest.raises(BadInvoice, match="features"):
        invoices.decode(raw(features=_features(extra_50="required")))
    assert invoices.decode(raw(features=_features(extra_50="supported"))).amount_msat == 21_001


def _features(**named):
    known = {"var_onion_optin": "required", "payment_secret": "required"}
    return known | named


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"amount_msat": 21_000}, "amount"),
        ({"description_hash": "34" * 32}, "description_hash"),
        ({"network": "bc"}, "network"),
        ({"payee": "02" + "11" * 32}, "payee"),
        ({"now_s": 1_700_000_600}, "expiry"),
    ],
)
def test_an_invoice_that_is_not_what_was_asked_for_is_refused_by_field(asked, field):
    invoice = invoices.issue(SECRET, **VALUES)
    wanted = {"amount_msat": 21_001, "now_s": 1_700_000_599.0, "description_hash": "33" * 32, "network": "bcrt"}
    invoices.check(invoice, **wanted, payee=NODE)
    with pytest.raises(BadInvoice) as raised:
        invoices.check(invoice, **{**wanted, **asked})
    assert raised.value.field == field


@pytest.mark.parametrize(
    "change",
    [
        {"amount_msat": 0},
        {"amount_msat": invoices.MAX_MSAT + 1},
        {"expiry_s": 0},
        {"network": "xx"},
        {"description": "and"},
        {"description_hash": None},
        {"description_hash": None, "description": "é" * 320},
    ],
)
def test_an_impossible_invoice_is_not_issued(change):
    with pytest.raises(BadInvoice):
        invoices.issue(SECRET, **{**VALUES, **change})


def test_an_invoice_is_alive_until_its_moment():
    invoice = invoices.issue(SECRET, **{**VALUES, "created_at_s": int(time.time())})
    assert not invoice.is_expired(time.time())
    assert invoice.is_expired(invoice.expires_at_s)
