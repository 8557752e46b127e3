"""Nutshell, a real Cashu mint with its FakeWallet, where NODEWIRE_NUTSHELL names its program, in its own venv."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from nodewire.pay.wallets.cashu import CashuWallet

PROGRAM = os.environ.get("NODEWIRE_NUTSHELL", "")
OLD_PROGRAM = os.environ.get("NODEWIRE_NUTSHELL_OLD", "")
"""Nutshell 0.20, whose SIG_ALL leaves amounts open."""
needs_mint = pytest.mark.skipif(not PROGRAM, reason="NODEWIRE_NUTSHELL names no mint; `make bonds` sets it up")
START_S = 120.0


class run_mint:  # noqa: N801 - a block is opened with it, as with a function
    """One mint on loopback with new data in `folder`; what it is paid from outside is play money."""

    def __init__(self, folder: Path, program: str = PROGRAM, port: int = 0, **settings: str) -> None:
        with socket.create_server(("127.0.0.1", port)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder, self._program, self._settings = folder, program, settings

    def __enter__(self) -> run_mint:
        settings = {
            "MINT_PRIVATE_KEY": "a mint of a test",
            "MINT_BACKEND_BOLT11_SAT": "FakeWallet",
            "MINT_LISTEN_HOST": "127.0.0.1",
            "MINT_LISTEN_PORT": str(self.port),
            "MINT_DATABASE": str(self._folder / "mint"),
            "MINT_INPUT_FEE_PPK": "0",
            "MINT_RATE_LIMIT": "FALSE",
            "FAKEWALLET_BRR": "TRUE",
            "FAKEWALLET_DELAY_INCOMING_PAYMENT": "0",
            "FAKEWALLET_DELAY_OUTGOING_PAYMENT": "0",
            "TOR": "FALSE",
            "DEBUG": "FALSE",
            "CASHU_DIR": str(self._folder),
            "HOME": str(self._folder),
        }
        self._log = (self._folder / "log").open("ab")
        self.process = subprocess.Popen(
            [self._program],
            cwd=self._folder,
            env=os.environ | settings | self._settings,
            stdout=self._log,
            stderr=self._log,
        )
        until = time.monotonic() + START_S
        while True:
            assert self.process.poll() is None and time.monotonic() < until, (self._folder / "log").read_text()
            try:
                urllib.request.urlopen(f"{self.url}/v1/keys", timeout=5).close()
                return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.3)

    def pay(self, quote: str) -> None:
        """Let an invoice of the mint be paid from outside: its FakeWallet has no outside."""
        with contextlib.closing(sqlite3.connect(self._folder / "mint" / "mint.sqlite3", timeout=10)) as db, db:
            assert db.execute("UPDATE mint_quotes SET state = 'PAID' WHERE quote = ?", (quote,)).rowcount == 1

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


async def fund(mint: run_mint, wallet: CashuWallet, amount_msat: int) -> None:
    """Pay so much into the wallet."""
    if amount_msat:
        made = await wallet.invoice(amount_msat, description="play money", expiry_s=600)
        mint.pay(wallet._purse.invoice(made.payment_hash).quote)
        assert (await wallet.lookup(made.payment_hash, "in")).state == "settled"
