"""A provider's nutzaps at a real mint: what is claimed, once, whatever anybody makes of it and wherever it dies."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import orjson
import pytest

from nodewire.errors import BadZap, Busy, LinkLost, NodewireError
from nodewire.nostr.event import sign
from nodewire.nostr.nips import nip61
from nodewire.pay.ecash import blind
from nodewire.pay.ecash.proofs import Proof, signed_inputs
from nodewire.pay.nutzaps import claims as claims_
from nodewire.pay.wallets.cashu import CashuWallet
from tests.pay import nutzap_market as market
from tests.pay.mint_process import fund, needs_mint, run_mint
from tests.pay.nutzap_market import CUSTOMER, LOCK, PROVIDER, STRANGER, Ecash


class Killed(Exception):
    """The process died here."""


@pytest.fixture
async def ecash(mint, tmp_path):
    """The customer's wallet, with 1,000 satoshis."""
    wallet = CashuWallet(mint.url, tmp_path / "customer.purse")
    await fund(mint, wallet, 1_000_000)
    yield wallet
    await wallet.close()


@pytest.fixture
async def open_claims(mint, tmp_path):
    async with AsyncExitStack() as stack:

        def open_one(**options):
            one = market.claims(tmp_path, mint.url, **options)
            stack.push_async_callback(one.close)
            return one

        yield open_one


def nobody(_):
    return False


async def claimed(one, event):
    """What became of a nutzap: its state, and what it brought in satoshis."""
    one.enter(event, is_known=nobody)
    await one.claim(event.id)
    found = one._purse.nutzaps.find(event.id)
    return found.state, found.amount_sat


@needs_mint
async def test_a_nutzap_is_claimed_and_told_until_it_is_booked(mint, ecash, open_claims):
    event = market.event(await market.locked(ecash, 77), mint.url, content="thanks")
    one = open_claims()
    assert await claimed(one, event) == ("claimed", 77)
    (told,) = one.claimed()
    assert (told.sender, told.amount_msat, told.nutzap.content) == (CUSTOMER.public, 77_000, "thanks")
    assert open_claims().claimed() == [told]
    one.booked(event.id)
    assert open_claims().claimed() == [] and one._purse.balance_sat == 77
    assert one.enter(event, is_known=nobody) is None
    await one.claim(event.id)
    assert one._purse.balance_sat == 77 and await ecash.balance_msat() == 923_000


@needs_mint
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["keyset", "active", "swap"])
async def test_a_provider_that_dies_at_any_step_has_the_ecash_once(mint, ecash, open_claims, monkeypatch, step, when):
    event = market.event(await market.locked(ecash, 77), mint.url)
    one = open_claims()
    real = getattr(one._mint, step)

    async def method(*args):
        if when == "after":
            await real(*args)
        raise Killed

    monkeypatch.setattr(one._mint, step, method)
    one.enter(event, is_known=nobody)
    with pytest.raises(Killed):
        await one.claim(event.id)
    again = open_claims()
    assert again.claimed() == [] and again._purse.balance_sat == 0
    await again.finish()
    await again.claim_waiting()
    assert [told.amount_msat for told in again.claimed()] == [77_000] and again._purse.balance_sat == 77
    assert not again._purse.operations("claim")


@needs_mint
async def test_a_mint_that_is_down_loses_nothing_and_is_asked_again(tmp_path):
    with run_mint(tmp_path) as mint:
        wallet = CashuWallet(mint.url, tmp_path / "customer.purse")
        await fund(mint, wallet, 100_000)
        event, port = market.event(await market.locked(wallet, 50), mint.url), mint.port
        await wallet.close()
    one = market.claims(tmp_path, mint.url)
    one.enter(event, is_known=nobody)
    with pytest.raises(LinkLost):
        await one.claim_waiting()
    with run_mint(tmp_path, port=port):
        await one.claim_waiting()
        assert [told.amount_msat for told in one.claimed()] == [50_000]
    await one.close()


@needs_mint
async def test_a_mint_that_takes_fees_has_them_and_the_rest_counts(tmp_path):
    with run_mint(tmp_path, MINT_INPUT_FEE_PPK="300") as mint:
        wallet = CashuWallet(mint.url, tmp_path / "customer.purse")
        await fund(mint, wallet, 64_000)
        keyset = (await wallet._mint.active()).id
        inputs = wallet._purse.free()
        mine = market.secrets([32, 16, 8, 4, 2], keyset, CUSTOMER, salt="5a" * 32)
        assert len(inputs) == 1  # 64 satoshis, whose fee is one
        proofs = await wallet._mint.swap(
            [inputs[0].as_input()], [*mine, *market.secrets([1], keyset, STRANGER, salt=None)]
        )
        one = market.claims(tmp_path, mint.url)
        assert await claimed(one, market.event(Ecash(proofs[:5], "5a" * 32), mint.url)) == (
            "claimed",
            60,
        )  # 62, less 5 times 0.3
        await one.close()
        await wallet.close()


# Attacks


@needs_mint
async def test_proofs_that_were_spent_before_bring_nothing(mint, ecash, open_claims):
    proofs = await market.locked(ecash, 8)
    keyset = await ecash._mint.active()
    await ecash._mint.swap(signed_inputs(LOCK, proofs.proofs), market.secrets([8], keyset.id, PROVIDER, salt=None))
    one = open_claims()
    assert await claimed(one, market.event(proofs, mint.url)) == ("refused", 0)
    assert one._purse.balance_sat == 0 and not one._purse.operations("claim") and one._purse.held_sat == 0


@needs_mint
async def test_a_proof_in_two_nutzaps_brings_its_money_once(mint, ecash, open_claims):
    proofs = await market.locked(ecash, 12)
    first, second = market.event(proofs, mint.url), market.event(proofs.first(), mint.url, created_at=2)
    one = open_claims()
    one.enter(first, is_known=nobody)
    one.enter(second, is_known=nobody)
    await one.claim_waiting()
    book = one._purse.nutzaps
    assert (book.find(first.id).state, book.find(second.id).state) == ("claimed", "refused")
    assert one._purse.balance_sat == 12
    third = market.event(proofs.first(), mint.url, created_at=3)
    with pytest.raises(BadZap, match="before"):
        one.enter(third, is_known=nobody)


@needs_mint
async def test_a_nutzap_that_another_author_copies_is_its_makers(mint, ecash, open_claims):
    """With the maker's salt it is none; without one it waits, and the maker's own is claimed meanwhile."""
    proofs = await market.locked(ecash, 16)
    one = open_claims()
    with pytest.raises(BadZap, match="another author"):
        one.enter(market.event(proofs, mint.url, STRANGER), is_known=nobody)
    copy = market.event(Ecash(proofs.proofs, None), mint.url, STRANGER)
    one.enter(copy, is_known=nobody)
    await one.claim_waiting()
    assert one.claimed() == []
    assert await claimed(one, market.event(proofs, mint.url)) == ("claimed", 16)
    later = open_claims(now_s=lambda: time.time() + claims_.UNBOUND_S + 1)
    await later.claim_waiting()
    assert later._purse.nutzaps.find(copy.id).state == "refused"
    assert [told.sender for told in later.claimed()] == [CUSTOMER.public]


@needs_mint
async def test_a_nutzap_of_an_ordinary_client_is_claimed_in_the_end_and_is_nobodys(mint, ecash, open_claims):
    event = market.event(await market.locked(ecash, 5, bound=False), mint.url)
    one = open_claims()
    one.enter(event, is_known=nobody)
    later = open_claims(now_s=lambda: time.time() + claims_.UNBOUND_S + 1)
    await later.claim_waiting()
    assert [(told.sender, told.amount_msat) for told in later.claimed()] == [("", 5_000)]


@needs_mint
async def test_forged_proofs_and_amounts_cost_the_mint_nothing(mint, ecash, open_claims, monkeypatch):
    own = await market.locked(ecash, 4)
    (proof,) = own.proofs
    good, one = proof.as_dict(), open_claims()
    await one._mint.keyset(proof.id)

    async def asked(*_):
        raise AssertionError("the mint is asked")

    monkeypatch.setattr(one._mint, "swap", asked)
    dleq = good["dleq"]
    forged = [
        {**good, "dleq": {**dleq, "e": dleq["s"]}},
        {**good, "dleq": {**dleq, "r": dleq["s"]}},
        {**good, "C": blind.hash_to_curve(b"x")},
        {**good, "amount": 8},
        {**good, "amount": 2**36},
        {name: value for name, value in good.items() if name != "dleq"},
        {**good, "secret": market.secrets([4], proof.id, CUSTOMER, salt="11" * 32)[0].secret},
    ]
    for number, said in enumerate(forged):
        salt = "11" * 32 if said["secret"] != good["secret"] else own.salt
        text = orjson.dumps(said).decode()
        event = market.event(Ecash([], salt), mint.url, texts=[text], created_at=number + 1)
        assert await claimed(one, event) == ("refused", 0), said
    assert one._purse.nutzaps.find(event.id).event == ""
    monkeypatch.undo()
    assert await claimed(one, market.event(own, mint.url)) == ("claimed", 4)


@needs_mint
async def test_a_keyset_that_the_mint_does_not_list_is_asked_for_rarely_and_no_money_is_given_up(
    mint, ecash, open_claims, monkeypatch
):
    own = await market.locked(ecash, 4)
    (proof,) = own.proofs
    one, asked = open_claims(), []
    real = one._mint.ask

    async def ask(method, path, *rest, **options):
        asked.append(path)
        return await real(method, path, *rest, **options)

    monkeypatch.setattr(one._mint, "ask", ask)
    for number in range(20):
        said = {**proof.as_dict(), "id": f"00{number:014x}"}
        event = market.event(own, mint.url, texts=[orjson.dumps(said).decode()], created_at=number)
        assert await claimed(one, event) == ("waiting", 0)
    assert asked == ["/v1/keysets"]
    assert await claimed(one, market.event(own, mint.url)) == ("claimed", 4)


@needs_mint
async def test_a_keyset_of_another_unit_is_not_taken_for_satoshis(tmp_path):
    dollars = {"MINT_BACKEND_BOLT11_USD": "FakeWallet", "MINT_DERIVATION_PATH_LIST": "[\"m/0'/2'/0'\"]"}
    with run_mint(tmp_path, **dollars) as mint:
        one = market.claims(tmp_path, mint.url)
        rows = (await one._mint.ask("GET", "/v1/keysets"))["keysets"]
        usd = next(row["id"] for row in rows if row["unit"] == "usd")
        with pytest.raises(NodewireError, match="another unit"):
            await one._mint.keyset(usd)
        await one.close()


@needs_mint
async def test_strangers_fill_no_more_than_their_room_and_never_a_customers(mint, ecash, open_claims, monkeypatch):
    monkeypatch.setattr(claims_, "MAX_WAITING", 3)
    one, proofs = open_claims(), await market.locked(ecash, 7, bound=False)
    for number in range(3):
        one.enter(market.event(proofs, mint.url, created_at=number), is_known=nobody)
    with pytest.raises(Busy):
        one.enter(market.event(proofs, mint.url, created_at=9), is_known=nobody)
    own = market.event(await market.locked(ecash, 3), mint.url)
    with pytest.raises(Busy):
        one.enter(own, is_known=nobody)
    assert one.enter(own, is_known=CUSTOMER.public.__eq__) is not None


@needs_mint
async def test_what_is_for_another_is_not_entered(mint, ecash, open_claims):
    keyset = (await ecash._mint.active()).id
    other = market.secrets([4], keyset, CUSTOMER, salt=None, lock=STRANGER)[0]
    text = orjson.dumps(Proof(4, keyset, other.secret, "02" + "11" * 32).as_dict()).decode()
    event = sign(CUSTOMER, nip61.NUTZAP, created_at=1, tags=[["proof", text], ["u", mint.url], ["p", PROVIDER.public]])
    one = open_claims()
    for wrong, field in (
        (event, "proof"),
        (sign(CUSTOMER, nip61.NUTZAP, created_at=1, tags=[*event.tags[:2], ["p", STRANGER.public]]), "p"),
        (sign(CUSTOMER, nip61.NUTZAP, created_at=1, tags=[event.tags[0], ["u", mint.url + "/"], event.tags[2]]), "u"),
    ):
        with pytest.raises(BadZap) as refused:
            one.enter(wrong, is_known=nobody)
        assert refused.value.field == field and one._purse.nutzaps.find(wrong.id) is None
