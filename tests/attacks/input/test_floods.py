"""Strangers with any number of keys, who cost a provider memory, time or traffic, or keep others from being heard."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import (
    BadEvent,
    BadSignature,
    Busy,
    LinkLost,
    NodeFailed,
    NodewireError,
    NoQuorum,
    NotAllowed,
    TooLarge,
    WorkRequired,
)
from nodewire.market import Market
from nodewire.nostr.event import Event, verify
from nodewire.nostr.event import sign as sign_event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip13, nip59
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import MAX_BROKEN, Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning.invoices import hash_of
from nodewire.pay.lightning.wallet import Receipt
from nodewire.protocol import kinds
from nodewire.protocol.committee import beacon
from nodewire.protocol.job import request as job
from nodewire.provider.admission import refusals
from nodewire.provider.admission.checks import Admission, AdmittedJob, CertifiedPlanner
from nodewire.provider.admission.free_chunks import MOST_OF_ORIGIN, FreeChunks
from nodewire.provider.admission.withdrawals import Withdrawals
from nodewire.provider.evidence.server import EvidenceServer
from nodewire.provider.evidence.store import KeptWork
from nodewire.provider.inference import service
from nodewire.provider.inference.job_factory import JobResources
from nodewire.provider.inference.proof import CommitteeProof
from nodewire.provider.inference.service import Provider
from nodewire.provider.outage import Outage
from nodewire.provider.tasks.registry import Specializations
from nodewire.store.blobs import Blobs
from nodewire.wire.evidence.spool import Spool
from relay.limits import Limits
from tests.attacks.market.test_hostile_providers import ME, PROVIDER, plan
from tests.plan import markets
from tests.protocol.committee.actors import committee, digest

CHANGES = {"manifest": markets.ring(1).digest(), "customer": ME.public}
EVIL = Keys(b"\x66" * 32)


class SlowRelays:
    """A pool whose relays take everything and answer nothing."""

    def __init__(self) -> None:
        self.published: list[Event] = []
        self.fetched = 0

    async def publish(self, event: Event, timeout_s: float) -> None:
        self.published.append(event)
        await asyncio.sleep(60)

    async def fetch(self, filters: object, timeout_s: float) -> list[Event]:
        self.fetched += 1
        return []


@pytest.fixture
def provider(tmp_path) -> Provider:
    document, _ = committee(1)
    pool = SlowRelays()
    blobs = Blobs(["http://127.0.0.1:9"], tmp_path)
    trading = Market(pool, blobs, document)  # type: ignore[arg-type]
    manifest, ledger = markets.ring(1), Ledger(":memory:")
    served = SimpleNamespace(
        kind=SimpleNamespace(check=lambda manifest, params: params),
        manifest=manifest,
        digest=manifest.digest(),
        tasks=tuple(task.name for task in manifest.tasks),
    )
    held = Specializations([served])  # type: ignore[list-item]
    admission = Admission(PROVIDER.public, CertifiedPlanner(trading, pool), ledger, held.manifest, 0)  # type: ignore[arg-type]
    return Provider(
        JobResources(
            keys=PROVIDER,
            public_record=trading,
            node=None,  # type: ignore[arg-type]
            ledger=ledger,
            admission=admission,
            withdrawals=Withdrawals(),
            spool=(spool := Spool(tmp_path / "spool", 10**6)),
            proof=CommitteeProof(
                PROVIDER.public,
                KeptWork(":memory:"),
                EvidenceServer(PROVIDER, document, spool, None),  # type: ignore[arg-type]
                None,  # type: ignore[arg-type]
                spool,
                document,
            ),
            patience_s=30,
        ),
        relays=pool,  # type: ignore[arg-type]
        held=held,
        outage=Outage([], lambda: None),
    )


def requested(
    provider: Provider,
    keys: Keys = ME,
    *,
    at_s: int = 1,
    partials: tuple[Event, ...] = (),
    lookahead: int = 1,
    policy: str = "none",
) -> Event:
    terms = plan().terms.model_copy(update={"lookahead": lookahead})
    verification = plan().verification.model_copy(update={"policy": policy})
    said = plan().model_copy(
        update={
            **CHANGES,
            "customer": keys.public,
            "committee": provider._factory._public_record.committee_digest,
            "terms": terms,
            "verification": verification,
        }
    )
    tags, content = job.tags_and_content(
        said,
        manifest_address=f"38840:{PROVIDER.public}:x",
        certificate_event=digest("none"),
        partials=partials,
        relays=(),
        ticket=job.Ticket(request="00" * 32, salt="00" * 32, inputs=()).seal(),
    )
    return sign_event(keys, kinds.INFERENCE, created_at=at_s, content=content, tags=tags)


def ticket(request: str, keys: Keys = ME) -> Event:
    text = job.Ticket(request=request, salt="00" * 32, inputs=()).to_json()
    rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=1, content=text)
    return nip59.wrap(rumor, keys, PROVIDER.public, now_s=1, ephemeral=True)


async def test_refused_requests_do_not_keep_others_waiting_for_slow_relays(provider):
    started = time.monotonic()
    for n in range(200):
        with pytest.raises(NotAllowed):
            provider._requested(requested(provider, at_s=n, lookahead=255))
    provider._requested(requested(provider))
    assert time.monotonic() - started < 5
    assert len(provider._refusing) == service.MAX_REFUSING
    assert len(provider._matcher._requests) == 1
    for task in provider._refusing:
        task.cancel()


async def test_signatures_in_a_strangers_request_are_not_looked_at_before_all_else_is_right(provider, monkeypatch):
    """64 of them took 4.6 ms of each provider that was named, and of each oracle when work for it was committed."""
    looked: list[Event] = []
    monkeypatch.setattr(job, "verify", lambda event: looked.append(event) or verify(event))
    said = [sign_event(EVIL, kinds.BEACON, created_at=n, content="{}") for n in range(64)]
    with pytest.raises(TooLarge):
        provider._requested(requested(provider, partials=tuple(said)))
    asked = requested(provider, partials=(replace(said[0], sig="0" * 128), *said[:2]))
    provider._requested(asked)
    assert not looked
    _, _, (_, request, manifest) = provider._matcher._requests[asked.id]
    with pytest.raises(BadSignature):
        await provider._admission.check(request, manifest)
    for task in provider._refusing:
        task.cancel()


async def test_a_request_that_is_malformed_or_without_work_gets_no_answer_that_relays_would_keep(provider):
    provider._admission._pow_bits = 8
    tags = nip13.mine(EVIL.public, kinds.INFERENCE, 8, created_at=1, content="{}", tags=[["p", PROVIDER.public]])
    malformed = sign_event(EVIL, kinds.INFERENCE, created_at=1, content="{}", tags=tags)
    for n in range(20):
        for event in (replace(malformed, id=digest(f"{n}")), requested(provider, at_s=n)):
            with pytest.raises(BadEvent):
                provider._requested(event)
    assert not provider._refusing
    assert provider.figures.ended[kinds.INFERENCE, "refused", "bad-tag"] >= 20


async def test_refusals_take_no_more_of_a_relay_than_their_own_room(provider):
    """What is over is counted; a customer who is told nothing looks elsewhere."""

    async def publish(event: Event, timeout_s: float) -> None:
        provider._relays.published.append(event)

    provider._relays.publish = publish  # type: ignore[method-assign]
    busy = Busy("credit", "there is no room")
    for n in range(40):
        await provider._refuse(digest(f"{n}"), EVIL.public, busy)
    one = len(provider._relays.published[0].to_json())
    provider._refusals._budget._set("", 10.5 * one)
    for n in range(40):
        await provider._refuse(digest(f"{n}"), EVIL.public, WorkRequired("nonce", "more", 12))
    assert 40 < len(provider._relays.published) <= 52
    assert provider.figures.untold == 80 - len(provider._relays.published)
    assert Limits().key_bytes_per_day >= 16 * refusals.BYTES_PER_DAY


@pytest.mark.parametrize(
    "broke", [LinkLost("frames", "the driver has left"), NodeFailed("spool", "it has no room for this job")]
)
async def test_a_key_that_has_paid_once_gets_no_prompts_without_end_from_jobs_that_break(provider, broke):
    """Its accomplice drives: the prompt is computed, never closed, and so never asked for. Or the provider breaks off
    what its customer made too large."""
    admission, ledger = provider._admission, provider._admission._ledger
    admission.free = FreeChunks(8, ledger.has_paid)
    was = Key("aa" * 32, PROVIDER.public, 0)
    ledger.owe(Due(was, ME.public, 100, due_by_s=10**10))
    paid = hash_of("dd" * 32)
    ledger.quoted(Quote(was, paid, "{}", "lnbc"))
    ledger.settled(Receipt("1", paid, "dd" * 32, 100, 1), "w")

    async def opened(job, served):
        async def serve() -> None:
            admission.begin(job.request, "")
            raise broke

        return SimpleNamespace(run=None, serve=serve)

    provider._factory.open = opened  # type: ignore[method-assign]
    served = SimpleNamespace(give=lambda pages: None)
    computed = 0
    for n in range(20):
        event = requested(provider, at_s=n)
        try:
            request, manifest = admission.glance(event, 1.0)
        except WorkRequired:
            continue
        computed += 1
        job_ = AdmittedJob(event, None, request, manifest, {})  # type: ignore[arg-type]
        await provider._run_job(job_, served, 0)  # type: ignore[arg-type]
    assert computed == MAX_BROKEN


async def test_jobs_that_find_no_room_in_the_spool_are_refused_and_nothing_else_suffers(provider):
    """Strangers filled nine tenths of it, and the provider left the market; then a job under way found no room."""
    taken, told, never = [], [], asyncio.Event()

    async def publish(event: Event, timeout_s: float) -> None:
        told.append(event)

    async def opened(job, served):
        return SimpleNamespace(run=SimpleNamespace(), serve=never.wait)

    provider._relays.publish = publish  # type: ignore[method-assign]
    provider._factory.open = opened  # type: ignore[method-assign]
    served = SimpleNamespace(give=taken.remove)
    running = []
    for n in range(20):
        event = requested(provider, at_s=n, policy="sampled")
        request, manifest = provider._admission.glance(event, 1.0)
        event_job = AdmittedJob(event, job.Ticket(request="00" * 32, salt="00" * 32, inputs=()), request, manifest, {})
        taken.append(n)
        running.append(asyncio.create_task(provider._run_job(event_job, served, n)))  # type: ignore[arg-type]
    refused = [task for task in running if task.done()]
    while len(refused) + len(provider._jobs) < len(running):
        await asyncio.sleep(0.01)
        refused = [task for task in running if task.done()]
    assert 0 < len(provider._jobs) == len(taken) < 20
    assert [event.tag("status") for event in told] == ["busy"] * len(refused)
    assert provider.figures.ended == {(kinds.INFERENCE, "refused", "busy"): len(refused)}
    provider._outage.check_admission()
    never.set()
    await asyncio.gather(*running)
    assert not taken


async def test_a_stranger_who_comes_by_a_splice_does_not_shut_it_for_all_others(provider):
    """A splice's address is many customers': eight unpaid chunks of one kept every new customer out for ten minutes."""
    links = {
        ME.public: SimpleNamespace(origin="192.0.2.1", rung="splice"),
        EVIL.public: SimpleNamespace(origin="192.0.2.9", rung="punch"),
    }
    provider._factory._node = SimpleNamespace(open_link=links.get)  # type: ignore[assignment]
    free = FreeChunks(0)
    for n in range(2 * MOST_OF_ORIGIN):
        free.begin(f"job {n}", f"key {n}", provider._factory._origin_of(ME.public))
    for n in range(MOST_OF_ORIGIN):
        free.begin(f"other job {n}", f"other key {n}", provider._factory._origin_of(EVIL.public))
    with pytest.raises(Busy):
        free.begin("one more", "its key", provider._factory._origin_of(EVIL.public))
    assert free.bits > 0  # who comes by a splice is held up by work


async def test_tickets_for_jobs_that_never_were_do_not_close_the_door(provider):
    provider._matcher._tickets = BoundedDict(16)
    served: list[str] = []

    async def serve(request, *_: object) -> None:
        served.append(request.id)

    provider._serve = serve  # type: ignore[method-assign]
    for n in range(40):
        provider._ticketed(ticket(digest(f"job {n}"), EVIL))
    assert len(provider._matcher._tickets) == 16
    wanted = requested(provider)
    provider._ticketed(ticket(wanted.id, EVIL))  # as if it were the customer's
    provider._requested(wanted)
    provider._ticketed(ticket(wanted.id))
    await asyncio.sleep(0)
    assert served == [wanted.id]


async def test_requests_without_tickets_take_no_more_than_their_room(provider):
    provider._matcher._requests = BoundedDict(16)
    for n in range(40):
        provider._requested(requested(provider, at_s=n))
    assert len(provider._matcher._requests) == 16


async def test_an_invented_epoch_makes_nobody_ask_relays_or_stores(provider):
    event = requested(provider)
    with pytest.raises(NoQuorum):
        await provider._admission.check(job.parse(event), markets.ring(1))
    assert provider._relays.fetched == 0


async def test_only_so_many_plans_are_checked_at_once(provider):
    never = asyncio.Event()

    async def check(*_: object) -> None:
        await never.wait()

    provider._admission.check = check  # type: ignore[method-assign]
    for n in range(service.MAX_ADMITTING + 10):
        event = requested(provider, at_s=n)
        provider._requested(event)
        provider._ticketed(ticket(event.id))
    await asyncio.sleep(0.05)
    assert provider._admitting == service.MAX_ADMITTING
    assert len(provider._relays.published) == 10
    for task in provider._running:
        task.cancel()


def test_a_request_with_more_partials_than_oracles_is_not_verified_further(provider):
    _, seats = committee(1)
    from tests.attacks.market.test_hostile_providers import ROOT

    share = beacon.Share(index=1, gamma="02" + "11" * 32, c=ROOT, s=ROOT).to_json()
    tags = [("c", ROOT), ("n", "epoch/1"), ("x", ROOT)]
    partials = tuple(sign_event(EVIL, kinds.BEACON, created_at=n, content=share, tags=tags) for n in range(5))
    with pytest.raises(TooLarge):
        provider._admission.glance(requested(provider, partials=partials), 1.0)
    assert len(seats) == 4


def test_a_request_that_was_served_is_not_served_again(provider):
    event = requested(provider)
    provider._admission.glance(event, 1.0)
    key = Key(event.id, PROVIDER.public, 0, 0)
    provider._admission._ledger.owe(Due(key, ME.public, 100, due_by_s=10**10))
    with pytest.raises(NotAllowed, match="served"):
        provider._admission.glance(event, 1.0)


async def test_a_snapshot_is_unpacked_once_for_all_jobs_of_an_epoch(provider, tmp_path, monkeypatch):
    from nodewire import market as market_module

    unpacked = []

    def note(blob, sha256):
        unpacked.append(sha256)
        yield
        return object()

    monkeypatch.setattr(market_module.snapshot, "unpacked", note)
    ref = await Blobs([], tmp_path).put(b"a snapshot")
    await asyncio.gather(*(provider._factory._public_record.snapshot(ref.sha256) for _ in range(20)))
    assert len(unpacked) == 1


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "9" * 400, '{"v":1}', '{"v":1,"plan":' + "[" * 900 + "]" * 900 + ',"partials":[]}',
     '{"v":1,"plan":{},"partials":[{"id":1}]}', '{"v":1,"plan":{"v":1,"k":1e400},"partials":[]}',
     '{"v":1,"plan":{"v":1,"k":NaN},"partials":[]}', '{"v":1,"plan":{"v":"\\u0000"},"partials":{}}'],
)  # fmt: skip
def test_a_malformed_request_is_a_typed_error(provider, content):
    event = sign_event(EVIL, kinds.INFERENCE, created_at=1, content=content, tags=[["p"], ["e"], ["nonce", "1", "²"]])
    for check in (lambda: job.parse(event), lambda: provider._admission.glance(event, 1.0)):
        with pytest.raises(NodewireError):
            check()


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"kind":28841}', "[" * 3000, '{"v":1,"request":' + "[" * 900]
)
def test_a_malformed_wrap_is_a_typed_error(provider, text):
    from nodewire.nostr.nips import nip44

    once = Keys.generate()
    for inner in (text, sign_event(EVIL, 13, created_at=1, content=text).to_json()):
        content = nip44.encrypt(inner or " ", nip44.derive_key(once, PROVIDER.public))
        wrap = sign_event(once, 21059, created_at=1, content=content, tags=[["p", PROVIDER.public]])
        with pytest.raises(NodewireError):
            provider._ticketed(wrap)
    with pytest.raises(NodewireError):
        provider._ticketed(sign_event(once, 21059, created_at=1, content=text))


@pytest.mark.parametrize(
    "content",
    [
        "x",
        '{"v":1,"request":"y"}',
        '{"v":1,"request":1e999,"params":{}}',
        '{"v":1,"params":' + '{"a":' * 900 + "1" + "}" * 901,
    ],
)
def test_a_malformed_ticket_is_a_typed_error(provider, content):
    rumor = nip59.rumor(EVIL.public, kinds.TICKET, created_at=1, content=content)
    with pytest.raises(NodewireError):
        provider._ticketed(nip59.wrap(rumor, EVIL, PROVIDER.public, now_s=1, ephemeral=True))


def test_a_plan_that_has_its_driver_guess_more_than_the_ad_takes_is_refused_at_a_glance(provider: Provider) -> None:
    most = provider._admission._lookahead
    provider._admission.glance(requested(provider, lookahead=most), 1.0)
    with pytest.raises(NotAllowed, match="lookahead"):
        provider._admission.glance(requested(provider, lookahead=most + 1), 1.0)
