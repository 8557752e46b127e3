"""A payee whose invoice leads over a hop of its own, which takes more than the payment. Many wallets have no cap."""

from __future__ import annotations

import bolt11
import pytest
from bolt11.models.routehint import Route, RouteHint
from bolt11.models.tags import TagChar

from nodewire.errors import BadInvoice
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.by_hand.own_payer import OwnPayer
from nodewire.pay.lightning import invoices
from nodewire.pay.treasurer.cashier import WalletCashier
from tests.pay.accounts.test_payer import KEY, NODE_SECRET, RELAYS, Node, Wallet

HOP = "02" + "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
CAPLESS = frozenset({"balance", "invoice", "pay", "lookup-in", "lookup-out", "settled"})
AMOUNT_MSAT = 21_000
CHEAP = (1_000, 100, 144)
DEAR = {
    "base": [(2_001, 0, 40)],
    "base of 32 bits": [(2**32 - 1, 0, 40)],
    "rate": [(0, 2**32 - 1, 40)],
    "two hops": [(1_500, 0, 40), (1_500, 0, 40)],
    "locks": [(0, 0, 289)],
    "locks by 16 bits": [(0, 0, 2**16 - 1)],
}


def hinted(invoice, *hints):
    """The same invoice with route hints."""
    raw = bolt11.decode(invoice.bolt11)
    for hops in hints:
        routes = [Route(HOP, "1x2x3", *hop) for hop in hops]
        raw.tags.add(TagChar.route_hint, RouteHint(routes))
    return invoices.decode(bolt11.encode(raw, NODE_SECRET.hex()))


class Tolls(Node):
    """Its invoices have these hints."""

    def __init__(self, *hints):
        super().__init__()
        self.hints = hints

    async def fetch(self, request, asked_msat, **changes):
        return hinted(await super().fetch(request, asked_msat, **changes), *self.hints)


async def pay(node, tmp_path):
    wallet = Wallet(node, abilities=CAPLESS)
    ledger = Ledger(tmp_path / "ledger.db")
    payer = Payer(Keys(b"\x01" * 32), wallet, ledger)
    try:
        return await payer.pay(KEY, AMOUNT_MSAT, node.fetch, relays=RELAYS)
    finally:
        ledger.close()


@pytest.mark.parametrize("hops", DEAR.values(), ids=DEAR)
@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_hop_of_the_payees_own_takes_no_more_than_routing_may(tmp_path, hops, is_alone):
    node = Tolls(hops, *([] if is_alone else [[CHEAP]]))
    with pytest.raises(BadInvoice) as refused:
        await pay(node, tmp_path)
    assert refused.value.field == "r" and node.states == {}


async def test_a_payee_behind_an_ordinary_hop_is_paid(tmp_path):
    assert (await pay(Tolls([CHEAP], [CHEAP]), tmp_path)).state == "paid"


async def test_hops_that_the_library_does_not_see_are_in_no_invoice():
    invoice = invoices.issue(
        NODE_SECRET,
        network="bcrt",
        amount_msat=AMOUNT_MSAT,
        payment_hash="ab" * 32,
        created_at_s=1,
        expiry_s=60,
        description="x",
    )
    assert len(bolt11.decode(bolt11.encode(_with_hops(invoice, 5), NODE_SECRET.hex())).route_hints[0].routes) == 4
    for count in (4, 5, 10):
        with pytest.raises(BadInvoice, match="more than 3 hops"):
            hinted(invoice, [CHEAP] * count)
    assert hinted(invoice, [CHEAP] * 3).toll_blocks == 3 * 144


def _with_hops(invoice, count):
    raw = bolt11.decode(invoice.bolt11)
    raw.tags.add(TagChar.route_hint, RouteHint([Route(HOP, "1x2x3", 0, 0, 1)] * count))
    return raw


async def test_neither_a_payment_by_hand_nor_a_treasurys_payout_pays_a_toll(tmp_path):
    node = Node()
    wallet = Wallet(node, abilities=CAPLESS)
    invoice = invoices.issue(
        NODE_SECRET,
        network="bcrt",
        amount_msat=AMOUNT_MSAT,
        payment_hash="ab" * 32,
        created_at_s=int(node.now_s),
        expiry_s=600,
        description="x",
    )
    dear, ledger = hinted(invoice, DEAR["base"]), Ledger(tmp_path / "own.db")
    with pytest.raises(BadInvoice):
        await OwnPayer(wallet, await wallet.info(), ledger.own).pay(dear, "somebody")
    assert ledger.own.under_way() == [] and node.states == {}
    cashier = await WalletCashier.open(Keys(b"\x05" * 32), wallet, tmp_path / "lumps.db", None)
    with pytest.raises(BadInvoice):
        cashier.read(dear.bolt11)
    assert cashier.read(invoice.bolt11) == invoice
    ledger.close()
    cashier.close()
