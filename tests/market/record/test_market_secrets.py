"""No key, token, connection string or preimage of an unpaid invoice leaves the files that are for them.

A market of its own runs at DEBUG level through payments over two kinds of wallet, payments that fail, and errors. Then
all logs, all output of commands, everything on the relay and every other file of everybody's state is searched.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from nodewire.errors import NodewireError
from nodewire.gateway.keys import sha256_of
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.wallets.nwc import Connection
from simnet.wallet import SimWallet
from tests.market.market_process import GUESTS, NODEWIRE, STALLS, RunningMarket
from tests.market.secrets_of_a_market import Needles, files, preimages
from tests.pay.wallets.services.nwc_service import NwcService

PROMPT = "the cat sat on the mat"
API_KEY = "sk-5ec4e7-of-the-gateway"
WRONG_TOKEN = "5ec4e7" * 10
WRONG_STRING = f"nostr+walletconnect://{'5ec4' * 16}?relay=ws://127.0.0.1:1&secret={'7e1' * 20}"


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMarket]:
    """One for this file alone: its daemons log all that they can."""
    running = RunningMarket(tmp_path_factory.mktemp("market"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NODEWIRE_LOG", "debug")
        try:
            running.start()
            yield running
        finally:
            running.stop()


@pytest.fixture
async def nwc(market: RunningMarket) -> AsyncIterator[NwcService]:
    """A wallet over Nostr Wallet Connect whose requests go over the market's own relay."""
    account, _ = await SimWallet.open_account(market.simnet, "behind nwc", 10_000_000)
    async with NwcService(account, market.relay).serving() as service:
        yield service
    await account.close()


class Said:
    """What commands and errors of this process have said."""

    def __init__(self) -> None:
        self.places: dict[str, bytes] = {}

    async def command(
        self, market: RunningMarket, *command: str, typed: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        def run() -> subprocess.CompletedProcess[bytes]:
            return subprocess.run([*NODEWIRE, *command], input=typed.encode(), capture_output=True, timeout=300)

        done = await asyncio.to_thread(run)
        self.places[f"output of {' '.join(command[:2])} {len(self.places)}"] = done.stdout + done.stderr
        return done

    def error(self, error: BaseException) -> None:
        one: BaseException | None = error
        while one is not None:
            self.places[f"error {len(self.places)}"] = f"{one!s} {one!r} {getattr(one, 'as_dict', dict)()}".encode()
            one = one.__cause__ or one.__context__


async def paid_by_sim(market: RunningMarket) -> None:
    async with market.customer("sim") as customer:
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=20):
            pass
        assert customer.last["spent_msat"] > 0


async def paid_over_nwc(market: RunningMarket, service: NwcService, said: Said) -> None:
    """`wallet connect` writes the string where it belongs; a purchase is paid by it."""
    config = await market.customer_config("nwc")
    done = await said.command(
        market, "wallet", "connect", "-", "--config", str(config), "--yes", typed=service.uri + "\n"
    )
    assert done.returncode == 0, done.stderr
    async with market.customer("nwc") as customer:
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=20):
            pass
        assert customer.last["spent_msat"] > 0


async def paid_at_the_gateway(market: RunningMarket) -> None:
    config = await market.customer_config("desk")
    lines = ['customer = "role.toml"', 'state = "gateway"', 'listen = "127.0.0.1:0"', "[[models]]", 'name = "coder"']
    lines += [f"manifest = {json.dumps(market.decoder['address'])}", "[[keys]]", 'name = "one"']
    (config.parent / "gateway.toml").write_text("\n".join([*lines, f'sha256 = "{sha256_of(API_KEY)}"']) + "\n")
    market.spawn("desk", "gateway", "--config", str(config.parent / "gateway.toml"))
    ready = await asyncio.to_thread(market.ready, "desk")
    headers, body = {"Authorization": f"Bearer {API_KEY}"}, {"model": "coder", "prompt": PROMPT, "max_tokens": 5}
    try:
        async with aiohttp.ClientSession(f"{ready['url']}/", headers=headers) as client:
            async with client.post("completions", json=body) as response:
                usage = (await response.json())["usage"]
            assert response.status == 200 and usage["cost_msat"] > 0
            assert usage["cost_sat"] == f"{usage['cost_msat'] / 1000:.3f}"
            async with client.post("completions", json={"model": API_KEY}) as response:  # an error path
                assert response.status >= 400
    finally:
        await asyncio.to_thread(market.stop_one, "desk")


async def failing(market: RunningMarket, service: NwcService, said: Said) -> None:
    """No money, a token that is wrong, a string that is, a wallet that is gone in mid-payment."""
    config = await market.customer_config("poor", sats=0)
    generate = ("generate", PROMPT, "--model", market.decoder["address"], "--config")
    done = await said.command(market, *generate, str(config))
    assert done.returncode == 1 and b"payment-failed" in done.stderr
    wrong = await market.customer_config("wrong")
    (wrong.parent / "wallet.token").write_text(WRONG_TOKEN)
    assert (await said.command(market, *generate, str(wrong))).returncode == 1
    assert (await said.command(market, "wallet", "test", "--config", str(wrong))).returncode == 1
    for arguments, typed in (((WRONG_STRING,), ""), (("-",), WRONG_STRING + "\n"), (("-",), WRONG_TOKEN + "\n")):
        done = await said.command(market, "wallet", "connect", *arguments, "--config", str(wrong), "--yes", typed=typed)
        assert done.returncode == 1 and b"bad-input" in done.stderr
    await said.command(market, "doctor", "--config", str(wrong))
    service.drops = ["pay_invoice"] * 3
    try:
        async with market.customer("nwc") as customer:
            async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=2):
                pass
    except NodewireError as error:
        said.error(error)


async def unpaid(market: RunningMarket, said: Said) -> list[str]:
    """Payment hashes of invoices that stay unpaid: one of `wallet receive`, one of a provider's wallet."""
    hashes = []
    for name in ("sim", "ada"):
        config = str(market.config_of(name))
        command = ("wallet", "receive", "5sat", "--no-wait", "--json", "--config", config)
        done = await said.command(market, *command)
        assert done.returncode == 0, done.stderr
        hashes.append(json.loads(done.stdout)["payment_hash"])
        history = await said.command(market, "wallet", "history", "--json", "--config", config)
        assert {one["state"] for one in json.loads(history.stdout)["transfers"]} >= {"open", "settled"}
    return hashes


def secrets_of(market: RunningMarket, service: NwcService) -> Needles:
    """All that is known of everybody, by where it was read."""
    needles = Needles()
    for name in ("holder", "author"):
        needles.add_key(f"{name}'s key", Keys.from_file(market.folder / f"{name}.nsec"))
    for name in (*STALLS, *GUESTS, "sim", "nwc", "desk", "poor"):
        folder = market.folder / name
        if (folder / "key.nsec").exists():
            needles.add_key(f"{name}'s key", Keys.from_file(folder / "key.nsec"))
        needles.add(f"{name}'s token", (folder / "wallet.token").read_text().strip())
    for seat in range(1, 5):
        for one in ("key", "share"):
            lines = (market.folder / "committee" / f"oracle-{seat}" / one).read_text().split()
            needles.add(f"oracle {seat}'s {one}", *[line for line in lines if len(line) >= 32])
    string = Connection.parse(service.uri)
    needles.add("the connection string", service.uri)
    needles.add_key("the connection's key", string.keys)
    needles.add_key("the wallet service's key", service.keys)
    needles.add("the account behind it", service.wallet._token)
    needles.add("an API key", API_KEY)
    needles.add("a token that was wrong", WRONG_TOKEN)
    needles.add("a string that was wrong", WRONG_STRING, "7e1" * 20)
    return needles


async def test_no_secret_is_in_a_log_an_event_an_error_or_anybodys_state(market, nwc, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    said = Said()
    await paid_by_sim(market)
    await paid_over_nwc(market, nwc, said)
    await paid_at_the_gateway(market)
    await failing(market, nwc, said)
    hashes = await unpaid(market, said)
    needles = secrets_of(market, nwc)
    found = preimages(market.folder / "simnet.db", hashes)
    assert found.keys() == set(hashes)
    for number, preimage in enumerate(found.values()):
        needles.add(f"preimage {number}", preimage)

    async with market.pool(nwc.keys) as pool:  # who may read more than strangers
        events = [event.to_json().encode() for event in await pool.fetch_all([Filter()])]
    logs = {path.name: path.read_bytes() for path in market.folder.glob("*.log")}
    assert {"relay.log", "ada.log", "oracle-1.log", "desk.log", "simnet.log"} <= logs.keys()
    # Of the services that stand in for others' software only the test's own process is not searched.
    own = "\n".join(f"{one.name} {one.getMessage()} {one.exc_text or ''}" for one in caplog.records)
    places = {**dict(files(market.folder)), **said.places, "events": b"\n".join(events), "own log": own.encode()}
    assert len(events) > 100 and len(own) > 10_000 and {"sim/state/ledger.db", "relay.db"} <= places.keys()
    assert needles.within(places) == []

    # It would have been found: each secret, planted where it must not be, in each of the kinds of places.
    for name in needles.forms:
        for form in needles.forms[name]:
            planted = places | {"ada.log": places["ada.log"] + form + b"\n"}
            assert f"{name} in ada.log" in needles.within({"ada.log": planted["ada.log"]})
    key = Keys.from_file(market.folder / "ada" / "key.nsec")
    (market.folder / "ada" / "state" / "leak.json").write_text(json.dumps({"key": key.secret.hex()}))
    try:
        assert needles.within(dict(files(market.folder))) == ["ada's key in ada/state/leak.json"]
    finally:
        (market.folder / "ada" / "state" / "leak.json").unlink()
