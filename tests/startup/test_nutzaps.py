"""The purses of a provider's nutzaps: one for each mint, and each a wallet that its owner can pay from."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from types import SimpleNamespace

from nodewire.nostr.nips import nip61
from nodewire.pay.wallets.cashu import CashuWallet
from nodewire.startup.nutzaps import open_nutzaps
from tests.pay import nutzap_market as market
from tests.pay.mint_process import fund, needs_mint, run_mint
from tests.pay.nutzap_market import LOCK, PROVIDER


def config(state, *mints):
    return SimpleNamespace(state=state, nutzap=SimpleNamespace(mints=mints), relays=("wss://a.example",))


async def test_a_provider_without_mints_takes_no_nutzaps(tmp_path):
    async with AsyncExitStack() as stack:
        assert open_nutzaps(stack, config(tmp_path), PROVIDER, None, None, None) is None
    assert not list(tmp_path.iterdir())


async def test_each_mint_has_a_purse_and_what_is_taken_stays_the_same_over_restarts(tmp_path):
    lists = []
    for _ in range(2):
        async with AsyncExitStack() as stack:
            at = config(tmp_path, "https://a.example/", "https://b.example")
            desk = open_nutzaps(stack, at, PROVIDER, None, None, None)
            ids = [claims.id for claims in desk._more]
            lists.append((nip61.parse_info(desk._info), ids))
    assert lists[0] == lists[1] and len(set(lists[0][1])) == 2
    info = lists[0][0]
    assert info.pubkey != PROVIDER.public and info.relays == ("wss://a.example",)
    assert info.takes("https://a.example") and info.takes("https://b.example") and not info.takes("https://c.example")
    secret = [one for one in (tmp_path / "nutzaps").iterdir() if not one.name.endswith(("-wal", "-shm"))]
    assert len(secret) == 5 and all(one.stat().st_mode & 0o077 == 0 for one in secret)


@needs_mint
async def test_what_came_can_be_spent_by_a_wallet_that_names_the_purse(tmp_path):
    folder = tmp_path / "state" / "nutzaps"
    folder.mkdir(parents=True)
    key = folder / "lock.nsec"
    key.touch(mode=0o600)
    key.write_text(LOCK.nsec + "\n")
    with run_mint(tmp_path, FAKEWALLET_BRR="FALSE") as mint:
        payer = CashuWallet(mint.url, tmp_path / "payer.purse")
        await fund(mint, payer, 100_000)
        event = market.event(await market.locked(payer, 50), mint.url, created_at=int(time.time()))
        async with AsyncExitStack() as stack:
            desk = open_nutzaps(stack, config(tmp_path / "state", mint.url), PROVIDER, None, None, None)
            (claims,) = desk._more
            claims.enter(event, is_known=lambda _: False)
            await claims.claim(event.id)
            (token,) = folder.glob("*.token")
            wallet = CashuWallet.from_file(mint.url, token)
            stack.push_async_callback(wallet.close)
            assert await wallet.balance_msat() == 50_000 and (await wallet.info()).id == claims.id
            invoice = await payer.invoice(30_000, description="out", expiry_s=600)
            paid = await wallet.pay(invoice.bolt11, max_fee_msat=10_000)
            assert paid.state == "settled" and await payer.balance_msat() == 80_000
        await payer.close()
