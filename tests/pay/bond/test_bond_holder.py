"""The simulated network's process as bond holder and treasurer, asked over HTTP by whoever trades on it."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import orjson
import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadQuorum, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip98
from nodewire.pay.bond.bond_holder import ClaimPayment, ensure_bond, is_share_paid
from nodewire.pay.lightning import lnurl
from nodewire.protocol.job.request import parse as parse_job
from nodewire.protocol.market import bond as statements
from simnet.bond_holder import SimBondHolder
from simnet.wallet import SimWallet
from tests.pay.bond_market import COMMITTEE, CUSTOMER, PRICE_MSAT, REQUEST, SHARE_MSAT, VERIFIERS
from tests.pay.simnet_process import run_simnet

UNTIL_S = int(time.time()) + 100_000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("holder")
    (folder / "committee.json").write_text(COMMITTEE.to_json())
    (folder / "holder.nsec").write_text(bm.HOLDER.nsec)
    (folder / "holder.nsec").chmod(0o600)
    return folder


def options(files):
    return ["--key", str(files / "holder.nsec"), "--committee", str(files / "committee.json")]


@pytest.fixture(scope="module")
def url(files):
    with run_simnet(files / "simnet.db", *options(files)) as url:
        yield url


@pytest.fixture
async def wallet(url):
    wallet, _ = await SimWallet.open_account(url, "somebody", 1_000_000)
    yield wallet
    await wallet.close()


@pytest.fixture
def holder(wallet):
    return SimBondHolder(wallet)


@pytest.fixture
def provider():
    """One of its own for each test: a key has one bond."""
    return Keys.generate()


async def test_the_holder_says_who_it_is_and_for_whom_it_holds(holder, url):
    said = await holder.holder()
    assert (said.public, said.committee, said.unbonding_s) == (bm.HOLDER.public, COMMITTEE.digest(), 32)
    assert said.lnurl == f"{url}/.well-known/lnurlp/treasury"


async def test_a_bond_is_locked_found_and_raised_as_a_provider_starts_again_and_again(holder, wallet, provider):
    first = await ensure_bond(holder, provider, 50_000, UNTIL_S)
    said = statements.parse(first)
    assert (said.holder, said.provider, said.amount_msat) == (bm.HOLDER.public, provider.public, 50_000)
    assert await ensure_bond(holder, provider, 50_000, UNTIL_S) == first
    assert await ensure_bond(holder, provider, 20_000, UNTIL_S - 500) == first
    assert await wallet.balance_msat() == 950_000
    more = await ensure_bond(holder, provider, 70_000, UNTIL_S + 500)
    assert statements.parse(more).amount_msat == 70_000
    assert await wallet.balance_msat() == 930_000
    bond = await holder.bond(provider.public)
    assert (bond.state, bond.until_s) == ("locked", UNTIL_S + 500)


async def test_a_bond_that_is_being_released_is_no_bond(holder, provider):
    await ensure_bond(holder, provider, 50_000, UNTIL_S)
    released = await holder.release(provider)
    assert (released.state, released.frees_at_s) == ("unbonding", released.stated_until_s + 32)
    with pytest.raises(NotAllowed, match=r"was asked back, and is free on \d{4}-\d\d-\d\d \d\d:\d\d UTC"):
        await ensure_bond(holder, provider, 50_000, UNTIL_S)


async def test_what_the_wallet_lacks_is_not_locked(holder, wallet, provider):
    with pytest.raises(PaymentFailed):
        await ensure_bond(holder, provider, 5_000_000, UNTIL_S)
    assert await wallet.balance_msat() == 1_000_000
    with pytest.raises(NotFound):
        await holder.bond(provider.public)


async def test_from_zap_to_verdict_to_payout(holder, wallet, provider):
    """A job is paid for, a sample of it fails: the customer, a verifier and an oracle pull what is theirs, once."""
    await ensure_bond(holder, provider, 100_000, UNTIL_S)
    said, job = await holder.holder(), bm.request(driver=provider)
    for chunk in range(2):
        fetch = lnurl.over_lnurl(said.lnurl, nostr_pubkey=said.public, network="bcrt", allow_private=True)
        invoice = await fetch(bm.zap(chunk, request=job), SHARE_MSAT)
        await wallet.pay(invoice.bolt11, max_fee_msat=0)
        assert await holder.book_shares(bm.statement(chunk, request=job)) == 0
    assert await holder.treasury(job.id) == (2 * SHARE_MSAT * 9 // 10, 2 * SHARE_MSAT * 9 // 10)
    later_ms = COMMITTEE.close_ms(now_epoch := COMMITTEE.epoch_at(int(time.time() * 1000)) + 1)
    shares = [await holder.share_msat(job.id, CUSTOMER.public, chunk, later_ms) for chunk in (1, 2)]
    assert shares == [SHARE_MSAT, 0]
    assert await holder.share_msat(job.id, provider.public, 1, later_ms) == 0
    assert await holder.share_msat(job.id, CUSTOMER.public, 1, 0) == 0
    named = parse_job(job)
    assert [await is_share_paid(holder, named, chunk, now_epoch, COMMITTEE) for chunk in (1, 2)] == [True, False]
    assert not await is_share_paid(holder, named, 1, 0, COMMITTEE)
    # What is enough for one of the first chunks is too little for one with a long context before it.
    assert [await is_share_paid(holder, named, 1, now_epoch, COMMITTEE, number) for number in (21, 22)] == [True, False]
    before_msat = await wallet.balance_msat()

    certificate = bm.certificate(bm.failed(job, culprit=provider, epoch=now_epoch))
    settled = await holder.present(certificate, job)
    assert await holder.present(certificate, job) == settled == await holder.case(settled.case)
    assert (settled.slashes, settled.refused, settled.payouts[CUSTOMER.public]) == (True, "", 2 * PRICE_MSAT)
    for _ in range(2):
        assert await holder.claim(CUSTOMER, settled.case) == 2 * PRICE_MSAT
    paid = await holder.collect(CUSTOMER)
    assert paid is not None and (paid.amount_msat, paid.is_paid) == (2 * PRICE_MSAT, True)
    assert await holder.collect(CUSTOMER) is None
    assert await wallet.balance_msat() == before_msat + 2 * PRICE_MSAT
    assert await holder.claim(VERIFIERS[0], settled.case) == PRICE_MSAT
    fee = await holder.collect(bm.ORACLES[0])
    assert fee is not None and (fee.amount_msat, fee.is_paid) == (2 * SHARE_MSAT // 10 // 4, True)
    assert await holder.collect(bm.ORACLES[0]) is None
    with pytest.raises(NotAllowed):
        await holder.claim(provider, settled.case)
    with pytest.raises(NotAllowed, match="slashed"):
        await ensure_bond(holder, provider, 50_000, UNTIL_S)


async def test_many_claims_and_payouts_at_once_are_one_payment(holder, wallet, provider):
    await ensure_bond(holder, provider, 100_000, UNTIL_S)
    job = bm.request(driver=provider)
    settled = await holder.present(bm.certificate(bm.failed(job, culprit=provider)), job)
    before_msat = await wallet.balance_msat()
    claimed = await asyncio.gather(*(holder.claim(CUSTOMER, settled.case) for _ in range(20)))
    assert set(claimed) == {PRICE_MSAT}
    paid = await asyncio.gather(*(holder.collect(CUSTOMER) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(one, ClaimPayment) for one in paid) == 1
    assert await wallet.balance_msat() == before_msat + PRICE_MSAT


async def test_a_slash_that_finds_no_bond_is_reported_as_refused(holder, provider):
    job = bm.request(driver=provider)
    settled = await holder.present(bm.certificate(bm.failed(job, culprit=provider)), job)
    assert (settled.slashes, settled.bond, settled.refused) == (True, "", "it never had a bond here")


async def test_a_forged_certificate_or_another_job_settles_nothing(holder):
    with pytest.raises(BadQuorum):
        await holder.present(bm.certificate(bm.failed(chunk=9), bm.ORACLES[:2]), REQUEST)
    with pytest.raises(BadInput):
        await holder.present(bm.certificate(bm.failed(chunk=9)), bm.request(salt="another"))
    good = bm.certificate(bm.failed(chunk=9))
    async with aiohttp.ClientSession() as session:
        for certificate, request in (
            ({**good.as_dict(), "sig": "00" * 64}, REQUEST.as_dict()),
            (good.as_dict(), {**REQUEST.as_dict(), "created_at": 6}),
            (good.as_dict(), good.as_dict()),
            (REQUEST.as_dict(), REQUEST.as_dict()),
            (None, 7),
        ):
            body = orjson.dumps({"certificate": certificate, "request": request})
            async with session.post(f"{holder._wallet._url}/v1/verdicts", data=body) as response:
                assert response.status == 400, await response.text()


async def test_a_request_that_is_not_signed_for_it_is_refused(url, wallet, provider):
    body = orjson.dumps({"key": "k", "amount_msat": 5, "until_s": UNTIL_S})
    now_s = int(time.time())
    asked = nip98.HttpRequest(f"{url}/v1/bonds", "POST", body)
    signed = nip98.header(provider, asked, now_s=now_s)
    bearer = f"Bearer {wallet._token}"
    async with aiohttp.ClientSession() as session:

        async def post(path="/v1/bonds", body=body, **headers):
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.post(url + path, data=body, headers=names) as response:
                return response.status

        assert await post(Authorization=signed) == 401  # no account
        assert await post(Authorization="Bearer guess", Nostr_Authorization=signed) == 401
        assert await post(Authorization=bearer) == 409  # no provider
        assert await post("/v1/bonds/raise", Authorization=bearer, Nostr_Authorization=signed) == 409
        assert await post(body=body.replace(b"5", b"6"), Authorization=bearer, Nostr_Authorization=signed) == 409
        old = nip98.header(provider, asked, now_s=now_s - 100)
        assert await post(Authorization=bearer, Nostr_Authorization=old) == 409
        assert await post(Authorization=bearer, Nostr_Authorization=signed) == 200
        assert await post(Authorization=bearer, Nostr_Authorization=signed) == 200  # the same bond
    assert await wallet.balance_msat() == 1_000_000 - 5


@pytest.mark.parametrize(
    "path",
    [
        "/v1/bonds/xyz",
        "/v1/cases/" + "0" * 63,
        "/v1/treasury/x",
        "/v1/dues/x",
        "/v1/ahead/x",
        "/v1/treasury/receipts/x",
        f"/v1/treasury/{REQUEST.id}/shares/{CUSTOMER.public}/-1",
    ],
)
async def test_what_is_no_id_is_named(url, path):
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        assert response.status == 400
        assert {"code", "field", "reason"} <= set(await response.json(content_type=None))


async def test_more_than_a_certificate_can_have_is_not_read(url):
    async with aiohttp.ClientSession() as session:
        for path, size in (
            ("/v1/verdicts", 300_000),
            ("/v1/claims", 20_000),
            ("/v1/shares", 20_000),
            ("/v1/payouts", 20_000),
        ):
            async with session.post(url + path, data=b"x" * size) as response:
                assert response.status == 413


async def test_a_killed_holder_knows_everything_when_it_comes_back(files, provider, unused_tcp_port, tmp_path):
    service = run_simnet(tmp_path / "simnet.db", *options(files))
    service._command[service._command.index("--port") + 1] = str(unused_tcp_port)
    with service as url:
        wallet, _ = await SimWallet.open_account(url, "provider", 1_000_000)
        holder = SimBondHolder(wallet)
        statement = await ensure_bond(holder, provider, 50_000, UNTIL_S)
        job = bm.request(driver=provider)
        settled = await holder.present(bm.certificate(bm.failed(job, culprit=provider)), job)
        claimed_msat = await holder.claim(CUSTOMER, settled.case)
        assert await holder.collect(CUSTOMER) is not None
        service.process.kill()
    with service:
        assert await holder.claim(CUSTOMER, settled.case) == claimed_msat
        assert await holder.collect(CUSTOMER) is None
        assert await wallet.balance_msat() == 1_000_000 - 50_000 + PRICE_MSAT
        bond = await holder.bond(provider.public)
        assert (bond.state, bond.stated_until_s) == ("slashed", statements.parse(statement).expires_at_s)
        await wallet.close()


def test_a_committee_that_does_not_list_the_holder_is_refused_at_the_start(files, tmp_path):
    committee, _ = bm.committee(bond_holders=())
    (tmp_path / "committee.json").write_text(committee.to_json())
    service = run_simnet(
        tmp_path / "s.db", "--key", str(files / "holder.nsec"), "--committee", str(tmp_path / "committee.json")
    )
    with pytest.raises(AssertionError, match="bond_holders"), service:
        pass
    assert service.process.wait(10) == 1
