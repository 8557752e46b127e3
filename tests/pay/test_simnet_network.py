"""The network's state machine: msat are conserved, an invoice is paid once, a hold ends once."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import NodewireError, NotAllowed, PaymentFailed
from simnet.network import (
    ROUTING,
    InvoiceCancellation,
    InvoiceExpiry,
    InvoiceIssue,
    InvoiceSettlement,
    Network,
    NodeJoin,
    PaymentOffer,
    PaymentReturn,
    apply,
)

NODES = ["a", "b", "c"]
PREIMAGES = [bytes([n]).hex() * 32 for n in range(4)]
HASHES = [hashlib.sha256(bytes.fromhex(p)).hexdigest() for p in PREIMAGES]

NOBODY = Network()

nodes = st.sampled_from([*NODES, ROUTING])
n_invoice = st.integers(0, 3)
times = st.integers(0, 40)


@st.composite
def events(draw):
    n = draw(n_invoice)
    hold = n >= 2  # two plain invoices, two hold invoices
    return draw(
        st.one_of(
            st.builds(NodeJoin, nodes, st.integers(-1, 5_000)),
            st.builds(
                InvoiceIssue,
                st.just(HASHES[n]),
                nodes,
                st.integers(-1, 2_000),
                st.sampled_from(["x", "y"]),
                st.integers(5, 20),
                st.just(10 if hold else 0),
                st.just(None if hold else PREIMAGES[n]),
            ),
            st.builds(PaymentOffer, st.just(HASHES[n]), nodes, st.integers(-1, 50), times),
            st.builds(PaymentReturn, st.just(HASHES[n]), nodes, st.just("no route"), times),
            st.builds(InvoiceSettlement, st.just(HASHES[n]), st.sampled_from([PREIMAGES[n], PREIMAGES[0]]), times),
            st.builds(InvoiceCancellation, st.just(HASHES[n]), times),
            st.builds(InvoiceExpiry, st.just(HASHES[n]), times),
        )
    )


START = [NodeJoin(node, 3_000) for node in NODES] + [
    InvoiceIssue(HASHES[0], "a", 1_000, "0", 20, 0, PREIMAGES[0]),
    InvoiceIssue(HASHES[2], "a", 1_000, "2", 20, 10, None),
]
logs = st.lists(events(), max_size=25).map(lambda log: [*START, *log])


def run(log, network=NOBODY):
    accepted = []
    for event in log:
        try:
            network = apply(event, network)
        except NodewireError:
            continue
        accepted.append(event)
    return network, accepted


@settings(max_examples=50, deadline=None)
@given(logs)
def test_every_msat_is_in_one_place_after_any_sequence_of_events(log):
    network = Network()
    for event in log:
        network, _ = run([event], network)
        assert sum(network.balances.values()) + network.held_msat() == network.issued_msat
        assert min(network.balances.values()) >= 0


@settings(max_examples=50, deadline=None)
@given(logs)
def test_an_invoice_is_paid_by_one_payer_once(log):
    network, accepted = run(log)
    for payment_hash in network.invoices:
        payers = {e.payer for e in accepted if isinstance(e, PaymentOffer) and e.payment_hash == payment_hash}
        assert len(payers) <= 1
    earned = dict.fromkeys([*NODES, ROUTING], 0)
    for invoice in network.invoices.values():
        if invoice.phase == "settled":
            earned[invoice.payee] += invoice.amount_msat
            earned[ROUTING] += invoice.fee_msat
            earned[invoice.payer] -= invoice.amount_msat + invoice.fee_msat
        if invoice.phase == "held":
            earned[invoice.payer] -= invoice.amount_msat + invoice.fee_msat
    assert all(network.balances[node] == 3_000 + earned[node] for node in NODES)
    assert network.balances[ROUTING] == earned[ROUTING]


@settings(max_examples=50, deadline=None)
@given(logs)
def test_applying_every_accepted_event_twice_in_a_row_changes_nothing(log):
    network, accepted = run(log)
    twice, _ = run([event for event in accepted for _ in range(2)])
    assert (dict(twice.balances), dict(twice.invoices)) == (dict(network.balances), dict(network.invoices))


@settings(max_examples=50, deadline=None)
@given(logs)
def test_what_has_ended_stays_as_it_ended(log):
    network, ended = Network(), {}
    for event in log:
        network, _ = run([event], network)
        for payment_hash, invoice in network.invoices.items():
            assert ended.get(payment_hash, invoice.phase) == invoice.phase
            if invoice.phase in ("settled", "cancelled", "expired"):
                ended[payment_hash] = invoice.phase


def held_invoice(hold_s=10):
    preimage = None if hold_s else PREIMAGES[0]
    setup = [
        NodeJoin("a", 0),
        NodeJoin("b", 5_000),
        InvoiceIssue(HASHES[0], "a", 1_000, "x", 20, hold_s, preimage),
        PaymentOffer(HASHES[0], "b", 7, 15),
    ]
    network, accepted = run(setup)
    assert len(accepted) == len(setup)
    return network


def test_a_hold_expires_after_its_time_and_not_before():
    network = held_invoice()
    with pytest.raises(NotAllowed):
        apply(InvoiceExpiry(HASHES[0], 24), network)
    after = apply(InvoiceExpiry(HASHES[0], 25), network)
    assert after.balances["b"] == 5_000


def test_a_plain_payment_under_way_settles_or_returns():
    network = held_invoice(hold_s=0)
    for event in (InvoiceCancellation(HASHES[0], 16), InvoiceExpiry(HASHES[0], 99)):
        with pytest.raises(NotAllowed):
            apply(event, network)
    assert apply(InvoiceSettlement(HASHES[0], PREIMAGES[0], 16), network).balances["a"] == 1_000
    returned = apply(PaymentReturn(HASHES[0], "b", "no route", 16), network)
    assert (returned.balances["b"], returned.invoice(HASHES[0]).phase) == (5_000, "open")
    with pytest.raises(PaymentFailed, match="failed before: no route"):
        apply(PaymentOffer(HASHES[0], "b", 7, 17), returned)
    other = apply(PaymentOffer(HASHES[0], "c", 7, 17), apply(NodeJoin("c", 5_000), returned))
    assert other.invoice(HASHES[0]).payer == "c"


def test_only_a_plain_payment_of_this_payer_that_is_under_way_returns():
    for network, payer in ((held_invoice(10), "b"), (held_invoice(0), "a")):
        with pytest.raises(NotAllowed):
            apply(PaymentReturn(HASHES[0], payer, "no route", 16), network)


def test_an_expired_invoice_is_not_payable_at_its_very_moment():
    network, _ = run(
        [NodeJoin("a", 0), NodeJoin("b", 5_000), InvoiceIssue(HASHES[0], "a", 1_000, "x", 20, 0, PREIMAGES[0])]
    )
    with pytest.raises(PaymentFailed):
        apply(PaymentOffer(HASHES[0], "b", 0, 20), network)
    assert apply(PaymentOffer(HASHES[0], "b", 0, 19), network).held_msat() == 1_000
