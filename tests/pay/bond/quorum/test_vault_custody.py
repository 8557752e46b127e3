"""What a vault's custody refuses, and steps that are taken once, at a Bitcoin node in this process."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.bitcoin.transaction import Outpoint
from nodewire.pay.bond.quorum.custody import Closing
from nodewire.pay.bond.quorum.terms import MAX_COINS, POOL, Payment, terms_of
from nodewire.pay.bond.quorum.vault_custody import VaultCustody, vault_of
from tests.pay.bitcoin.rpc_node import serve
from tests.pay.bond.quorum.market import COMMITTEE, ORACLES
from tests.pay.bond_market import CUSTOMER, STRANGER

PROVIDER, SAT, FEE_SAT = Keys.generate(), 100_000, 500
TERMS = terms_of(COMMITTEE, PROVIDER.public, 1_900_000_000, "first")
COIN = {"txid": "11" * 32, "index": 0, "amount_sat": SAT}
SCRIPT = vault_of(TERMS).output.script_pubkey.hex()
PAYMENTS = (Payment(CUSTOMER.public, 40_000), Payment(POOL, SAT - 40_000 - FEE_SAT))
CLOSING = Closing(TERMS, (COIN,), PAYMENTS, FEE_SAT, {})


@pytest.fixture
async def rpc():
    async with serve() as rpc:
        rpc.unspent[COIN["txid"], 0] = (SAT, SCRIPT)
        rpc.answers |= {"sendrawtransaction": "", "getnewaddress": "a", "getaddressinfo": {"scriptPubKey": "51"}}
        yield rpc


@pytest.fixture
def custody(rpc):
    return VaultCustody(rpc.open(), 6)


def sent(rpc):
    return [method for method, *_ in rpc.asked].count("sendrawtransaction")


async def signed(custody, oracles=ORACLES[:3]):
    digests = await custody.digests(CLOSING)
    return {one.public: [one.sign(digest) for digest in digests] for one in oracles}


@pytest.mark.parametrize(
    "coins",
    [
        [],
        [{}],
        [{**COIN, "txid": 7}],
        [{**COIN, "txid": "11" * 31}],
        [{**COIN, "txid": "AA" * 32}],
        [{**COIN, "index": True}],
        [{**COIN, "index": -1}],
        [{**COIN, "index": 2**32}],
        [{**COIN, "amount_sat": 0}],
        [{**COIN, "amount_sat": 1.5}],
        [{**COIN, "amount_sat": 2_100_000_000_000_001}],
        [COIN, COIN],
        [{**COIN, "index": n} for n in range(MAX_COINS + 1)],
    ],
)
async def test_what_names_no_output_or_names_it_twice_is_worth_nothing(coins, custody, rpc):
    with pytest.raises(BadInput) as refused:
        await custody.worth_sat(TERMS, coins)
    assert (refused.value.field, rpc.asked) == ("coins", [])


async def test_coins_count_from_the_confirmations_on_that_were_asked_for(custody, rpc):
    assert await custody.worth_sat(TERMS, [COIN]) == SAT
    with pytest.raises(NotFound, match="has 9 of 10 confirmations"):
        await VaultCustody(rpc.open(), 10).worth_sat(TERMS, [COIN])


async def test_an_output_of_another_amount_or_script_is_not_the_vaults(custody, rpc):
    with pytest.raises(BadInput, match="not this vault's"):
        await custody.worth_sat(TERMS, [{**COIN, "amount_sat": SAT - 1}])
    rpc.unspent[COIN["txid"], 0] = (SAT, "51")
    with pytest.raises(BadInput, match="not this vault's"):
        await custody.worth_sat(TERMS, [COIN])


async def test_a_closing_that_the_node_knows_is_sent_no_more(custody, rpc):
    signatures = await signed(custody)
    left = await custody.execute(CLOSING, signatures)
    assert sent(rpc) == 1
    rpc.unspent = {(left["txid"], 1): (1, "51")}
    assert await custody.execute(CLOSING, signatures) == left
    assert sent(rpc) == 1


async def test_a_closing_of_coins_that_went_another_way_is_not_found(custody, rpc):
    rpc.unspent.clear()
    with pytest.raises(NotFound, match="is spent"):
        await custody.execute(CLOSING, await signed(custody))
    assert sent(rpc) == 0


@pytest.mark.parametrize("fee_sat", [0, FEE_SAT - 1, FEE_SAT + 1, SAT // 10 + 1])
async def test_a_fee_that_is_not_what_the_outputs_leave_or_too_much_is_not_signed(fee_sat, custody):
    payments = PAYMENTS
    if fee_sat > SAT // 10:
        payments = (PAYMENTS[0], Payment(POOL, SAT - 40_000 - fee_sat))
    with pytest.raises(BadInput) as refused:
        await custody.check(Closing(TERMS, (COIN,), payments, fee_sat, {}))
    assert refused.value.field == "fee_sat"
    await custody.check(CLOSING)


async def test_a_fee_is_a_tenth_of_the_coins_at_most(custody, rpc):
    fee_sat, _ = await custody.propose(TERMS, [COIN], 3)
    assert 2 * 150 < fee_sat < 2 * 500
    rpc.answers["estimatesmartfee"] = {"feerate": 1}
    assert await custody.propose(TERMS, [COIN], 3) == (SAT // 10, {})


async def test_a_key_that_a_closing_pays_nothing_takes_nothing(custody, rpc):
    with pytest.raises(NotFound, match="pays this key nothing") as refused:
        await custody.collect(STRANGER, CLOSING, {})
    assert (refused.value.field, rpc.asked) == ("closing", [])


async def test_an_output_is_taken_once_and_one_that_is_not_there_yet_waits(custody, rpc):
    with pytest.raises(PaymentFailed, match="no block and no pool has it yet"):
        await custody.collect(CUSTOMER, CLOSING, {})
    left = await custody.execute(CLOSING, await signed(custody))
    rpc.unspent[left["txid"], 0] = (40_000, "51")
    sat, _ = await custody.collect(CUSTOMER, CLOSING, left)
    assert 39_000 < sat < 40_000 and sent(rpc) == 2
    del rpc.unspent[left["txid"], 0]
    assert await custody.collect(CUSTOMER, CLOSING, left) == (40_000, left["txid"])
    assert sent(rpc) == 2


async def test_a_refund_before_the_time_of_the_chain_is_refused(custody, rpc):
    rpc.answers["getblockchaininfo"] = {"chain": "regtest", "mediantime": TERMS.refund_at_s - 7}
    with pytest.raises(NotAllowed, match="its own time is in 7 s"):
        await custody.refund(PROVIDER, TERMS, [COIN])
    rpc.answers["getblockchaininfo"] = {"chain": "regtest", "mediantime": TERMS.refund_at_s}
    sat, _ = await custody.refund(PROVIDER, TERMS, [COIN])
    assert SAT - 1_000 < sat < SAT and sent(rpc) == 1


async def test_a_vault_is_raised_by_a_coin_that_it_has_not_yet(custody, monkeypatch):
    paid = []

    async def paid_there(output):
        return {Outpoint(COIN["txid"], 0): SAT}

    async def pay(output, amount_sat):
        paid.append(amount_sat)
        return Outpoint("22" * 32, 1)

    monkeypatch.setattr(custody._node, "paid", paid_there)
    monkeypatch.setattr(custody._node, "pay", pay)
    assert await custody.fund(TERMS, SAT, "first") == [COIN]  # asked again after a crash
    assert await custody.fund(TERMS, SAT, "more", [COIN]) == [{"txid": "22" * 32, "index": 1, "amount_sat": SAT}]
    assert paid == [SAT]
