"""One simulated Lightning network for all of the room's tests, in its own process; nodes with play money on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from simnet.wallet import SimWallet
from tests.pay.simnet_process import run_simnet

BASE_FEE_MSAT = 10
FEE_PPM = 1_000


@pytest.fixture(scope="session")
def simnet_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    db = tmp_path_factory.mktemp("simnet") / "simnet.db"
    with run_simnet(db, base_fee_msat=BASE_FEE_MSAT, fee_ppm=FEE_PPM) as url:
        yield url


@pytest.fixture
async def open_wallet(simnet_url: str) -> AsyncIterator[Callable[..., object]]:
    """`await open_wallet(msat)`: a wallet on a new account."""
    async with AsyncExitStack() as stack:

        async def open_one(opening_msat: int = 0) -> SimWallet:
            wallet, _ = await SimWallet.open_account(simnet_url, "test", opening_msat)
            stack.push_async_callback(wallet.close)
            return wallet

        yield open_one


@pytest.fixture
async def reopen(simnet_url: str) -> AsyncIterator[Callable[..., object]]:
    """`await reopen(wallet)`: the same wallet, as another process opens it."""
    async with AsyncExitStack() as stack:

        async def again(wallet: SimWallet) -> SimWallet:
            other = SimWallet(simnet_url, wallet._token)
            stack.push_async_callback(other.close)
            return other

        yield again
