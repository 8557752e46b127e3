"""One simulated Lightning network for all of the room's tests, in its own process; nodes with play money on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from nodewire.pay.wallets.cashu import CashuWallet
from nodewire.pay.wallets.cln import ClnWallet
from nodewire.pay.wallets.electrum import ElectrumWallet
from nodewire.pay.wallets.lexe import LexeWallet
from nodewire.pay.wallets.lnbits import LnbitsWallet
from nodewire.pay.wallets.lnd import LndWallet
from nodewire.pay.wallets.nwc import Connection, NwcWallet
from nodewire.pay.wallets.phoenixd import PhoenixdWallet
from nodewire.pay.wallets.rest import Access
from relay import Config, serve
from simnet.wallet import SimWallet
from tests.pay.mint_process import PROGRAM, fund, run_mint
from tests.pay.simnet_process import run_simnet
from tests.pay.wallets.services.cln_service import ClnService
from tests.pay.wallets.services.electrum_network import NwcAtElectrum, node_settings
from tests.pay.wallets.services.lexe_node import LexeNode
from tests.pay.wallets.services.lnbits_process import run_lnbits
from tests.pay.wallets.services.lnbits_service import LnbitsService
from tests.pay.wallets.services.lnd_service import LndService
from tests.pay.wallets.services.nwc_service import NwcService
from tests.pay.wallets.services.phoenixd_service import PhoenixdService

BASE_FEE_MSAT = 10
FEE_PPM = 1_000
NODES: dict[str, tuple[Any, Any]] = {
    "lnd": (LndService, LndWallet),
    "cln": (ClnService, ClnWallet),
    "phoenixd": (PhoenixdService, PhoenixdWallet),
}
"""By kind of wallet that is a node of its owner's, the stand-in for its service and the wallet."""


@pytest.fixture(scope="session")
def simnet_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    db = tmp_path_factory.mktemp("simnet") / "simnet.db"
    with run_simnet(db, base_fee_msat=BASE_FEE_MSAT, fee_ppm=FEE_PPM) as url:
        yield url


@pytest.fixture(scope="session")
def sat_simnet_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One where all amounts are whole satoshis, also fees, for services that tell no others."""
    with run_simnet(tmp_path_factory.mktemp("sat_simnet") / "simnet.db", base_fee_msat=1_000) as url:
        yield url


@pytest.fixture
async def open_sat_wallet(sat_simnet_url: str) -> AsyncIterator[Callable[..., object]]:
    async with AsyncExitStack() as stack:

        async def open_one(opening_msat: int = 0) -> SimWallet:
            wallet, _ = await SimWallet.open_account(sat_simnet_url, "test", opening_msat)
            stack.push_async_callback(wallet.close)
            return wallet

        yield open_one


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
async def reopen() -> AsyncIterator[Callable[..., object]]:
    """`await reopen(wallet)`: the same wallet, as another process opens it."""
    async with AsyncExitStack() as stack:

        async def again(wallet: Any) -> Any:
            if isinstance(wallet, SimWallet):
                other: Any = SimWallet(wallet._url, wallet._token)
            elif isinstance(wallet, LnbitsWallet):
                other = LnbitsWallet(wallet._service.url, wallet._key)
            elif isinstance(wallet, LexeWallet):
                other = lexe_wallet(wallet._node)
            elif isinstance(wallet, LndWallet | ClnWallet | PhoenixdWallet):
                other = type(wallet)(wallet._service.url, wallet._service._access)
            elif isinstance(wallet, ElectrumWallet):
                other = ElectrumWallet(wallet._url, wallet._user, wallet._password)
            elif isinstance(wallet, NwcAtElectrum):
                other = NwcAtElectrum(wallet.node)
            elif isinstance(wallet, CashuWallet):
                other = CashuWallet(wallet._mint.url, wallet._file)
            else:
                other = NwcWallet(wallet._to)
            stack.push_async_callback(other.close)
            return other

        yield again


@pytest.fixture
async def relay_url(tmp_path: Path) -> AsyncIterator[str]:
    async with serve(Config(db=tmp_path / "relay.sqlite", port=0)) as running:
        yield running.url


@pytest.fixture(scope="session")
def lnbits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run_lnbits | None]:
    """LNbits itself, where NODEWIRE_LNBITS names its program."""
    program = os.environ.get("NODEWIRE_LNBITS")
    if not program:
        yield None
        return
    with run_lnbits(Path(program), tmp_path_factory.mktemp("lnbits")) as running:
        yield running


def lexe_wallet(node: LexeNode) -> LexeWallet:
    return LexeWallet(node, "bcrt", lambda: node.provision(None))


@pytest.fixture
async def open_node(
    open_wallet: Callable[..., Any], open_sat_wallet: Callable[..., Any]
) -> AsyncIterator[Callable[..., Any]]:
    """`await open_node(kind, msat)`: the stand-in for a node of `NODES` on a new account, and its owner's wallet."""
    async with AsyncExitStack() as stack:

        async def open_one(kind: str, opening_msat: int = 0) -> Any:
            service_class, wallet_class = NODES[kind]
            account = await (open_sat_wallet if kind == "phoenixd" else open_wallet)(opening_msat)
            service = await stack.enter_async_context(service_class(account).serving())
            wallet = wallet_class(service.url, Access(service.secret))
            stack.push_async_callback(wallet.close)
            return service, wallet

        yield open_one


@pytest.fixture
def open_payee(open_kind: Callable[..., Any], open_sat_wallet: Callable[..., Any]) -> Callable[..., Any]:
    """`await open_payee(kind)`: who can be paid by wallets of a kind; of another kind where that one cannot be paid."""

    async def open_one(kind: str) -> Any:
        return await (open_sat_wallet(0) if kind == "lexe" else open_kind(kind, 0))

    return open_one


@pytest.fixture(scope="session")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run_mint | None]:
    """Nutshell, where NODEWIRE_NUTSHELL names its program. It pays invoices of its own alone."""
    if not PROGRAM:
        yield None
        return
    settings = {
        "FAKEWALLET_BRR": "FALSE",
        "FAKEWALLET_PAY_INVOICE_STATE": "FAILED",
        "FAKEWALLET_PAYMENT_STATE": "FAILED",
    }
    with run_mint(tmp_path_factory.mktemp("mint"), **settings) as running:
        yield running


@pytest.fixture
async def open_kind(
    open_wallet: Callable[..., Any],
    open_sat_wallet: Callable[..., Any],
    open_node: Callable[..., Any],
    relay_url: str,
    lnbits: run_lnbits | None,
    mint: run_mint | None,
    tmp_path: Path,
) -> AsyncIterator[Callable[..., Any]]:
    """`await open_kind(kind, msat)`: a wallet of a kind, on a new account.

    Those of the kinds "nwc", "lnbits", "lexe" and of nodes are on the simulated network behind a service of that kind;
    of "lnbits" on LNbits itself where it runs. Services of nodes answer by the recordings of their documented APIs.
    Those of "electrum" and "electrum-nwc" are three nodes with money of their own: C's, A's and B's, in the order in
    which a test opens them. Those of "cashu" are at Nutshell, where it runs.
    """
    nodes = iter("cab")
    async with AsyncExitStack() as stack:

        async def open_one(kind: str, opening_msat: int) -> Any:
            if kind == "lnbits" and lnbits is not None:
                real = LnbitsWallet(lnbits.url, lnbits.open_account(opening_msat // 1_000))
                stack.push_async_callback(real.close)
                return real
            if kind == "cashu":
                if mint is None:
                    pytest.skip("NODEWIRE_NUTSHELL names no mint; `make bonds` sets it up")
                purse = CashuWallet(mint.url, tmp_path / f"purse{len(list(tmp_path.iterdir()))}.db")
                stack.push_async_callback(purse.close)
                await fund(mint, purse, opening_msat)
                return purse
            if kind.startswith("electrum"):
                node = node_settings()[next(nodes)]
                at_node = NwcAtElectrum(node) if kind == "electrum-nwc" else node.wallet()
                stack.push_async_callback(at_node.close)
                return at_node
            if kind in NODES:
                return (await open_node(kind, opening_msat))[1]
            if kind == "lexe":
                wallet: Any = lexe_wallet(LexeNode(await open_sat_wallet(opening_msat)))
                stack.push_async_callback(wallet.close)
                return wallet
            account = await open_wallet(opening_msat)
            if kind == "sim":
                return account
            if kind == "lnbits":
                office = await stack.enter_async_context(LnbitsService(account).serving())
                wallet = LnbitsWallet(office.url, office.admin_key)
            else:
                service = await stack.enter_async_context(NwcService(account, relay_url).serving())
                wallet = NwcWallet(Connection.parse(service.uri))
            stack.push_async_callback(wallet.close)
            return wallet

        yield open_one
