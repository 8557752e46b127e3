"""A provider's nutzaps at a mint that lies or refuses, and beside another process of the same purse."""

from __future__ import annotations

import time

import orjson
import pytest

from nodewire.errors import LinkLost
from nodewire.pay.nutzaps import claims as claims_
from nodewire.pay.wallets.cashu import CashuWallet
from tests.pay import nutzap_market as market
from tests.pay.nutzap_market import CUSTOMER
from tests.pay.wallets.services import mint_service
from tests.pay.wallets.services.mint_service import MintService, fill

REFUSAL = (400, {"code": 11005, "detail": "swaps are off"})


@pytest.fixture
async def shop(tmp_path):
    """`shop(**options)`: the provider's claims, as a new process opens them; `shop.service` is the mint."""
    opened = []

    def one(**options):
        opened.append(market.claims(tmp_path, one.service.url, **options))
        return opened[-1]

    async with MintService().serving() as one.service:
        one.ecash = CashuWallet(one.service.url, tmp_path / "customer.purse")
        await fill(one.service, one.ecash, 1_000)
        yield one
        for each in (*opened, one.ecash):
            await each.close()


def nobody(_):
    return False


async def entered(shop, claims, amount_sat=12, **options):
    """A nutzap that waits there."""
    event = market.event(await market.locked(shop.ecash, amount_sat), shop.service.url, **options)
    claims.enter(event, is_known=nobody)
    return event


def found(claims, event):
    return claims._purse.nutzaps.find(event.id)


async def test_a_claim_that_a_lost_answer_left_is_ended_by_the_next_one(shop):
    one = shop()
    event = await entered(shop, one)
    shop.service.instead[mint_service.SWAP] = lambda do: (do() and 503, {})
    with pytest.raises(LinkLost):
        await one.claim(event.id)
    assert found(one, event).state == "waiting" and len(one._purse.operations("claim", event.id)) == 1
    again = shop()
    await again.claim(event.id)
    assert found(again, event).state == "claimed" and again._purse.balance_sat == 12
    assert shop.service.asked.count(mint_service.RESTORE) == 1


async def test_a_nutzap_that_the_mints_fee_takes_whole_is_refused(shop):
    one = shop()
    event = await entered(shop, one, 1)
    shop.service.fee_ppk = 1_000
    await one.claim(event.id)
    assert found(one, event).state == "refused" and "takes all of it" in found(one, event).reason


async def test_a_proof_of_an_amount_that_the_mint_has_no_key_for_is_refused(shop):
    one, own = shop(), await market.locked(shop.ecash, 4)
    text = orjson.dumps({**own.proofs[0].as_dict(), "amount": 2**30}).decode()
    event = market.event(own, shop.service.url, texts=[text])
    one.enter(event, is_known=nobody)
    await one.claim(event.id)
    assert found(one, event).state == "refused" and "no key for" in found(one, event).reason


async def test_a_claim_that_another_process_ends_meanwhile_counts_once(shop):
    one, there = shop(), shop()
    event = await entered(shop, one)

    async def late(do):
        answer = do()
        await there.finish()
        return answer

    shop.service.instead[mint_service.SWAP] = late
    await one.claim(event.id)
    assert found(one, event).state == "claimed" and one._purse.balance_sat == 12
    assert [told.amount_msat for told in one.claimed()] == [12_000] == [told.amount_msat for told in there.claimed()]


@pytest.mark.parametrize("is_restored", [False, True])
async def test_a_mint_whose_signatures_are_none_is_asked_again_for_the_same_ecash(shop, is_restored):
    """It may have taken the money: so the swap stays on disk."""
    clock = [time.time()]
    one = shop(now_s=lambda: clock[0])
    event = await entered(shop, one)

    def forged(do):
        said = do()[1]
        said["signatures"] = [{**row, "dleq": {"e": "11" * 32, "s": "22" * 32}} for row in said["signatures"]]
        return 200, said

    if is_restored:
        shop.service.instead |= {mint_service.SWAP: lambda do: do() and REFUSAL, mint_service.RESTORE: forged}
    else:
        shop.service.instead[mint_service.SWAP] = forged
    await one.claim(event.id)
    assert found(one, event).state == "waiting" and "signed by another key" in found(one, event).reason
    assert len(one._purse.operations("claim", event.id)) == 1 and one._purse.balance_sat == 0
    clock[0] = found(one, event).from_s
    await one.claim_waiting()
    assert found(one, event).state == "claimed" and one._purse.balance_sat == 12


async def test_a_mint_that_refuses_a_swap_again_and_again_is_asked_later_each_time_and_then_no_more(shop):
    clock = [time.time()]
    one = shop(now_s=lambda: clock[0])
    event = await entered(shop, one)
    pauses_s = []
    while found(one, event).state == "waiting":
        shop.service.instead[mint_service.SWAP] = lambda do: REFUSAL
        await one.claim(event.id)
        assert one._purse.operations("claim") == [] and one._purse.balance_sat == 0
        pauses_s.append(found(one, event).from_s - int(clock[0]))
        clock[0] = found(one, event).from_s
    assert found(one, event).state == "refused" and "swaps are off" in found(one, event).reason
    assert len(pauses_s) == claims_.MAX_TRIES + 1
    assert pauses_s[1:-1] == [2 * pause_s for pause_s in pauses_s[:-2]]


async def test_a_nutzap_that_is_here_already_or_not_at_all_is_claimed_nowhere(shop):
    one = shop()
    event = await entered(shop, one)
    await one.claim(event.id)
    asked = len(shop.service.asked)
    for id_ in (event.id, "ab" * 32):
        await one.claim(id_)
    assert one.enter(event, is_known=CUSTOMER.public.__eq__) is None
    assert len(shop.service.asked) == asked and one._purse.balance_sat == 12


async def test_a_nutzap_at_a_mint_that_has_changed_its_fee_is_claimed_and_not_lost(shop):
    """A provider asked for the fee once in its life, and gave up each later nutzap after ten refusals."""
    clock = [time.time()]
    one = shop(now_s=lambda: clock[0])
    first = await entered(shop, one)
    await one.claim(first.id)
    later = await entered(shop, one, 12)
    shop.service.fee_ppk = 400
    await one.claim(later.id)
    while found(one, later).state == "waiting":
        clock[0] = found(one, later).from_s
        await one.claim(later.id)
    assert found(one, later).state == "claimed" and one._purse.balance_sat == 12 + 11
