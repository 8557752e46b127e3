"""Bonds in vaults through the port, on a real Bitcoin node: lock, state, slash, claim, release, refund."""

from __future__ import annotations

import contextlib
import time

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadQuorum, BadSignature, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.bitcoin import vault as vaults
from nodewire.pay.bond.bond_holder import ensure_bond
from nodewire.pay.bond.presentation_store import PresentationStore
from nodewire.pay.bond.presenter import Presenter
from nodewire.pay.bond.quorum import cosigner
from nodewire.pay.bond.quorum.vault_custody import VaultCustody, vault_of
from nodewire.protocol.market import bond as statements
from tests.pay.bitcoin_process import Chain, needs_bitcoind, run_bitcoind
from tests.pay.bond.quorum.market import CLOSING_S, COMMITTEE, ORACLES, Bonds, convicted, request, verdict_of
from tests.pay.bond_market import CUSTOMER, VERIFIERS

pytestmark = needs_bitcoind
SAT, PRICE_MSAT = 100_000, 3_000_000
DELAY_S = 32


@pytest.fixture(scope="module")
def bitcoind(tmp_path_factory):
    with run_bitcoind(tmp_path_factory.mktemp("bitcoin")) as process:
        yield process


@pytest.fixture
async def chain(bitcoind):
    chain = Chain(bitcoind)
    yield chain
    await chain.node.close()


@pytest.fixture
async def bonds(bitcoind, chain, tmp_path):
    async with Bonds(tmp_path, lambda who: VaultCustody(type(chain.node)(bitcoind.url), 1)) as bonds:
        yield bonds


@pytest.fixture
def provider():
    return Keys.generate()


def until(bonds, seconds=1_000):
    return int(bonds.clock()) + seconds


async def lock(bonds, chain, provider, sat=SAT, until_s=None):
    """A locked bond, and the provider's holder: the first try tells that no block has the coins yet."""
    holder, until_s = bonds.client("provider"), until_s or until(bonds)
    with pytest.raises(NotFound, match="has 0 of 1 confirmations"):
        await ensure_bond(holder, provider, sat * 1_000, until_s)
    await chain.mine()
    return holder, await ensure_bond(holder, provider, sat * 1_000, until_s)


async def sends(chain):
    """How often the node's wallet has paid."""
    said = await chain.raw("listsinceblock")
    return len([one for one in said["transactions"] if one["category"] == "send"])


async def failed(bonds, provider, **changes):
    job = request(price_msat=PRICE_MSAT, driver=provider)
    return bm.certificate(convicted(job, culprit=provider, **changes)), job


async def test_a_bond_is_locked_once_though_its_provider_asks_again_and_again(bonds, chain, provider):
    holder, event = await lock(bonds, chain, provider)
    said = statements.parse(event)
    assert (said.holder, said.provider, said.amount_msat) == (bm.HOLDER.public, provider.public, SAT * 1_000)
    assert await ensure_bond(holder, provider, SAT * 1_000, until(bonds, 5_000)) == event
    told = await holder._ask("GET", f"/v1/bonds/{provider.public}")
    output = vault_of(bonds.registrar.deposit(provider.public).terms).output
    assert len(told["coins"]) == 1 and await chain.received_sat(output) == SAT
    assert (await holder.holder()).custodian == ""


async def test_a_lock_that_is_asked_again_with_another_end_pays_once(bonds, chain, provider):
    """`nodewire bond lock --days 90` means another second each time."""
    holder, before = bonds.client("provider"), await sends(chain)
    for later_s in (0, 7):
        with pytest.raises(NotFound, match="confirmations"):
            await ensure_bond(holder, provider, SAT * 1_000, until(bonds, 1_000 + later_s))
    await chain.mine()
    await ensure_bond(holder, provider, SAT * 1_000, until(bonds, 1_020))
    assert len(bonds.registrar.deposit(provider.public).coins) == 1
    assert await sends(chain) == before + 1


async def test_a_node_that_is_behind_is_no_refund(bonds, chain, provider, monkeypatch):
    await lock(bonds, chain, provider)
    bonds.registrar.release(provider.public)
    bonds.clock.ahead_s += 120 + DELAY_S
    real = bonds.registrar.custody._node.output

    async def behind(at):
        raise NotFound("output", "no block has it yet")

    monkeypatch.setattr(bonds.registrar.custody._node, "output", behind)
    for oracle in ORACLES[:3]:
        with contextlib.suppress(NotFound, BadInput):
            await bonds.client("one").cosign(oracle, COMMITTEE, lambda key: frozenset())
    assert bonds.registrar.deposit(provider.public).bond.state == "unbonding"
    monkeypatch.setattr(bonds.registrar.custody._node, "output", real)
    await bonds.registrar.sweep()
    assert bonds.registrar.deposit(provider.public).bond.state == "released"


async def test_a_bond_is_raised_by_more_coins_in_the_same_vault(bonds, chain, provider):
    holder, _ = await lock(bonds, chain, provider)
    bond = await holder.bond(provider.public)
    with pytest.raises(NotAllowed, match="ends when it was locked for"):
        await holder.top_up(provider, 5_000_000, bond.until_s + 1, key="later")
    with pytest.raises(NotFound, match="confirmations"):
        await ensure_bond(holder, provider, 150_000_000, bond.until_s)
    await chain.mine()
    event = await ensure_bond(holder, provider, 150_000_000, bond.until_s)
    assert statements.parse(event).amount_msat == 150_000_000
    output = vault_of(bonds.registrar.deposit(provider.public).terms).output
    assert await chain.received_sat(output) == 150_000


async def test_from_verdict_to_payout(bonds, chain, provider):
    """2f+1 oracles sign what the verdict gives; the customer takes it by its Nostr key; the rest is the pool's."""
    holder, _ = await lock(bonds, chain, provider)
    customer = bonds.client("customer")
    certificate, job = await failed(bonds, provider)
    settled = await customer.present(certificate, job)
    assert await customer.present(certificate, job) == settled == await customer.case(settled.case)
    assert (settled.slashes, settled.refused, settled.payouts[CUSTOMER.public]) == (True, "", PRICE_MSAT)
    assert (await holder.bond(provider.public)).state == "slashed"
    with pytest.raises(NotAllowed, match="slashed"):
        await ensure_bond(holder, provider, SAT * 1_000, until(bonds))
    with pytest.raises(PaymentFailed, match="when its time is over"):
        await customer.claim(CUSTOMER, settled.case)
    assert await bonds.cosign() == 0

    bonds.clock.ahead_s += 60 + DELAY_S + 1
    assert await bonds.cosign(ORACLES[:2]) == 2
    assert (await holder.bond(provider.public)).state == "slashed"
    assert await bonds.cosign(ORACLES[2:3]) == 1
    assert (await holder.bond(provider.public)).state == "burnt"
    await chain.mine()
    paid_sat = await chain.received_sat(vaults.key_output(CUSTOMER.public))
    assert paid_sat == PRICE_MSAT // 1_000
    pool = vaults.pool_output([one.public for one in ORACLES], 3)
    assert await chain.received_sat(pool) > SAT // 2
    for who in (CUSTOMER, VERIFIERS[0], VERIFIERS[1]):
        assert 0 < await bonds.client(who.public[:8]).claim(who, settled.case) < PRICE_MSAT
    assert await customer.claim(CUSTOMER, settled.case) == PRICE_MSAT
    await chain.mine()
    assert await chain.received_sat(vaults.key_output(CUSTOMER.public)) == 0
    with pytest.raises(NotAllowed):
        await customer.claim(provider, settled.case)
    with pytest.raises(NotAllowed, match="slashed"):
        await ensure_bond(bonds.client("other"), provider, SAT * 1_000, until(bonds))


class Relays:
    """Has the one request."""

    def __init__(self, event):
        self.event = event

    async def fetch(self, filters):
        return [self.event]


async def test_oracles_slash_by_themselves_and_let_none_go_that_they_know_as_convicted(bonds, chain, provider):
    """Their presenters present and sign. A registrar that leaves the verdict out gets no honest signature."""
    holder, _ = await lock(bonds, chain, provider)
    certificate, job = await failed(bonds, provider)
    now_s, presenters = [bm.GENESIS_S + (bm.EPOCH + 3) * 2.0], []
    for number, oracle in enumerate(ORACLES):
        file = PresentationStore(bonds.folder / f"presented{number}.db", COMMITTEE.digest())
        client, clock = bonds.client(f"oracle{number}"), (lambda: now_s[0])
        more = {"collects": False, "time_s": clock, "monotonic_s": clock}
        presenters.append((Presenter(oracle, COMMITTEE, Relays(job), client, file, **more), client, file))
        presenters[-1][0].certified(certificate)
    assert presenters[0][2].convictions(provider.public) == {settled_case(certificate)}
    assert presenters[0][2].convictions(CUSTOMER.public) == frozenset()
    bonds.registrar.release(provider.public)
    bonds.clock.ahead_s += 120 + DELAY_S
    for _, client, file in presenters:
        oracle = ORACLES[presenters.index((_, client, file))]
        with pytest.raises(NotAllowed, match="are left out"):
            await client.cosign(oracle, COMMITTEE, file.convictions)
    assert (await holder.bond(provider.public)).state == "unbonding"
    bonds.clock.ahead_s -= 120 + DELAY_S
    for _ in range(2):
        for presenter, _, _ in presenters:
            await presenter.present_due()
        now_s[0] += 10
    assert (await holder.bond(provider.public)).state == "slashed"
    bonds.clock.ahead_s += 240 + 2 * DELAY_S
    for presenter, _, _ in presenters:
        await presenter.present_due()
    assert (await holder.bond(provider.public)).state == "burnt"
    await chain.mine()
    assert await chain.received_sat(vaults.key_output(provider.public)) == 0
    for _, _, file in presenters:
        file.close()


async def test_a_release_is_signed_by_the_oracles_and_the_provider_takes_it(bonds, chain, provider):
    holder, event = await lock(bonds, chain, provider)
    released = await holder.release(provider)
    stated_until_s = statements.parse(event).expires_at_s
    assert (released.state, released.frees_at_s) == ("unbonding", stated_until_s + DELAY_S)
    with pytest.raises(NotAllowed, match="was asked back"):
        await ensure_bond(holder, provider, SAT * 1_000, until(bonds))
    bonds.clock.ahead_s += 60 + DELAY_S + 1
    assert await bonds.cosign(ORACLES[1:]) == 3
    await chain.mine()
    own_sat = await chain.received_sat(vaults.key_output(provider.public))
    assert SAT - 2_000 < own_sat < SAT
    assert (await holder.release(provider)).state == "released"
    await chain.mine()
    assert await chain.received_sat(vaults.key_output(provider.public)) == 0
    _, event = await lock(bonds, chain, provider, until_s=until(bonds, 2_000))
    assert statements.parse(event).amount_msat == SAT * 1_000


async def test_a_withheld_chunk_is_paid_when_the_bond_is_released(bonds, chain, provider):
    holder, _ = await lock(bonds, chain, provider)
    job = request(price_msat=PRICE_MSAT, driver=provider)
    said = verdict_of(job, outcome="withheld", provider=provider.public, verifiers=())
    settled = await holder.present(bm.certificate(said), job)
    assert (settled.slashes, settled.payouts) == (False, {CUSTOMER.public: PRICE_MSAT})
    bond = await holder.bond(provider.public)
    assert (bond.state, bond.remainder_msat) == ("locked", SAT * 1_000 - 16 * PRICE_MSAT)
    await holder.release(provider)
    bonds.clock.ahead_s += 120 + DELAY_S
    await bonds.cosign()
    await chain.mine()
    own_sat = await chain.received_sat(vaults.key_output(provider.public))
    assert own_sat == bond.remainder_msat // 1_000 - bonds.book.closing(bond.id)[0]["fee_sat"]
    assert await bonds.client("customer").claim(CUSTOMER, settled.case) > 0


async def test_from_t_on_the_provider_needs_nobody(bonds, chain, provider):
    """Neither registrar nor committee answers any more; before T the provider's own file gives it nothing."""
    holder, _ = await lock(bonds, chain, provider)
    terms = bonds.registrar.deposit(provider.public).terms
    custody = bonds.custody("provider")
    with pytest.raises(NotAllowed, match="its own time is in"):
        await custody.refund(provider, terms, bonds.registrar.deposit(provider.public).coins)
    await custody.close()
    await bonds._runner.cleanup()
    assert terms.refund_at_s == terms.until_s + 2 * DELAY_S + CLOSING_S
    bonds.clock.ahead_s += terms.refund_at_s - int(time.time()) + 10
    await chain.pass_to(terms.refund_at_s)
    back = await holder.release(provider)
    assert back.state == "released" and SAT - 1_000 < back.amount_msat // 1_000 < SAT
    await chain.mine()
    assert await chain.received_sat(vault_of(terms).output) == 0
    await bonds.registrar.sweep()  # it comes back, and finds the coins gone in the provider's own time
    assert bonds.registrar.deposit(provider.public).bond.state == "released"
    assert bonds.registrar.closed(terms.id)["left"] == {"refunded": True}
    await chain.raw("setmocktime", 0)


async def test_a_registrar_that_was_killed_knows_everything(bonds, chain, provider):
    _, event = await lock(bonds, chain, provider)
    certificate, job = await failed(bonds, provider)
    settled = await bonds.client("customer").present(certificate, job)
    await bonds.kill()
    await bonds.open()
    assert await bonds.client("customer").case(settled.case) == settled
    bond = await bonds.client("customer").bond(provider.public)
    assert (bond.state, bond.stated_until_s) == ("slashed", statements.parse(event).expires_at_s)
    bonds.clock.ahead_s += 120 + DELAY_S
    await bonds.cosign(ORACLES[:2])
    await bonds.kill()
    await bonds.open()
    await bonds.cosign(ORACLES[2:3])
    assert (await bonds.client("customer").bond(provider.public)).state == "burnt"


async def test_an_oracle_signs_nothing_but_what_follows_from_certified_verdicts(bonds, chain, provider):
    await lock(bonds, chain, provider)
    certificate, job = await failed(bonds, provider)
    await bonds.client("customer").present(certificate, job)
    bonds.clock.ahead_s += 120 + DELAY_S
    (told,) = await bonds.registrar.open_closings()
    oracle, custody, nobody = ORACLES[0], bonds.custody("oracle"), lambda key: frozenset()

    async def sign(said, known=nobody):
        return await cosigner.sign(said, oracle, COMMITTEE, custody, known)

    (good,) = await sign(told)
    with pytest.raises(NotAllowed, match="are left out"):
        await sign({**told, "verdicts": []}, lambda key: frozenset({settled_case(certificate)}))
    (released,) = await sign({**told, "verdicts": []})
    assert released != good
    with pytest.raises(BadSignature):
        await bonds.registrar.cosign(oracle.public, told["terms"]["id"], [released])
    forged = bm.certificate(convicted(job, culprit=provider, chunk=3), ORACLES[:2])
    stranger = bm.certificate(convicted(job, culprit=provider, chunk=3), ORACLES[:3], digest="00" * 32)
    evidence = told["verdicts"]
    for said, error in (
        ({**told, "verdicts": [[forged.as_dict(), job.as_dict(), SAT]]}, BadQuorum),
        ({**told, "verdicts": [[stranger.as_dict(), job.as_dict(), SAT]]}, BadQuorum),
        ({**told, "verdicts": [[*evidence[0][:2], SAT + 1]]}, BadInput),
        ({**told, "verdicts": [evidence[0][:2]]}, BadInput),
        ({**told, "fee_sat": SAT // 2}, BadInput),
        ({**told, "fee_sat": -1}, BadInput),
        ({**told, "coins": []}, BadInput),
        ({**told, "coins": [{**told["coins"][0], "amount_sat": 2 * SAT}]}, BadInput),
        ({**told, "terms": {**told["terms"], "quorum": 1}}, BadQuorum),
        ({**told, "terms": {**told["terms"], "oracles": [CUSTOMER.public] * 1}}, BadInput),
        ({**told, "terms": None}, BadInput),
        ([], BadInput),
    ):
        with pytest.raises(error):
            await sign(said)
    await custody.close()


def settled_case(certificate):
    from nodewire.protocol.verification import verdict

    return verdict.parse(certificate).verdict.key


async def test_coins_of_another_lock_or_of_anothers_bond_are_none(bonds, chain, provider):
    await lock(bonds, chain, provider)
    deposit = bonds.registrar.deposit(provider.public)
    thief = Keys.generate()
    terms = replace_terms(deposit.terms, provider=thief.public)
    with pytest.raises(BadInput, match="not this vault's"):
        await bonds.registrar.lock(thief.public, terms, deposit.coins)
    with pytest.raises(NotAllowed, match="another key"):
        await bonds.registrar.lock(thief.public, deposit.terms, deposit.coins)
    with pytest.raises(BadQuorum, match="refund_at_s"):
        await bonds.registrar.lock(thief.public, replace_terms(terms, refund_at_s=terms.until_s + 60), deposit.coins)
    with pytest.raises(BadInput, match="stands twice"):
        await bonds.registrar.top_up(provider.public, "twice", [*deposit.coins, *deposit.coins])
    with pytest.raises(NotAllowed, match="a bond's already"):
        await bonds.registrar.top_up(provider.public, "again", deposit.coins)


def replace_terms(terms, **changes):
    return type(terms).from_document({**terms.model_dump(mode="json"), **changes})


async def test_a_committee_that_asks_for_shares_or_does_not_list_it_has_no_registrar(bonds):
    own = bonds.registrar
    for committee, field in ((bm.COMMITTEE, "verify_share_ppm"), (bm.committee(bond_holders=())[0], "committee")):
        with pytest.raises(BadInput) as refused:
            type(own)(bm.HOLDER, committee, own.custody, bonds.book)
        assert refused.value.field == field
