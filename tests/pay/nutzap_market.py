"""Nutzaps of tests: made by hand, as any Nostr client makes them, from ecash of a real mint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip61 import NutzapInfo
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import Till
from nodewire.pay.ecash.mint import Mint
from nodewire.pay.ecash.proofs import BlankOutput, Lock, Proof, split
from nodewire.pay.ecash.purse import Purse
from nodewire.pay.nutzaps import authorship
from nodewire.pay.nutzaps.claims import NutzapClaims
from nodewire.pay.nutzaps.desk import NutzapDesk
from nodewire.pay.wallets.cashu import CashuWallet
from tests.pay.accounts.test_till import Node, publish_nothing

PROVIDER, CUSTOMER, STRANGER = Keys(b"\x02" * 32), Keys(b"\x01" * 32), Keys(b"\x03" * 32)
LOCK = Keys(b"\x07" * 32)


@dataclass(frozen=True)
class Ecash:
    """Proofs that are locked to the provider, and the salt of their nonces; None where these are by chance."""

    proofs: list[Proof]
    salt: str | None

    def first(self) -> Ecash:
        return Ecash(self.proofs[:1], self.salt)

    def texts(self) -> list[str]:
        return [orjson.dumps(one.as_dict()).decode() for one in self.proofs]


def info(*mints: str, lock: Keys = LOCK) -> NutzapInfo:
    """What the provider takes."""
    event = nip61.build_info(
        PROVIDER,
        relays=["wss://a.example"],
        mints=[(url, "sat") for url in mints],
        pubkey=lock.public,
        created_at=1,
    )
    return nip61.parse_info(event)


def claims(folder: Path, url: str, **options: Any) -> NutzapClaims:
    """Those of the provider at one mint, as a new process opens them."""
    return NutzapClaims(info(url), Mint(url), Purse(folder / "nutzaps.purse"), LOCK, **options)


def secrets(amounts: list[int], keyset: str, sender: Keys, *, salt: str | None, lock: Keys = LOCK) -> list[BlankOutput]:
    """Outputs that only the owner of `lock` can spend."""
    one = Lock((lock.public,), is_sig_all=False)
    nonces = [authorship.nonce(sender.public, salt, n) if salt else os.urandom(32).hex() for n in range(len(amounts))]
    return [
        BlankOutput(amount, keyset, one.secret(nonce), os.urandom(32))
        for amount, nonce in zip(amounts, nonces, strict=True)
    ]


async def locked(wallet: CashuWallet, amount_sat: int, sender: Keys = CUSTOMER, *, bound: bool = True) -> Ecash:
    """So much ecash out of a wallet, locked to the provider's key."""
    salt = os.urandom(32).hex() if bound else None
    mint, purse = wallet._mint, wallet._purse
    keyset = await mint.active()
    chosen, left = [], amount_sat
    for one in purse.free():
        if left > 0:
            chosen.append(one)
            left -= one.amount_sat
    rest = split(sum(one.amount_sat for one in chosen) - amount_sat)
    change = [BlankOutput(one, keyset.id, os.urandom(32).hex(), os.urandom(32)) for one in rest]
    mine = secrets(split(amount_sat), keyset.id, sender, salt=salt)
    came = await mint.swap([one.as_input() for one in chosen], [*mine, *change])
    with purse.transaction():
        number = purse.begin("swap", chosen, change)
        purse.end(number, came[len(mine) :])
    return Ecash(came[: len(mine)], salt)


def event(
    ecash: Ecash,
    url: str,
    sender: Keys = CUSTOMER,
    *,
    created_at: int = 1,
    texts: list[str] | None = None,
    **options: Any,
) -> Event:
    """A nutzap to the provider. `texts` are its proofs as they stand, in place of those of `ecash`."""
    told = texts if texts is not None else ecash.texts()
    others = [*options.pop("others", []), *([["salt", ecash.salt]] if ecash.salt is not None else [])]
    return nip61.build(sender, info(url), url, told, created_at=created_at, others=others, **options)


def chunk(job: str, number: int = 0) -> dict[str, Any]:
    """The tags of a nutzap for a chunk of a job."""
    return {"event": job, "others": [["chunk", str(number)], ["attempt", "0"]]}


class Shop:
    """A provider that takes nutzaps, and the relay between it and its customers."""

    def __init__(self, folder, url, relay):
        self.folder, self.url, self.relay = folder, url, relay
        self.ledger = Ledger(folder / "ledger.db")
        self.till = Till(PROVIDER, Node(), self.ledger, publish_nothing)
        self.settled = asyncio.Queue()

    def owe(self, key, msat, customer=CUSTOMER):
        self.ledger.owe(Due(key, customer.public, msat, int(time.time()) + 30))

    @contextlib.asynccontextmanager
    async def open(self, now_s=time.time):
        """Hear nutzaps meanwhile."""
        taken = NutzapClaims(info(self.url), Mint(self.url), Purse(self.folder / "in.purse"), LOCK, now_s)
        taking = nip61.build_info(
            PROVIDER, relays=[self.relay], mints=[(self.url, "sat")], pubkey=LOCK.public, created_at=int(time.time())
        )
        async with Pool([self.relay], PROVIDER) as pool:
            desk = NutzapDesk(taking, pool, self.till, self.ledger, [taken], now_s)
            running = asyncio.create_task(desk.run(self.settled.put_nowait))
            try:
                async with asyncio.timeout(60):
                    yield taken
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await taken.close()

    async def publish(self, event):
        async with Pool([self.relay], CUSTOMER) as pool:
            await pool.publish(event)
