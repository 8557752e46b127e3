"""Nutzaps over a real relay, of a real mint, to a provider's till: the named chunk first, then balance, or a tip."""

from __future__ import annotations

import asyncio
import time

import pytest

from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.till import MAX_QUOTES
from nodewire.pay.nutzaps import claims as claims_
from nodewire.pay.nutzaps.claims import NutzapClaims
from nodewire.pay.nutzaps.desk import NutzapDesk
from nodewire.pay.wallets.cashu import CashuWallet
from relay import Config, serve
from tests.pay import nutzap_market as market
from tests.pay.mint_process import fund, needs_mint, run_mint
from tests.pay.nutzap_market import CUSTOMER, LOCK, PROVIDER, STRANGER, Shop

JOB, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
async def shop(mint, tmp_path):
    async with serve(Config(db=tmp_path / "relay.sqlite", port=0)) as running:
        one = Shop(tmp_path, mint.url if mint is not None else "", running.url)
        yield one
        one.ledger.close()


@pytest.fixture
async def ecash(mint, tmp_path):
    wallet = CashuWallet(mint.url, tmp_path / "customer.purse")
    await fund(mint, wallet, 1_000_000)
    yield wallet
    await wallet.close()


async def until(holds):
    while not holds():
        await asyncio.sleep(0.02)


def now():
    return int(time.time())


@needs_mint
async def test_a_nutzap_settles_the_chunk_that_it_names_and_others_and_the_rest_is_balance(shop, ecash):
    named, older, dear = Key(JOB, PROVIDER.public, 3), Key(JOB, PROVIDER.public, 2), Key(OTHER, PROVIDER.public, 0)
    for key, msat in ((older, 6), (named, 1_500), (dear, 10_000)):
        shop.owe(key, msat)
    event = market.event(await market.locked(ecash, 2), shop.url, created_at=now(), **market.chunk(JOB, 3))
    async with shop.open() as taken:
        await shop.publish(event)
        settled = [await shop.settled.get() for _ in range(2)]
        assert [due.key for due in settled] == [named, older]
        await until(lambda: not taken.claimed())
    ledger, payment_hash = shop.ledger, settled[0].payment_hash
    assert ledger.due(dear).state == "due" and ledger.balance_msat(CUSTOMER.public) == 494
    assert ledger.paid_msat(CUSTOMER.public) == 2_000 and ledger.receipt(payment_hash) == event.id
    assert ledger.unreceipted() == [] and ledger.unbilled.tips_msat() == 0
    # It counts once, also where it is heard of again, and no invoice is in its chunk's way.
    async with shop.open():
        await shop.publish(event)
        invoice = await shop.till.quote(_request(dear, 10_000).to_json(), 10_000)
        assert invoice.amount_msat == 10_000
        await shop.till.quote(_request(named, 10_000).to_json(), 10_000)
    assert ledger.paid_msat(CUSTOMER.public) == 2_000 and MAX_QUOTES > 1


def _request(key, msat):
    return zaps.build_request(CUSTOMER, key, msat, relays=["wss://a.example"], lnurl=None, created_at=now())


@needs_mint
async def test_an_ordinary_nutzap_is_a_customers_deposit_and_a_strangers_tip(shop, ecash):
    shop.owe(Key(JOB, PROVIDER.public, 0), 7_000)
    mine = market.event(await market.locked(ecash, 20), shop.url, created_at=now(), content="ahead")
    theirs = market.event(await market.locked(ecash, 5, STRANGER), shop.url, STRANGER, created_at=now(), content="hi")
    # One for a chunk that another owes is its author's own.
    odd = market.event(
        await market.locked(ecash, 3, STRANGER), shop.url, STRANGER, created_at=now(), **market.chunk(JOB)
    )
    async with shop.open():
        for one in (mine, theirs, odd):
            await shop.publish(one)
        await until(lambda: shop.ledger.unbilled.tips_msat() == 8_000 and shop.ledger.unbilled.deposits_msat())
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 20_000 and shop.ledger.balance_msat(CUSTOMER.public) == 13_000
    assert {(tip.sender, tip.comment) for tip in shop.ledger.unbilled.tips(5)} == {
        (STRANGER.public, "hi"),
        (STRANGER.public, ""),
    }
    assert shop.ledger.unbilled.unreceipted() == [] and shop.ledger.balance_msat(STRANGER.public) == 0


@needs_mint
async def test_a_nutzap_of_an_ordinary_client_settles_nothing_and_is_a_tip_in_the_end(shop, ecash):
    shop.owe(Key(JOB, PROVIDER.public, 0), 7_000)
    event = market.event(await market.locked(ecash, 20, bound=False), shop.url, created_at=now(), **market.chunk(JOB))
    await shop.publish(event)
    async with shop.open() as taken:
        await until(lambda: taken._purse.nutzaps.find(event.id))
        assert taken._purse.nutzaps.find(event.id).state == "waiting"
    async with shop.open(lambda: time.time() + claims_.UNBOUND_S + 1):
        await until(lambda: shop.ledger.unbilled.tips_msat())
    assert shop.ledger.unbilled.tips_msat() == 20_000 and shop.ledger.balance_msat(CUSTOMER.public) == 0
    assert shop.ledger.due(Key(JOB, PROVIDER.public, 0)).state == "due"


@needs_mint
async def test_what_came_while_the_provider_was_down_is_claimed_and_a_crash_before_the_booking_books_it_once(
    shop, ecash, monkeypatch
):
    key = Key(JOB, PROVIDER.public, 0)
    shop.owe(key, 7_000)
    await shop.publish(market.event(await market.locked(ecash, 9), shop.url, created_at=now(), **market.chunk(JOB)))
    real, died = NutzapClaims.booked, asyncio.Event()

    def dies(self, id_):
        died.set()
        raise SystemError  # its till has it, and its purse does not know

    monkeypatch.setattr(NutzapClaims, "booked", dies)
    with pytest.raises(BaseExceptionGroup):
        await _run_until(shop, died)
    monkeypatch.setattr(NutzapClaims, "booked", real)
    assert shop.ledger.due(key).state == "settled"
    async with shop.open() as taken:
        await until(lambda: not taken.claimed())
    assert shop.ledger.balance_msat(CUSTOMER.public) == 2_000 and shop.ledger.paid_msat(CUSTOMER.public) == 9_000


async def _run_until(shop, died):
    taken = market.claims(shop.folder, shop.url)
    info = nip61.build_info(PROVIDER, relays=[], mints=[(shop.url, "sat")], pubkey=LOCK.public, created_at=now())
    async with Pool([shop.relay], PROVIDER) as pool:
        try:
            await NutzapDesk(info, pool, shop.till, shop.ledger, [taken]).run()
        finally:
            assert died.is_set()
            await taken.close()


@needs_mint
async def test_a_mint_that_is_away_is_asked_again_until_it_is_back(shop, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    key = Key(JOB, PROVIDER.public, 0)
    shop.owe(key, 7_000)
    with run_mint(folder) as other:
        wallet = CashuWallet(other.url, tmp_path / "other.purse")
        await fund(other, wallet, 64_000)
        shop.url, port = other.url, other.port
        event = market.event(await market.locked(wallet, 9), other.url, created_at=now(), **market.chunk(JOB))
        await wallet.close()
    async with shop.open() as taken:
        await shop.publish(event)
        await until(lambda: taken._purse.nutzaps.find(event.id))
        with run_mint(folder, port=port):
            assert (await shop.settled.get()).key == key
    assert shop.ledger.balance_msat(CUSTOMER.public) == 2_000


@needs_mint
async def test_the_relays_have_what_a_provider_takes(shop):
    async with shop.open(), Pool([shop.relay], CUSTOMER) as pool:
        found = []
        while not found:
            found = await pool.fetch([Filter(kinds={nip61.INFO}, authors={PROVIDER.public})])
    info = nip61.parse_info(found[0])
    assert (info.takes(shop.url), info.pubkey, info.relays) == (True, LOCK.public, (shop.relay,))
