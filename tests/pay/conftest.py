"""One simulated Lightning network for all of the room's tests, in its own process; nodes with play money on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest

from nodewire.pay.sim_wallet import SimWallet

BASE_FEE_MSAT = 10
FEE_PPM = 1_000


@pytest.fixture(scope="session")
def simnet_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    db = tmp_path_factory.mktemp("simnet") / "simnet.db"
    with run_simnet(db, base_fee_msat=BASE_FEE_MSAT, fee_ppm=FEE_PPM) as url:
        yield url


class run_simnet:
    """The real process, started as an operator starts it; ends with the block."""

    def __init__(self, db: Path, *, base_fee_msat: int = 0, fee_ppm: int = 0, faucet_msat: int = 10**12) -> None:
        self._command = [sys.executable, "-m", "nodewire.pay.simnet", "--port", "0", "--db", str(db)]
        self._command += ["--fee-ppm", str(fee_ppm), "--base-fee-msat", str(base_fee_msat)]
        self._command += ["--faucet-msat", str(faucet_msat)]

    def __enter__(self) -> str:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        return str(orjson.loads(self.process.stdout.readline())["url"])

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
async def open_wallet(simnet_url: str) -> AsyncIterator[Callable[..., object]]:
    """`await open_wallet(msat)`: a wallet on a new account."""
    async with AsyncExitStack() as stack:

        async def open_one(opening_msat: int = 0) -> SimWallet:
            wallet, _ = await SimWallet.open_account(simnet_url, "test", opening_msat)
            stack.push_async_callback(wallet.close)
            return wallet

        yield open_one
