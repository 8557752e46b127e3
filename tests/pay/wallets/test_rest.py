"""The HTTP client of wallets: what any service may do to it, whose wallet it is all the same."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import os
import ssl
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, TimedOut, Unsupported
from nodewire.pay.wallets import rest
from nodewire.pay.wallets.cln import ClnWallet
from nodewire.pay.wallets.lnbits import LnbitsWallet
from nodewire.pay.wallets.lnd import LndWallet
from nodewire.pay.wallets.phoenixd import PhoenixdWallet
from nodewire.pay.wallets.rest import Access

SECRET = "c0ffee" * 11
WALLETS = {
    "lnd": lambda url, access, **options: LndWallet(url, access, **options),
    "cln": lambda url, access, **options: ClnWallet(url, access, **options),
    "phoenixd": lambda url, access, **options: PhoenixdWallet(url, access, **options),
    "lnbits": lambda url, access, **options: LnbitsWallet(url, access.secret, **options),
}


@pytest.fixture
async def answering():
    """`await answering(handler)` -> the URL of a server that answers everything so."""
    async with AsyncExitStack() as stack:

        async def start(handler, context=None):
            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            return f"http{'s' if context else ''}://127.0.0.1:{runner.addresses[0][1]}"

        yield start


@pytest.fixture(params=sorted(WALLETS))
async def wallet_at(request):
    """`wallet_at(url)` -> a wallet of each kind there."""
    async with AsyncExitStack() as stack:

        def one(url, timeout_s=2.0):
            wallet = WALLETS[request.param](url, Access(SECRET), timeout_s=timeout_s)
            stack.push_async_callback(wallet.close)
            return wallet

        yield one


def calls(wallet):
    return [wallet.balance_msat(), wallet.info(), wallet.lookup("ab" * 32, "in"), wallet.lookup("ab" * 32, "out")]


async def test_a_redirect_is_not_followed_and_the_secret_goes_nowhere_else(answering, wallet_at):
    thief = []

    async def take(request):
        thief.append(dict(request.headers))
        return web.json_response({})

    elsewhere = await answering(take)

    async def answer(request):
        return web.Response(status=307, headers={"Location": elsewhere + request.path})

    for call in calls(wallet_at(await answering(answer))):
        with pytest.raises(LinkLost):
            await call
    assert thief == []


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", bytes(range(64)), b"[" * 5_000_000, b"7", b"[]", b'{"a":' * 100_000, b"null"],
    ids=["empty", "html", "binary", "nested", "number", "list", "deep", "null"],
)
async def test_an_answer_that_is_none_of_the_service_is_a_lost_link(answering, wallet_at, body):
    async def answer(request):
        return web.Response(body=body)

    for call in calls(wallet_at(await answering(answer))):
        with pytest.raises(LinkLost):
            await call


async def test_an_answer_without_an_end_is_cut_off(answering, wallet_at):
    sent = 0

    async def answer(request):
        nonlocal sent
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(b"x" * 65_536)
            sent += 65_536

    with pytest.raises(LinkLost, match="over 4000000 bytes"):
        await wallet_at(await answering(answer)).balance_msat()
    assert sent < 40_000_000  # what waits in sockets comes on top


async def test_a_line_without_an_end_is_cut_off(answering):
    async def answer(request):
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(b"x" * 65_536)

    wallet = LndWallet(await answering(answer), Access(SECRET), timeout_s=2.0)
    with pytest.raises(LinkLost, match="over 4000000 bytes"):
        await wallet.lookup("ab" * 32, "out")
    await wallet.close()


async def test_a_service_that_is_late_or_away_is_told_as_such(answering, wallet_at, unused_tcp_port):
    asked = asyncio.Event()

    async def answer(request):
        asked.set()
        await asyncio.sleep(3_600)

    late = wallet_at(await answering(answer), timeout_s=0.3)
    with pytest.raises(TimedOut):
        await late.balance_msat()
    assert asked.is_set()
    with pytest.raises(LinkLost):
        await wallet_at(f"http://127.0.0.1:{unused_tcp_port}").balance_msat()
    with pytest.raises(BadInput, match="is no URL"):
        await wallet_at("wallet").balance_msat()


async def test_members_that_nobody_knows_change_nothing(answering):
    async def answer(request):
        assert request.headers["Rune"] == SECRET
        channel = {"state": "CHANNELD_NORMAL", "our_amount_msat": 5, "colour": {"of": ["spring"]}}
        return web.json_response({"channels": [channel], "outputs": [], "colour": 7}, status=201)

    wallet = ClnWallet(await answering(answer), Access(SECRET))
    assert await wallet.balance_msat() == 5
    await wallet.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500, 502, 503])
async def test_a_refusal_is_a_typed_error_that_shows_no_secret(answering, wallet_at, status, caplog):
    caplog.set_level(logging.DEBUG)

    async def answer(request):
        words = {"code": 2, "message": "no", "detail": "no", "error": {"code": 2, "message": "no"}}
        return web.json_response(words, status=status)

    wallet = wallet_at(await answering(answer))
    said = repr(wallet) + repr(Access(SECRET)) + str(vars(Access))
    for call in calls(wallet):
        with pytest.raises(NodewireError) as told:
            await call
        said += f"{told.value} {told.value!r} {told.value.__cause__!r}"
    assert SECRET not in said + caplog.text


# Certificates


def certificate(name="127.0.0.1"):
    """A self-signed certificate as LND makes its own, its key beside it: (PEM, a server's TLS)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "lnd autogenerated cert")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address(name))] if name[0].isdigit() else [x509.DNSName(name)]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM).decode()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, secret


@pytest.fixture
def server_tls(tmp_path):
    def make(name="127.0.0.1"):
        pem, secret = certificate(name)
        path = tmp_path / f"{os.urandom(4).hex()}.pem"
        path.write_bytes(pem.encode() + secret)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(path)
        return pem, context

    return make


@pytest.mark.parametrize("wallet_class", [LndWallet, ClnWallet, PhoenixdWallet])
async def test_a_service_is_believed_by_the_certificate_in_the_token_file_and_by_no_other(
    answering, server_tls, wallet_class, tmp_path
):
    asked = []

    async def answer(request):
        asked.append(request.path)
        said = {"local_balance": {"msat": "5000"}, "channels": [], "balanceSat": 5}
        return web.json_response(said)

    pem, context = server_tls()
    url = await answering(answer, context)
    token = tmp_path / "token"
    token.write_text(f"{SECRET[:32]}\n{SECRET[32:]}\n{pem}")
    wallet = wallet_class.from_file(url, token)
    assert await wallet.balance_msat() in (5_000, 0)
    await wallet.close()
    asked.clear()
    elsewhere = await answering(answer, server_tls("lnd.example")[1])
    for where, certificates in (
        (url, certificate()[0]),  # another's
        (url, ""),  # none that this machine trusts
        (elsewhere, pem),
        (url.replace("127.0.0.1", "localhost"), pem),  # another name
    ):
        wallet = wallet_class(where, Access(SECRET, certificates), timeout_s=2.0)
        with pytest.raises(LinkLost, match="certificate"):
            await wallet.balance_msat()
        await wallet.close()
    assert asked == []  # the secret went to none of them


# Token files


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        (b"", "it has not the key"),
        (b"\xff\xfe\x00", "no text"),
        ("schlüssel".encode(), "it has not the key"),
        (b"a" * 20_000, "it has not the key"),
        (b"ab\x00cd", "it has not the key"),
        (b"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\nsecret", "certificates are none"),
    ],
)
def test_a_token_file_that_opens_nothing_is_told_by_name(tmp_path, content, why):
    path = tmp_path / "wallet.token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadConfig, match=why) as told:
        Access.read(path, "the key")
    assert str(path) in str(told.value) and "secret" not in str(told.value).replace("certificates", "")


def test_white_space_in_a_secret_does_not_count(tmp_path):
    path = tmp_path / "wallet.token"
    path.write_text("0201\n036c\r\n 6e64 \n")
    assert Access.read(path, "the key") == Access("0201036c6e64")
    with pytest.raises(BadConfig, match=r"^wallet\.token_file: name the file with the key$"):
        Access.read(None, "the key")


def test_a_macaroon_that_is_not_hex_is_told_with_the_command_that_writes_it(tmp_path):
    path = tmp_path / "admin.macaroon"
    path.write_text("AgEDbG5k")
    with pytest.raises(BadConfig, match="xxd -ps"):
        LndWallet.from_file("https://127.0.0.1:8080", path)


# What stands in an answer


@pytest.mark.parametrize("value", [-1, 1.5, "1.5", "-1", "", "1" * 20, True, None, [], "0x10", "٣"])
def test_what_is_no_whole_number_is_taken_for_none(value):
    with pytest.raises(LinkLost):
        rest.whole({"msat": value}, "msat")


def test_whole_numbers_come_also_in_digits():
    assert [rest.whole({"msat": value}, "msat") for value in (0, 7, "0", "21000")] == [0, 7, 0, 21_000]
    assert rest.whole({}, "msat", missing=3) == rest.whole({"msat": None}, "msat", missing=3) == 3


@pytest.mark.parametrize("value", ["ab", "zz" * 32, 7, None, "ab" * 33])
def test_what_is_no_hash_is_taken_for_none(value):
    with pytest.raises(LinkLost):
        rest.hex32({"payment_hash": value}, "payment_hash")
    with pytest.raises(LinkLost):
        rest.node_key({"id": value}, "id")


def test_a_network_that_bolt11_does_not_name_is_refused():
    assert (rest.network("mainnet"), rest.network("Signet"), rest.network("testnet4")) == ("bc", "tbs", "tb")
    with pytest.raises(Unsupported, match="liquid"):
        rest.network("liquid")
