"""What a registrar refuses, and how far its bonds come; their coins are at a node in this process."""

from __future__ import annotations

import os

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadQuorum, BadSignature, NotAllowed, NotFound, PaymentFailed, TooLarge
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.quorum import cosigner
from nodewire.pay.bond.quorum.registrar import MAX_LOCK_S, RegistrarRules
from nodewire.pay.bond.quorum.terms import MAX_COINS, terms_of
from nodewire.pay.bond.quorum.vault_custody import VaultCustody, vault_of
from nodewire.protocol.market import bond as statements
from tests.pay.bitcoin.rpc_node import serve
from tests.pay.bond.quorum.market import CLOSING_S, COMMITTEE, ORACLES, Bonds, convicted, request, verdict_of

SAT, PRICE_MSAT, DELAY_S = 100_000, 3_000_000, 32


@pytest.fixture
async def rpc():
    async with serve() as rpc:
        rpc.answers["sendrawtransaction"] = ""
        yield rpc


@pytest.fixture
async def bonds(rpc, tmp_path):
    async with Bonds(tmp_path, lambda who: VaultCustody(rpc.open(), 1)) as bonds:
        yield bonds


@pytest.fixture
def provider():
    return Keys.generate()


def terms_for(bonds, provider, seconds=1_000, key="first"):
    return terms_of(COMMITTEE, provider.public, int(bonds.clock()) + seconds, key, closing_s=CLOSING_S)


def coins_at(rpc, terms, *sats):
    """Coins in the vault of these terms, as a wallet would have paid them there."""
    found = []
    for sat in sats:
        coin = {"txid": os.urandom(32).hex(), "index": 0, "amount_sat": sat}
        rpc.unspent[coin["txid"], 0] = (sat, vault_of(terms).output.script_pubkey.hex())
        found.append(coin)
    return found


async def lock(rpc, bonds, provider, *sats, **changes):
    terms = terms_for(bonds, provider, **changes)
    return await bonds.registrar.lock(provider.public, terms, coins_at(rpc, terms, *(sats or (SAT,))))


def pass_closing(bonds):
    bonds.clock.ahead_s += 60 + DELAY_S + 1


async def test_a_bond_that_is_entered_again_is_the_same(rpc, bonds, provider):
    terms = terms_for(bonds, provider)
    coins = coins_at(rpc, terms, SAT)
    first = await bonds.registrar.lock(provider.public, terms, coins)
    assert await bonds.registrar.lock(provider.public, terms, coins) == first
    assert first.bond.amount_msat == SAT * 1_000


@pytest.mark.parametrize("seconds", [-1, 0, MAX_LOCK_S + 100])
async def test_an_end_that_is_over_or_too_far_is_refused(seconds, rpc, bonds, provider):
    with pytest.raises(BadInput) as refused:
        await lock(rpc, bonds, provider, seconds=seconds)
    assert refused.value.field == "until_s"
    with pytest.raises(NotFound):
        bonds.registrar.deposit(provider.public)


async def test_a_second_bond_is_refused_while_the_first_is_locked(rpc, bonds, provider):
    await lock(rpc, bonds, provider)
    with pytest.raises(NotAllowed, match="one at a time") as refused:
        await lock(rpc, bonds, provider, key="second")
    assert (refused.value.field, bonds.registrar.deposit(provider.public).bond.amount_msat) == ("provider", SAT * 1_000)


async def test_a_convicted_key_gets_no_new_bond(rpc, bonds, provider):
    await lock(rpc, bonds, provider)
    job = request(price_msat=PRICE_MSAT, driver=provider)
    assert bonds.registrar.present(bm.certificate(convicted(job, culprit=provider)), job)["slashes"]
    with pytest.raises(NotAllowed, match="convicted; its key gets no new bond"):
        await lock(rpc, bonds, provider, key="second")
    with pytest.raises(NotAllowed, match="nothing is stated of it any more"):
        await bonds.registrar.statement(provider.public)


async def test_a_raise_that_is_asked_again_counts_once(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    more = coins_at(rpc, deposit.terms, 20_000)
    first = await bonds.registrar.top_up(provider.public, "more", more)
    assert await bonds.registrar.top_up(provider.public, "more", more) == first
    assert (first.bond.amount_msat, len(first.coins)) == ((SAT + 20_000) * 1_000, 2)


async def test_coins_beyond_the_most_that_a_closing_spends_are_refused(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    with pytest.raises(BadInput, match=f"more than {MAX_COINS} in all") as refused:
        await bonds.registrar.top_up(provider.public, "more", coins_at(rpc, deposit.terms, *[2_000] * MAX_COINS))
    assert refused.value.field == "coins"


async def test_coins_that_no_closing_could_divide_are_refused(rpc, bonds, provider):
    least_sat = 4 * VaultCustody.least_sat
    with pytest.raises(BadInput, match=f"has at least {least_sat} sat"):
        await lock(rpc, bonds, provider, least_sat - 1)
    with pytest.raises(BadInput, match=f"more than a tenth of {least_sat} sat"):
        await lock(rpc, bonds, provider, least_sat)


async def test_all_bonds_together_stay_below_the_cap(rpc, tmp_path, provider):
    rules = RegistrarRules(statement_s=60, closing_s=CLOSING_S, cap_sat=SAT + 40_000)
    async with Bonds(tmp_path, lambda who: VaultCustody(rpc.open(), 1), rules=rules) as bonds:
        await lock(rpc, bonds, provider)
        with pytest.raises(NotAllowed, match="40000 sat are free") as refused:
            await lock(rpc, bonds, Keys.generate(), 40_001)
        assert refused.value.field == "cap"
        await lock(rpc, bonds, Keys.generate(), 40_000)


async def test_coins_that_were_spent_are_stated_no_more(rpc, bonds, provider):
    await lock(rpc, bonds, provider)
    event = await bonds.registrar.statement(provider.public)
    rpc.unspent.clear()
    assert await bonds.registrar.statement(provider.public) == event
    bonds.clock.ahead_s += 40
    with pytest.raises(NotFound, match="is spent"):
        await bonds.registrar.statement(provider.public)


async def test_of_two_verdicts_on_a_sample_the_first_stands(rpc, bonds, provider):
    await lock(rpc, bonds, provider)
    job = request(price_msat=PRICE_MSAT, driver=provider)
    first = bonds.registrar.present(bm.certificate(verdict_of(job, provider=provider.public)), job)
    with pytest.raises(NotAllowed, match="another verdict") as refused:
        bonds.registrar.present(bm.certificate(convicted(job, culprit=provider)), job)
    assert refused.value.field == "case"
    assert bonds.registrar.case(first["case"]) == first
    assert bonds.registrar.deposit(provider.public).bond.state == "locked"


async def test_a_verdict_on_a_provider_without_a_bond_is_settled_and_says_that_it_reached_none(bonds, provider):
    job = request(price_msat=PRICE_MSAT, driver=provider)
    settled = bonds.registrar.present(bm.certificate(convicted(job, culprit=provider)), job)
    assert (settled["refused"], settled["bond"], settled["payouts"]) == ("it never had a bond here", "", {})
    assert bonds.registrar.case(settled["case"]) == settled


async def test_a_verdict_after_the_bonds_time_says_in_which_state_it_found_it(rpc, bonds, provider):
    await lock(rpc, bonds, provider)
    bonds.registrar.release(provider.public)
    pass_closing(bonds)
    job = request(price_msat=PRICE_MSAT, driver=provider)
    settled = bonds.registrar.present(bm.certificate(convicted(job, culprit=provider)), job)
    assert settled["refused"] == "its bond is unbonding"
    assert bonds.registrar.deposit(provider.public).bond.payouts == ()


@pytest.mark.parametrize("has_bond", [True, False])
async def test_an_accomplices_bond_burns_whole_and_pays_nobody(has_bond, rpc, bonds, provider):
    accomplice = bm.VERIFIERS[2]  # it disagreed
    await lock(rpc, bonds, provider)
    if has_bond:
        await lock(rpc, bonds, accomplice)
    job = request(price_msat=PRICE_MSAT, driver=provider)
    said = convicted(job, culprit=provider, accomplices=(accomplice.public,))
    settled = bonds.registrar.present(bm.certificate(said), job)
    culprits = bonds.registrar.deposit(provider.public).bond
    assert (settled["bond"], settled["refused"]) == (culprits.id, "")
    assert settled["payouts"] == {one.payee: one.amount_msat for one in culprits.payouts}
    if has_bond:
        burnt = bonds.registrar.deposit(accomplice.public).bond
        assert (burnt.state, burnt.payouts) == ("slashed", ())


# Closings


async def released(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    bonds.registrar.release(provider.public)
    pass_closing(bonds)
    (told,) = await bonds.registrar.open_closings()
    return deposit, told


def convicts_nobody(key):
    return frozenset()


async def signatures(bonds, told, oracle):
    custody = bonds.custody("oracle")
    return await cosigner.sign(told, oracle, COMMITTEE, custody, convicts_nobody)


async def test_a_bond_whose_time_is_not_over_is_signed_by_nobody(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    with pytest.raises(NotFound, match="time is not over") as refused:
        await bonds.registrar.cosign(ORACLES[0].public, deposit.bond.id, [b""])
    assert refused.value.field == "closing"
    with pytest.raises(NotFound, match="no such bond"):
        await bonds.registrar.cosign(ORACLES[0].public, "00" * 32, [b""])


async def test_signatures_that_are_no_oracles_or_too_few_are_not_kept(rpc, bonds, provider):
    deposit, told = await released(rpc, bonds, provider)
    given = await signatures(bonds, told, ORACLES[0])
    for signer, signed, reason in (
        (provider, given, "not by an oracle"),
        (ORACLES[0], [], "not one for each"),
        (ORACLES[1], given, "something else"),
    ):
        with pytest.raises(BadSignature, match=reason):
            await bonds.registrar.cosign(signer.public, deposit.bond.id, signed)
    assert bonds.book.signatures(deposit.bond.id) == {}


async def test_a_closing_that_a_quorum_has_not_signed_is_told_to_nobody(rpc, bonds, provider):
    deposit, told = await released(rpc, bonds, provider)
    await bonds.registrar.cosign(ORACLES[0].public, deposit.bond.id, await signatures(bonds, told, ORACLES[0]))
    with pytest.raises(NotFound, match="have not signed it yet"):
        bonds.registrar.closed(deposit.bond.id)
    (told,) = await bonds.registrar.open_closings()
    assert told["signed_by"] == [ORACLES[0].public]
    for oracle in ORACLES[1:3]:
        await bonds.registrar.cosign(oracle.public, deposit.bond.id, await signatures(bonds, told, oracle))
    closed = bonds.registrar.closed(deposit.bond.id)
    assert closed["payments"] == [[provider.public, SAT - closed["fee_sat"]]]
    assert ("sendrawtransaction" in {method for method, *_ in rpc.asked}) and len(closed["left"]["txid"]) == 64
    assert bonds.registrar.deposit(provider.public).bond.state == "released"


async def test_a_node_that_is_behind_closes_no_bond_before_the_providers_own_time(rpc, bonds, provider):
    deposit, told = await released(rpc, bonds, provider)
    for oracle in ORACLES[:3]:
        given = await signatures(bonds, told, oracle)
        if oracle is ORACLES[2]:
            rpc.unspent.clear()
        await bonds.registrar.cosign(oracle.public, deposit.bond.id, given)
    assert bonds.registrar.deposit(provider.public).bond.state == "unbonding"
    bonds.clock.ahead_s += deposit.terms.refund_at_s
    await bonds.registrar.sweep()
    assert bonds.registrar.deposit(provider.public).bond.state == "released"
    assert bonds.registrar.closed(deposit.bond.id)["left"] == {"refunded": True}


async def test_a_closing_that_oracles_never_sign_stays_open_while_its_coins_are_there(rpc, bonds, provider):
    deposit, _ = await released(rpc, bonds, provider)
    bonds.clock.ahead_s += deposit.terms.refund_at_s
    await bonds.registrar.sweep()
    assert bonds.registrar.deposit(provider.public).bond.state == "unbonding"


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"verdicts": None}, BadInput, "verdicts"),
        ({"verdicts": [[]] * (cosigner.MAX_VERDICTS + 1)}, TooLarge, "verdicts"),
        ({"verdicts": [1]}, BadInput, "verdicts"),
        ({"coins": [1]}, BadInput, "coins"),
        ({"means": None}, BadInput, "fee_sat"),
        ({"fee_sat": 0}, BadInput, "fee_sat"),
        ({"fee_sat": SAT - 1}, BadInput, "fee_sat"),
        ({"fee_sat": SAT}, BadInput, "transaction"),
        ({"fee_sat": SAT + 1}, BadInput, "fee_sat"),
    ],
    ids=str,
)
async def test_an_oracle_signs_no_malformed_closing(change, error, field, rpc, bonds, provider):
    _, told = await released(rpc, bonds, provider)
    with pytest.raises(error) as refused:
        await signatures(bonds, {**told, **change}, ORACLES[0])
    assert refused.value.field == field


async def test_an_oracle_signs_no_closing_by_a_verdict_about_another_provider(rpc, bonds, provider):
    _, told = await released(rpc, bonds, provider)
    job = request(price_msat=PRICE_MSAT)
    evidence = [bm.certificate(convicted(job, culprit=bm.PROVIDER)).as_dict(), job.as_dict(), SAT]
    with pytest.raises(BadQuorum, match="not about this provider"):
        await signatures(bonds, {**told, "verdicts": [evidence]}, ORACLES[0])


# From verdict to payout


async def slashed(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    job = request(price_msat=PRICE_MSAT, driver=provider)
    settled = await bonds.client("customer").present(bm.certificate(convicted(job, culprit=provider)), job)
    bonds.clock.ahead_s += 60 + DELAY_S + 1
    return deposit, settled


async def test_oracles_sign_by_the_verdict_and_not_without_one_that_they_know(rpc, bonds, provider):
    deposit, settled = await slashed(rpc, bonds, provider)
    (told,) = await bonds.registrar.open_closings()
    with pytest.raises(NotAllowed, match="1 that convict the provider are left out"):
        await cosigner.sign(
            {**told, "verdicts": []}, ORACLES[0], COMMITTEE, bonds.custody("o"), lambda key: frozenset({settled.case})
        )
    known = {provider.public: frozenset({settled.case})}
    assert await bonds.cosign(ORACLES[:3], known.__getitem__) == 3
    closed = bonds.registrar.closed(deposit.bond.id)
    paid = dict(map(tuple, closed["payments"]))
    assert paid[bm.CUSTOMER.public] == PRICE_MSAT // 1_000 and provider.public not in paid
    assert sum(paid.values()) + closed["fee_sat"] == SAT
    assert bonds.registrar.deposit(provider.public).bond.state == "burnt"


@pytest.mark.parametrize(
    "change",
    [lambda one: one[:2], lambda one: [*one[:2], SAT + 1], lambda one: [*one[:2], -1], lambda one: [*one[:2], True]],
    ids=["no amount", "more than the bond", "less than nothing", "no number"],
)
async def test_a_verdict_with_an_amount_that_the_bond_never_had_is_not_signed(change, rpc, bonds, provider):
    await slashed(rpc, bonds, provider)
    (told,) = await bonds.registrar.open_closings()
    assert len(await signatures(bonds, told, ORACLES[0])) == 1
    with pytest.raises(BadInput) as refused:
        await signatures(bonds, {**told, "verdicts": [change(told["verdicts"][0])]}, ORACLES[0])
    assert refused.value.field == "verdicts"


@pytest.mark.parametrize("change", [{"quorum": 2}, {"committee": "00" * 32}], ids=["quorum", "committee"])
async def test_terms_of_another_committee_or_a_smaller_quorum_are_not_signed(change, rpc, bonds, provider):
    _, told = await released(rpc, bonds, provider)
    with pytest.raises(BadQuorum) as refused:
        await signatures(bonds, {**told, "terms": {**told["terms"], **change}}, ORACLES[0])
    assert refused.value.field == "terms"


async def test_a_payee_claims_when_the_closing_is_made_and_not_before(rpc, bonds, provider):
    rpc.answers |= {"getnewaddress": "a", "getaddressinfo": {"scriptPubKey": "51"}}
    deposit, settled = await slashed(rpc, bonds, provider)
    customer = bonds.client("customer")
    with pytest.raises(PaymentFailed, match="when its time is over"):
        await customer.claim(bm.CUSTOMER, settled.case)
    await bonds.cosign(ORACLES[:3])
    closed = bonds.registrar.closed(deposit.bond.id)
    place = [payee for payee, _ in closed["payments"]].index(bm.CUSTOMER.public)
    rpc.unspent[closed["left"]["txid"], place] = (PRICE_MSAT // 1_000, "51")
    assert PRICE_MSAT - 1_000_000 < await customer.claim(bm.CUSTOMER, settled.case) < PRICE_MSAT
    with pytest.raises(NotAllowed, match="gives this key nothing"):
        await customer.claim(bm.STRANGER, settled.case)


async def test_a_closing_that_an_oracle_refuses_keeps_it_from_no_other(rpc, bonds, provider):
    other = Keys.generate()
    deposits = [await lock(rpc, bonds, one) for one in (provider, other)]
    for one in (provider, other):
        bonds.registrar.release(one.public)
    pass_closing(bonds)
    known = {provider.public: frozenset({"a sample"}), other.public: frozenset()}
    with pytest.raises(NotAllowed, match="are left out"):
        await bonds.cosign(ORACLES[:1], known.__getitem__)
    assert [list(bonds.book.signatures(one.bond.id)) for one in deposits] == [[], [ORACLES[0].public]]


async def test_a_coin_counts_for_one_bond_and_once(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    with pytest.raises(NotAllowed, match="a bond's already") as refused:
        await bonds.registrar.top_up(provider.public, "again", deposit.coins)
    assert refused.value.field == "coins"
    with pytest.raises(BadInput, match="stands twice"):
        await bonds.registrar.top_up(provider.public, "twice", coins_at(rpc, deposit.terms, SAT) * 2)
    assert bonds.registrar.deposit(provider.public) == deposit


async def test_a_request_by_another_key_enters_no_bond(rpc, bonds, provider):
    terms = terms_for(bonds, provider)
    with pytest.raises(NotAllowed, match="another key") as refused:
        await bonds.registrar.lock(bm.STRANGER.public, terms, coins_at(rpc, terms, SAT))
    assert refused.value.field == "provider"
    with pytest.raises(NotFound):
        bonds.registrar.deposit(provider.public)


async def test_a_bond_whose_end_has_come_unbonds_by_itself_and_is_raised_no_more(rpc, bonds, provider):
    deposit = await lock(rpc, bonds, provider)
    bonds.clock.ahead_s += 1_000
    assert bonds.registrar.deposit(provider.public).bond.state == "unbonding"
    with pytest.raises(NotAllowed, match="unbonding"):
        await bonds.registrar.top_up(provider.public, "more", coins_at(rpc, deposit.terms, SAT))
    assert bonds.registrar.deposit(provider.public).coins == deposit.coins


async def test_over_http_a_bond_is_entered_stated_and_released_by_its_provider_alone(rpc, bonds, provider):
    client, terms = bonds.client("provider"), terms_for(bonds, provider)
    body = {"terms": terms.model_dump(mode="json"), "coins": coins_at(rpc, terms, SAT)}
    with pytest.raises(NotAllowed, match="another key"):
        await client._ask("POST", "/v1/bonds", body, bm.STRANGER)
    assert (await client._ask("POST", "/v1/bonds", body, provider))["state"] == "locked"
    stated = statements.parse(await client.statement(provider))
    assert (stated.holder, stated.provider, stated.amount_msat) == (bm.HOLDER.public, provider.public, SAT * 1_000)
    with pytest.raises(NotFound):
        await client.statement(bm.STRANGER)
    with pytest.raises(NotFound):
        await client.release(bm.STRANGER)
    assert (await client.release(provider)).state == "unbonding"
    with pytest.raises(NotFound, match="time is not over"):
        await client._ask("GET", f"/v1/closings/{terms.id}")
