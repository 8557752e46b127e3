"""A vault on a real Bitcoin node: 2f oracles cannot spend, 2f+1 can to what they signed, the provider from T on."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from nodewire.errors import BadInput, BadSignature, NoQuorum, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.bitcoin import vault as vaults
from nodewire.pay.bitcoin.taproot import NUMS, tweaked_secret
from nodewire.pay.bitcoin.transaction import Outpoint, Transaction, TransactionOutput
from nodewire.pay.bitcoin.vault import Vault
from tests.pay.bitcoin_process import PASSWORD, Chain, needs_bitcoind, run_bitcoind

ORACLES = [Keys(os.urandom(32)) for _ in range(4)]
PROVIDER, CUSTOMER = Keys(os.urandom(32)), Keys(os.urandom(32))
SAT = 100_000


def vault(refund_at_s=1_900_000_000, provider=PROVIDER):
    return Vault(tuple(one.public for one in ORACLES), 3, provider.public, refund_at_s)


def slash_outputs(held, customer_sat=40_000, fee_sat=1_000):
    pool = vaults.pool_output(held.oracles, held.quorum).script_pubkey
    return [
        TransactionOutput(customer_sat, vaults.key_output(CUSTOMER.public).script_pubkey),
        TransactionOutput(SAT - customer_sat - fee_sat, pool),
    ]


def by(held, unsigned, oracles):
    return {one.public: [one.sign(digest) for digest in held.digests(unsigned)] for one in oracles}


def forced(held, unsigned, signatures):
    """As `Vault.signed`, whoever signed: a vault itself refuses to build what no node would take."""
    script, block = held._quorum_script(), held.output.control_block(0)
    stacks = (
        tuple(signatures[one][n] if one in signatures else b"" for one in reversed(held.oracles))
        for n in range(len(unsigned.inputs))
    )
    return replace(unsigned, witnesses=tuple((*stack, script, block) for stack in stacks))


@pytest.fixture(scope="module")
def bitcoind(tmp_path_factory):
    with run_bitcoind(tmp_path_factory.mktemp("bitcoin")) as process:
        yield process


@pytest.fixture
async def chain(bitcoind):
    chain = Chain(bitcoind)
    yield chain
    await chain.node.close()


async def locked(chain, output, sat=SAT):
    at = await chain.node.pay(output, sat)
    await chain.mine()
    return {at: sat}


@needs_bitcoind
async def test_the_nodes_own_reading_of_the_descriptor_is_the_vaults_address(chain):
    held = vault()
    info = await chain.raw("getdescriptorinfo", held.descriptor)
    assert await chain.raw("deriveaddresses", info["descriptor"]) == [held.output.address("bcrt")]
    pool = f"tr({NUMS.hex()},multi_a(3,{','.join(held.oracles)}))"
    info = await chain.raw("getdescriptorinfo", pool)
    own = vaults.pool_output(held.oracles, 3).address("bcrt")
    assert await chain.raw("deriveaddresses", info["descriptor"]) == [own]
    info = await chain.raw("getdescriptorinfo", f"tr({CUSTOMER.public})")
    own = vaults.key_output(CUSTOMER.public).address("bcrt")
    assert await chain.raw("deriveaddresses", info["descriptor"]) == [own]


@needs_bitcoind
async def test_two_f_signatures_cannot_spend_and_two_f_plus_one_can_whoever_signs(chain):
    held = vault()
    coins = await locked(chain, held.output)
    unsigned = held.spend(coins, slash_outputs(held))
    two = by(held, unsigned, ORACLES[:2])
    with pytest.raises(NoQuorum, match="2 of 3"):
        held.signed(unsigned, two)
    with pytest.raises(PaymentFailed):
        await chain.node.send(forced(held, unsigned, two))
    twice = {**two, ORACLES[2].public: two[ORACLES[1].public]}
    with pytest.raises(PaymentFailed):
        await chain.node.send(forced(held, unsigned, twice))
    signed = held.signed(unsigned, by(held, unsigned, ORACLES[1:]))
    assert await chain.node.send(signed) == signed.txid
    assert await chain.node.send(signed) == signed.txid
    await chain.mine()
    assert await chain.received_sat(vaults.key_output(CUSTOMER.public)) == 40_000
    decoded = await chain.raw("decoderawtransaction", signed.serialized().hex())
    assert (decoded["txid"], decoded["vsize"]) == (signed.txid, signed.vsize)


@needs_bitcoind
async def test_signatures_spend_to_the_outputs_that_were_signed_and_to_no_other(chain):
    held = vault()
    coins = await locked(chain, held.output)
    unsigned = held.spend(coins, slash_outputs(held))
    signatures = by(held, unsigned, ORACLES[:3])
    for altered in (
        held.spend(coins, slash_outputs(held, customer_sat=50_000)),
        held.spend(coins, slash_outputs(held)[1:]),
        replace(unsigned, lock_time=1),
    ):
        with pytest.raises(BadSignature):
            held.check(altered, ORACLES[0].public, signatures[ORACLES[0].public])
        with pytest.raises(PaymentFailed):
            await chain.node.send(forced(held, altered, signatures))
    await chain.node.send(held.signed(unsigned, signatures))


@needs_bitcoind
async def test_several_coins_of_a_vault_go_in_one_spend(chain):
    held = vault(provider=Keys(os.urandom(32)))
    coins = {**await locked(chain, held.output, 60_000), **await locked(chain, held.output, 40_000)}
    unsigned = held.spend(coins, slash_outputs(held))
    await chain.node.send(held.signed(unsigned, by(held, unsigned, ORACLES[:3])))


@needs_bitcoind
async def test_the_refund_is_the_providers_alone_and_only_from_t_on(chain):
    refund_at_s = int(time.time()) + 5_000
    held = vault(refund_at_s)
    coins = await locked(chain, held.output)
    to = await chain.node.new_script()
    refund = held.refund(PROVIDER, coins, to, 500)
    with pytest.raises(PaymentFailed, match="non-final"):
        await chain.node.send(refund)
    early = replace(refund, lock_time=0)
    with pytest.raises(PaymentFailed):
        await chain.node.send(early)
    await chain.pass_to(refund_at_s)
    for thief in (*ORACLES, CUSTOMER):
        with pytest.raises(PaymentFailed):
            await chain.node.send(held.refund(thief, coins, to, 500))
    assert await chain.node.send(refund) == refund.txid
    with pytest.raises(NotFound):
        await chain.node.output(next(iter(coins)))


@needs_bitcoind
async def test_nobody_spends_by_the_key(chain):
    held = vault(provider=Keys(os.urandom(32)))
    coins = await locked(chain, held.output)
    unsigned = held.spend(coins, slash_outputs(held))
    for keys in (ORACLES[0], Keys(tweaked_secret(PROVIDER.secret))):
        with pytest.raises(PaymentFailed):
            await chain.node.send(replace(unsigned, witnesses=((keys.sign(unsigned.sighash(0)),),)))


@needs_bitcoind
async def test_a_payee_takes_its_output_by_its_nostr_key_and_another_does_not(chain):
    payee = Keys(os.urandom(32))
    coins = await locked(chain, vaults.key_output(payee.public), 5_000)
    to = await chain.node.new_script()
    stolen = vaults.key_spend(payee, coins, to, 300)
    wrong = Keys(tweaked_secret(CUSTOMER.secret)).sign(stolen.sighash(0))
    with pytest.raises(PaymentFailed):
        await chain.node.send(replace(stolen, witnesses=((wrong,),)))
    await chain.node.send(stolen)


@needs_bitcoind
async def test_a_wallet_with_too_little_pays_nothing_and_no_error_shows_the_password(chain):
    with pytest.raises(PaymentFailed) as refused:
        await chain.node.pay(vault().output, 10**12)
    assert PASSWORD not in f"{refused.value!r} {chain.node!r}"


def test_a_vaults_output_follows_from_oracles_provider_and_time_alone():
    assert vault().output == vault().output
    others = [vault(1_900_000_001), vault(provider=CUSTOMER), replace(vault(), quorum=2)]
    others.append(replace(vault(), oracles=vault().oracles[::-1]))
    assert len({one.output.key for one in (vault(), *others)}) == 5


@pytest.mark.parametrize("at_s", [0, 800_000, 2**31])
def test_a_time_that_a_block_would_read_as_a_height_is_none(at_s):
    with pytest.raises(BadInput, match="refund_at_s"):
        vault(at_s)


COIN = {Outpoint("11" * 32, 0): SAT}


def test_signatures_by_a_stranger_or_too_few_or_of_another_oracle_are_refused():
    held = vault()
    unsigned = held.spend({**COIN, Outpoint("22" * 32, 1): SAT}, slash_outputs(held))
    signatures = by(held, unsigned, [*ORACLES, CUSTOMER])
    held.check(unsigned, ORACLES[0].public, signatures[ORACLES[0].public])
    for oracle, given in (
        (CUSTOMER.public, signatures[CUSTOMER.public]),
        (ORACLES[0].public, signatures[ORACLES[0].public][:1]),
    ):
        with pytest.raises(BadSignature, match="not one for each input"):
            held.check(unsigned, oracle, given)
    with pytest.raises(BadSignature, match="of another transaction"):
        held.check(unsigned, ORACLES[0].public, signatures[ORACLES[1].public])


def test_a_fee_that_leaves_dust_is_refused_and_one_satoshi_less_is_taken():
    to, most_sat = vaults.key_output(CUSTOMER.public).script_pubkey, SAT - vaults.DUST_SAT
    for spend in (lambda fee_sat: vault().refund(PROVIDER, COIN, to, fee_sat), lambda fee_sat: own(fee_sat, to)):
        assert spend(most_sat).outputs[0].amount_sat == vaults.DUST_SAT
        with pytest.raises(BadInput) as refused:
            spend(most_sat + 1)
        assert refused.value.field == "fee"


def own(fee_sat, to):
    return vaults.key_spend(CUSTOMER, COIN, to, fee_sat)


@pytest.mark.parametrize("sat", [-1, 21_000_000 * 100_000_000 + 1])
def test_an_output_of_less_than_nothing_or_of_more_than_there_is_is_refused(sat):
    with pytest.raises(BadInput) as refused:
        TransactionOutput(sat, b"\x51")
    assert refused.value.field == "amount"


def test_a_transaction_without_an_input_or_an_output_is_refused():
    out = TransactionOutput(1, b"\x51")
    (at,) = COIN
    for inputs, spent, outputs in (((), (), (out,)), ((at,), (), (out,)), ((at,), (out,), ())):
        with pytest.raises(BadInput) as refused:
            Transaction(inputs, spent, outputs)
        assert refused.value.field == "transaction"
