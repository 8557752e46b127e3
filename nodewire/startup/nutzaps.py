"""Opens the purses that a provider's nutzaps go to, and the desk that claims them."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING

from yarl import URL

from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip61
from nodewire.pay.ecash.mint import UNIT, Mint
from nodewire.pay.ecash.purse import Purse
from nodewire.pay.nutzaps.claims import NutzapClaims
from nodewire.pay.nutzaps.desk import NutzapDesk

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from nodewire.config import ProviderConfig
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.accounts.till import Till

FOLDER = "nutzaps"
KEY = "lock.nsec"


def open_nutzaps(
    stack: AsyncExitStack, config: ProviderConfig, keys: Keys, pool: Pool, till: Till, ledger: Ledger
) -> NutzapDesk | None:
    """The desk of a provider that takes nutzaps; None of one that takes none. No mint is asked yet.

    Raises:
        BadConfig: a purse or the key that locks nutzaps cannot be opened.

    """
    if not config.nutzap.mints:
        return None
    folder = config.state / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = Keys.from_file(folder / KEY)
    mints = {mint.url: mint for mint in map(Mint, config.nutzap.mints)}
    info = nip61.build_info(
        keys,
        relays=config.relays,
        mints=[(url, UNIT) for url in mints],
        pubkey=lock.public,
        created_at=int(time.time()),
    )
    takes = nip61.parse_info(info)
    claims = [NutzapClaims(takes, mint, _purse(folder, url), lock) for url, mint in mints.items()]
    for one in claims:
        stack.push_async_callback(one.close)
    return NutzapDesk(info, pool, till, ledger, claims)


def _purse(folder: Path, url: str) -> Purse:
    """The purse of a mint, which is that of a wallet of kind "cashu" whose `token_file` is beside it."""
    host, number = URL(url).host or "", hashlib.sha256(url.encode()).hexdigest()[:8]
    token = folder / f"{host}-{number}.token"
    if not token.exists():
        new = token.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"purse:{os.urandom(16).hex()}\n")
        new.replace(token)
    purse = Purse(token.with_suffix(".purse"))
    purse.named("id", token.read_text().strip().removeprefix("purse:"))
    purse.named("mint", url)
    return purse
