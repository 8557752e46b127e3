"""Oracles, and whoever is owed, present certified verdicts to the simulated network's holder: no customer waits."""

from __future__ import annotations

import time

import aiohttp
import pytest
from aiohttp import web

import tests.pay.bond_market as bm
from nodewire.customer.payments.purse import Purse
from nodewire.customer.payments.share_account import ShareAccount
from nodewire.errors import LinkLost, NotFound
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.bond.bond_holder import ensure_bond
from nodewire.pay.bond.presentation_store import PresentationStore
from nodewire.pay.bond.presenter import Presenter
from simnet.bond_holder import SimBondHolder
from simnet.wallet import SimWallet
from tests.pay.simnet_process import run_simnet

BOND_MSAT = 100_000
UNTIL_S = int(time.time()) + 100_000


class Clock:
    """Stands where the verdicts' epoch has just been judged, until it is moved."""

    def __init__(self) -> None:
        self.now_s = bm.GENESIS_S + (bm.EPOCH + 3) * 2.0

    def time_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


class Relays:
    """Has the requests that it is given."""

    def __init__(self, *events) -> None:
        self.events = list(events)

    def subscribe(self, filters):
        raise NotImplementedError

    async def fetch(self, filters):
        return [event for event in self.events if any(one.matches(event) for one in filters)]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presenting")
    (folder / "committee.json").write_text(bm.COMMITTEE.to_json())
    (folder / "holder.nsec").write_text(bm.HOLDER.nsec)
    (folder / "holder.nsec").chmod(0o600)
    options = ["--key", str(folder / "holder.nsec"), "--committee", str(folder / "committee.json")]
    with run_simnet(folder / "simnet.db", *options) as url:
        yield url


@pytest.fixture
async def open_wallet(url):
    opened = []

    async def one(msat=0):
        wallet, _ = await SimWallet.open_account(url, "somebody", msat)
        opened.append(wallet)
        return wallet

    yield one
    for wallet in opened:
        await wallet.close()


@pytest.fixture
async def job(open_wallet):
    """A job whose driver's provider has a bond and is convicted; (request, certificate, provider)."""
    provider = Keys.generate()
    await ensure_bond(SimBondHolder(await open_wallet(1_000_000)), provider, BOND_MSAT, UNTIL_S)
    request = bm.request(driver=provider)
    return request, bm.certificate(bm.failed(request, culprit=provider)), provider


class Oracle:
    """The oracle at `place` places after the leader of the verdicts' epoch; or another node, with `keys`."""

    def __init__(self, place, folder, request, wallet, *, holder=None, collects=True, keys=None) -> None:
        self.keys = keys or bm.ORACLES[(bm.EPOCH + place) % len(bm.ORACLES)]
        self.wallet, self.clock = wallet, Clock()
        self.file = PresentationStore(folder / f"presented-{place}.db", bm.COMMITTEE.digest())
        self.holder = holder or SimBondHolder(wallet)
        self.presenter = Presenter(
            self.keys,
            bm.COMMITTEE,
            Relays(request),
            self.holder,
            self.file,
            collects=collects,
            time_s=self.clock.time_s,
            monotonic_s=self.clock.monotonic_s,
        )


async def test_a_verdict_is_settled_and_everybody_paid_and_no_customer_was_there(job, open_wallet, tmp_path):
    request, certificate, provider = job
    oracle = Oracle(0, tmp_path, request, await open_wallet())
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    assert oracle.file.open() == []
    assert await oracle.wallet.balance_msat() == bm.PRICE_MSAT
    assert (await oracle.holder.bond(provider.public)).state == "slashed"
    for verifier in bm.VERIFIERS[:2]:
        wallet = await open_wallet()
        case = bm.failed(request, culprit=provider).key
        assert await SimBondHolder(wallet).claim(verifier, case) == bm.PRICE_MSAT
        assert (await SimBondHolder(wallet).collect(verifier)).is_paid
        assert await wallet.balance_msat() == bm.PRICE_MSAT


async def test_the_others_wait_their_turn_and_find_it_settled(job, open_wallet, tmp_path):
    request, certificate, _ = job

    class Watched(SimBondHolder):
        presented = 0

        async def present(self, certificate, request):
            Watched.presented += 1
            return await super().present(certificate, request)

    oracles = []
    for place in range(4):
        wallet = await open_wallet()
        oracles.append(Oracle(place, tmp_path, request, wallet, holder=Watched(wallet)))
    for oracle in oracles:
        oracle.presenter.certified(certificate)
        await oracle.presenter.present_due()
    assert [len(oracle.file.open()) for oracle in oracles] == [0, 1, 1, 1]
    for oracle in oracles[1:]:
        oracle.clock.now_s += 3 * 0.2
        await oracle.presenter.present_due()
    assert Watched.presented == 1
    assert [await oracle.wallet.balance_msat() for oracle in oracles] == [bm.PRICE_MSAT] * 4


async def test_a_verifier_pulls_its_pay_and_presents_itself_what_no_oracle_does(job, open_wallet, tmp_path):
    request, certificate, provider = job
    agreed = Oracle(8, tmp_path, request, await open_wallet(), keys=bm.VERIFIERS[0])
    disagreed = Oracle(9, tmp_path, request, await open_wallet(), keys=bm.VERIFIERS[2])
    for node in (agreed, disagreed):
        node.presenter.certified(certificate)
        await node.presenter.present_due()
    assert (len(agreed.file.open()), len(disagreed.file.open())) == (1, 0)
    assert (await agreed.holder.bond(provider.public)).state == "locked"  # the oracles' turn is not over
    agreed.clock.now_s += 4 * 0.2
    await agreed.presenter.present_due()
    assert await agreed.wallet.balance_msat() == bm.PRICE_MSAT
    assert agreed.file.open() == []


async def test_where_the_leader_is_silent_the_next_one_presents(job, open_wallet, tmp_path):
    request, certificate, provider = job
    oracle = Oracle(1, tmp_path, request, await open_wallet())
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    assert (await oracle.holder.bond(provider.public)).state == "locked"
    oracle.clock.now_s += 0.2
    await oracle.presenter.present_due()
    assert (await oracle.holder.bond(provider.public)).state == "slashed"


@pytest.mark.parametrize("died", ["before it presented", "after it presented", "before it claimed", "after it claimed"])
async def test_an_oracle_that_dies_loses_nothing_and_is_paid_nothing_twice(died, job, open_wallet, tmp_path):
    request, certificate, _ = job

    class Dying(SimBondHolder):
        async def present(self, certificate, request):
            if died == "before it presented":
                raise LinkLost("holder", died)
            settled = await super().present(certificate, request)
            if died == "after it presented":
                raise LinkLost("holder", died)
            return settled

        async def claim(self, keys, case):
            if died == "before it claimed":
                raise LinkLost("holder", died)
            await super().claim(keys, case)
            raise LinkLost("holder", died)

    wallet = await open_wallet()
    first = Oracle(0, tmp_path, request, wallet, holder=Dying(wallet))
    first.presenter.certified(certificate)
    await first.presenter.present_due()
    assert len(first.file.open()) == 1
    first.file.close()
    again = Oracle(0, tmp_path, request, wallet)
    for _ in range(3):
        again.presenter.certified(certificate)
        await again.presenter.present_due()
    assert again.file.open() == []
    assert await wallet.balance_msat() == bm.PRICE_MSAT


async def test_what_cannot_be_presented_now_is_tried_again(job, open_wallet, tmp_path):
    request, certificate, provider = job
    oracle = Oracle(0, tmp_path, bm.REQUEST, await open_wallet())  # no relay has the request yet
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    oracle.presenter._relays.events.append(request)
    await oracle.presenter.present_due()
    assert (await oracle.holder.bond(provider.public)).state == "locked"
    oracle.clock.now_s += 1
    await oracle.presenter.present_due()
    assert (await oracle.holder.bond(provider.public)).state == "slashed"


PAGES = {
    "a proxy's page": (502, "<html>Bad Gateway</html>"),
    "a page of its own": (404, "<html>no such host</html>"),
    "a crash": (500, '{"code": "bad-input", "field": "x", "reason": "y"}'),
    "a login": (200, '{"welcome": "to this hotel"}'),
    "no object": (400, "null"),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
async def test_what_is_not_the_holders_own_answer_ends_no_presenting(page, job, url, tmp_path):
    request, certificate, provider = job
    is_ill = True

    async def forward(asked):
        if is_ill and asked.path == "/v1/verdicts":
            return web.Response(status=page[0], text=page[1])
        async with (
            aiohttp.ClientSession() as session,
            session.request(asked.method, url + asked.path_qs, data=await asked.read()) as said,
        ):
            return web.Response(status=said.status, body=await said.read())

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    wallet = SimWallet(f"http://127.0.0.1:{runner.addresses[0][1]}", "")
    try:
        oracle = Oracle(0, tmp_path, request, wallet, collects=False)
        oracle.presenter.certified(certificate)
        await oracle.presenter.present_due()
        assert len(oracle.file.open()) == 1
        is_ill = False
        oracle.clock.now_s += 1
        await oracle.presenter.present_due()
        assert oracle.file.open() == []
        assert (await oracle.holder.bond(provider.public)).state == "slashed"
    finally:
        await wallet.close()
        await runner.cleanup()


async def test_what_the_holder_itself_refuses_is_presented_no_more(job, open_wallet, tmp_path):
    request, certificate, provider = job
    oracle = Oracle(0, tmp_path, request, await open_wallet())
    other = bm.certificate(bm.verdict_of(request, provider=provider.public))  # of the same sample
    await oracle.holder.present(other, request)
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    assert oracle.file.open() == []
    assert (await oracle.holder.bond(provider.public)).state == "locked"


async def test_without_an_account_an_oracle_presents_all_the_same(job, url, open_wallet, tmp_path):
    request, certificate, provider = job
    nobody = SimWallet(url, "")
    oracle = Oracle(0, tmp_path, request, nobody, collects=False)
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    assert oracle.file.open() == []
    assert (await oracle.holder.bond(provider.public)).state == "slashed"
    await nobody.close()


async def test_a_verdict_that_is_not_certified_is_presented_to_nobody(job, open_wallet, tmp_path):
    request, _, provider = job
    oracle = Oracle(0, tmp_path, request, await open_wallet())
    with pytest.raises(Exception, match="votes"):
        oracle.presenter.certified(bm.certificate(bm.failed(request, culprit=provider), bm.ORACLES[:2]))
    assert oracle.file.open() == []


async def test_a_holder_that_the_committee_does_not_name_is_shown_nothing(job, open_wallet, tmp_path):
    request, certificate, _ = job

    class Another(SimBondHolder):
        async def holder(self):
            from dataclasses import replace

            return replace(await super().holder(), public=bm.STRANGER.public)

    wallet = await open_wallet()
    oracle = Oracle(0, tmp_path, request, wallet, holder=Another(wallet))
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    assert len(oracle.file.open()) == 1
    with pytest.raises(NotFound):
        await oracle.holder.case(oracle.file.open()[0].sample)


async def test_a_pass_pays_its_verifiers_out_of_the_share_and_the_committee_its_fee(open_wallet, tmp_path):
    customer = Keys.generate()
    request = bm.request(customer)
    purse = await open_wallet(1_000_000)
    own = Purse(Payer(customer, purse, Ledger(":memory:")), bm.RELAYS, "bcrt", True)
    account = ShareAccount(customer, own, SimBondHolder(purse))
    for chunk in range(3):
        await account.pay(request.id, chunk, bm.SHARE_MSAT)
    await account.close()
    oracle = Oracle(0, tmp_path, request, await open_wallet())
    said = bm.verdict_of(request, epoch=(bm.COMMITTEE.epoch_at(int(time.time() * 1000)) // 4 + 1) * 4 + bm.EPOCH % 4)
    oracle.presenter.certified(bm.certificate(said))
    await oracle.presenter.present_due()
    verifier = await open_wallet()
    assert await SimBondHolder(verifier).claim(bm.VERIFIERS[0], said.key) == bm.PRICE_MSAT
    assert (await SimBondHolder(verifier).collect(bm.VERIFIERS[0])).is_paid
    assert await verifier.balance_msat() == bm.PRICE_MSAT
    fees_msat = 3 * bm.SHARE_MSAT * bm.FEE_PPM // 1_000_000
    assert await oracle.wallet.balance_msat() == fees_msat // len(bm.ORACLES)
    oracle.clock.now_s += 3_600
    await oracle.presenter.present_due()
    assert await oracle.wallet.balance_msat() == fees_msat // len(bm.ORACLES)


class Feed(Relays):
    """Ends once it has handed out what it has."""

    async def subscribe(self, filters):
        for event in self.events:
            yield event


def other_topic(event):
    tags = [["n", "rating/x"] if tag[0] == "n" else list(tag) for tag in event.tags]
    return events.sign(bm.STRANGER, event.kind, created_at=event.created_at, tags=tags, content=event.content)


@pytest.mark.parametrize("is_known", [False, True])
async def test_verdicts_on_relays_are_noted_once_and_a_feed_that_ends_is_a_lost_link(is_known, tmp_path):
    said, file = bm.failed(), PresentationStore(tmp_path / "presented.db", bm.COMMITTEE.digest())
    good, other = bm.certificate(said), bm.certificate(bm.failed(chunk=1))
    feed = Feed(other_topic(other), bm.certificate(bm.failed(chunk=2), bm.ORACLES[:2]), good, *([good] * is_known))
    presenter = Presenter(bm.ORACLES[0], bm.COMMITTEE, feed, None, file, collects=False)
    with pytest.raises(ExceptionGroup) as ended:
        await presenter.run()
    (lost,) = ended.value.exceptions
    assert isinstance(lost, LinkLost) and lost.reason == "every relay has ended the subscription"
    assert [one.sample for one in file.open()] == [said.key]
    file.close()


async def test_a_verdict_that_reaches_no_bond_is_presented_once_and_pays_nobody(open_wallet, tmp_path):
    provider = Keys.generate()
    request = bm.request(driver=provider)
    said = bm.failed(request, culprit=provider)
    oracle = Oracle(0, tmp_path, request, await open_wallet())
    oracle.presenter.certified(bm.certificate(said))
    await oracle.presenter.present_due()
    assert oracle.file.open() == []
    assert (await oracle.holder.case(said.key)).refused
    assert await oracle.wallet.balance_msat() == 0


async def test_a_relay_that_tells_another_event_first_gives_the_request_all_the_same(job, open_wallet, tmp_path):
    request, certificate, provider = job

    class Talkative(Relays):
        async def fetch(self, filters):
            return [bm.REQUEST, *self.events]

    oracle = Oracle(0, tmp_path, request, await open_wallet())
    oracle.presenter._relays = Talkative(request)
    oracle.presenter.certified(certificate)
    await oracle.presenter.present_due()
    assert (await oracle.holder.bond(provider.public)).state == "slashed"
