"""`nodewire wallet connect`: what a role's file says after it, what is asked first, and what never is overwritten."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import tomllib

import pytest
from typer.testing import CliRunner

from nodewire.cli.market import wallet, wallet_connect
from nodewire.cli.market.wallet_connect import recognized
from nodewire.config import load_role
from nodewire.errors import BadConfig, BadInput, LinkLost, NotAllowed
from nodewire.pay.wallets.lnbits import LnbitsWallet
from nodewire.pay.wallets.nwc import NwcWallet
from simnet.wallet import SimWallet
from tests.pay.wallets.services.lnbits_service import LnbitsService
from tests.pay.wallets.services.nwc_service import NwcService

CUSTOMER = """# mine
key = "key.nsec"
state = "state"
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
committee = "38841:{author}:c"
"""
PROVIDER = (
    CUSTOMER
    + """specialize = "auto"
"""
)
OLD = """
[wallet]   # the one before
# kept
kind = "lnbits"
url = "https://old.example"
token_file = "old.key"

[whom]
driver = "local"
"""


@pytest.fixture
def role(tmp_path):
    """`role(text)` -> a role's file."""

    def written(text=CUSTOMER):
        path = tmp_path / "role.toml"
        path.write_text(text.replace("{author}", "ab" * 32))
        return path

    return written


@pytest.fixture
async def nwc(open_wallet, relay_url):
    async with NwcService(await open_wallet(50_000), relay_url).serving() as service:
        yield service


@pytest.fixture
async def lnbits(open_wallet):
    async with LnbitsService(await open_wallet(50_000)).serving() as service:
        yield service


async def connect(*arguments, typed=""):
    """The command, beside what serves it."""
    command = ["connect", *map(str, arguments)]
    return await asyncio.to_thread(lambda: CliRunner().invoke(wallet.app, command, input=typed))


async def test_a_connection_string_becomes_a_wallet_that_the_role_can_pay_from(role, nwc, tmp_path):
    path = role()
    done = await connect(nwc.uri, "--config", path)
    assert done.exit_code == 0, (done.output, done.exception)
    found = load_role(path).wallet
    assert (found.kind, found.network, found.url) == ("nwc", "bcrt", nwc.relay)
    assert found.token_file == tmp_path / "wallet.nwc" and found.token_file.read_text().strip() == nwc.uri
    assert stat.S_IMODE(found.token_file.stat().st_mode) == 0o600
    assert path.read_text().startswith(role().read_text().splitlines()[0])
    assert nwc.client.secret.hex() not in done.output + path.read_text()
    opened = NwcWallet.from_file(found.url, found.token_file)
    try:
        assert await opened.balance_msat() == 50_000
    finally:
        await opened.close()


@pytest.mark.parametrize(("kind", "whole"), [("lnd", False), ("lnbits", True)])
def test_certificates_after_a_secret_on_standard_input_are_kept(monkeypatch, kind, whole):
    typed = "5ec4e7\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert wallet_connect._secret(kind, whole=whole) == typed.strip()


def test_what_is_answered_after_a_secret_is_no_part_of_it(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("5ec4e7\ny\n"))
    assert wallet_connect._secret("lnbits", whole=False) == "5ec4e7"


async def test_a_secret_among_the_arguments_is_not_shown(role):
    done = await connect("https://lnbits.example", "5ec4e7", "--config", role())
    assert isinstance(done.exception, BadInput) and "5ec4e7" not in str(done.exception) + done.output


async def test_a_file_that_has_the_secret_already_is_named(role, lnbits, tmp_path):
    file = tmp_path / "mine.key"
    file.write_text(lnbits.admin_key + "\n")
    done = await connect(lnbits.url, "--config", role(), "--token-file", file)
    assert done.exit_code == 0, (done.output, done.exception)
    assert load_role(tmp_path / "role.toml").wallet.token_file == file
    assert file.read_text() == lnbits.admin_key + "\n"


@pytest.mark.parametrize(
    ("field", "secret"),
    [
        ("token_file", f"nostr+walletconnect://{'ab' * 32}?relay=wss://relay.example&secret={'5e' * 32}"),
        ("token_file", "5e" * 16),
        ("key", "nsec1" + "q" * 58),
    ],
)
def test_a_secret_in_the_place_of_its_files_name_is_refused_and_not_shown(role, field, secret):
    named = {"key": "key.nsec", "token_file": "wallet.token"} | {field: secret}
    text = CUSTOMER.replace("key.nsec", named["key"])
    path = role(f'{text}\n[wallet]\nurl = "http://127.0.0.1:1"\ntoken_file = "{named["token_file"]}"\n')
    with pytest.raises(BadConfig, match="it is a secret or a URL") as refused:
        load_role(path)
    assert secret not in str(refused.value) and secret[-20:] not in str(refused.value)


@pytest.mark.parametrize("kind", ["lnbits", "phoenixd", "lnd", "cln", "electrum"])
async def test_no_secret_goes_over_plain_http_to_a_public_address(role, kind):
    typed = "user:password\n" if kind == "electrum" else "5ec4e7\n"
    done = await connect("http://8.8.8.8:17555", "--config", role(), "--kind", kind, typed=typed)
    assert isinstance(done.exception, NotAllowed) and "use https" in str(done.exception), done.exception


async def test_a_string_that_is_asked_for_is_in_no_argument(role, nwc):
    path = role()
    done = await connect("-", "--config", path, typed=nwc.uri + "\n")
    assert done.exit_code == 0, (done.output, done.exception)
    assert load_role(path).wallet.kind == "nwc"


async def test_a_service_asks_for_its_key_and_what_its_pages_show_is_left_out_of_the_file(role, lnbits, tmp_path):
    path = role()
    done = await connect(f"{lnbits.url}/wallet?usr=5ec4e7&wal=1", "--config", path, typed=lnbits.admin_key + "\n")
    assert done.exit_code == 0, (done.output, done.exception)
    found = load_role(path).wallet
    assert (found.kind, found.url, found.network) == ("lnbits", lnbits.url, "bcrt")
    assert "5ec4e7" not in path.read_text() and lnbits.admin_key not in path.read_text() + done.output
    opened = LnbitsWallet.from_file(found.url, found.token_file)
    try:
        assert await opened.balance_msat() == 50_000
    finally:
        await opened.close()


async def test_a_kind_that_is_named_is_any_installed_one(role, open_wallet, simnet_url):
    path, token = role(), (await open_wallet(1_000))._token
    done = await connect(simnet_url, "--kind", "sim", "--config", path, "--json", typed=token + "\n")
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert told["id"].startswith("sim:") and told["kind"] == "sim" and told["replaced"] is False
    assert SimWallet.from_file(told["url"], load_role(path).wallet.token_file)._token == token


@pytest.mark.parametrize("answer", ["n", "y"])
async def test_another_wallet_is_replaced_only_by_leave_and_its_secret_stays(role, nwc, tmp_path, answer):
    (tmp_path / "old.key").write_text("old")
    (tmp_path / "wallet.nwc").write_text("an older one")
    path = role(CUSTOMER + OLD)
    before = path.read_text()
    done = await connect(nwc.uri, "--config", path, typed=answer + "\n")
    assert (tmp_path / "old.key").read_text() == "old" and (tmp_path / "wallet.nwc").read_text() == "an older one"
    if answer == "n":
        assert isinstance(done.exception, NotAllowed) and path.read_text() == before
        assert not (tmp_path / "wallet-2.nwc").exists()
        return
    assert done.exit_code == 0, (done.output, done.exception)
    said = tomllib.loads(path.read_text())
    assert said["wallet"] == {"kind": "nwc", "url": nwc.relay, "token_file": "wallet-2.nwc", "network": "bcrt"}
    assert said["whom"] == {"driver": "local"} and "# kept" in path.read_text() and "# mine" in path.read_text()


async def test_in_json_nothing_is_asked(role, nwc):
    path = role(CUSTOMER + OLD)
    done = await connect(nwc.uri, "--config", path, "--json")
    assert isinstance(done.exception, NotAllowed) and "--yes" in str(done.exception)
    assert "old.example" in path.read_text()


async def test_a_wallet_that_cannot_do_what_the_role_needs_is_refused_and_leaves_nothing(role, nwc, tmp_path):
    nwc.methods = [one for one in nwc.methods if one != "pay_invoice"]
    path = role()
    done = await connect(nwc.uri, "--config", path)
    assert isinstance(done.exception, NotAllowed) and done.exception.field == "pay"
    assert "a customer cannot pay from it" in str(done.exception)
    assert "[wallet]" not in path.read_text() and not list(tmp_path.glob("wallet*"))
    provider = role(PROVIDER)  # is paid, and pays nothing
    done = await connect(nwc.uri, "--config", provider)
    assert done.exit_code == 0, (done.output, done.exception)


async def test_a_wallet_of_another_network_or_out_of_reach_leaves_nothing(role, nwc, tmp_path, unused_tcp_port):
    path = role()
    done = await connect(nwc.uri, "--config", path, "--network", "bc")
    assert isinstance(done.exception, BadConfig) and done.exception.field == "wallet.network"
    done = await connect(f"http://127.0.0.1:{unused_tcp_port}", "--config", path, typed="key\n")
    assert isinstance(done.exception, LinkLost)
    assert "[wallet]" not in path.read_text() and not list(tmp_path.glob("wallet*"))


async def test_a_file_that_would_not_be_read_again_is_left_as_it_is(role, nwc, tmp_path):
    path = role('wallet = { kind = "sim", url = "x", token_file = "y" }\n' + CUSTOMER)
    done = await connect(nwc.uri, "--config", path, "--yes")
    assert isinstance(done.exception, BadConfig) and "write [wallet]" in str(done.exception)
    path = role(CUSTOMER.replace('state = "state"\n', ""))
    done = await connect(nwc.uri, "--config", path)
    assert isinstance(done.exception, BadConfig) and done.exception.field == f"{path}: state"
    assert not list(tmp_path.glob("wallet*"))
    path = role('seat = "seat"\n' + CUSTOMER)
    assert "[bonds]" in str((await connect(nwc.uri, "--config", path)).exception)


@pytest.mark.parametrize(
    "text",
    ["5ec4e7" * 8, "nostr+walletconnect://5ec4e7", "ftp://5ec4e7.example", "https://5ec4e7@lnbits.example", ""],
)
def test_what_is_no_wallet_is_told_without_any_of_it(text):
    with pytest.raises(BadInput) as refused:
        recognized(text)
    assert "5ec4e7" not in str(refused.value)


def test_a_connection_string_is_of_no_other_kind():
    with pytest.raises(BadInput, match="no lnbits"):
        recognized("nostr+walletconnect://x", "lnbits")
    with pytest.raises(BadConfig, match="kind of wallet"):
        recognized("https://wallet.example", "nosuch")
