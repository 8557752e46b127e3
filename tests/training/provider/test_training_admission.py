"""What a provider takes of training: sealed, within its means, at its price, and paid for in advance or before."""

from __future__ import annotations

import asyncio
import time

import pytest

from kinds.k8840 import KIND as FEDAVG
from kinds.k8841 import KIND as DILOCO
from nodewire.errors import (
    BadInput,
    BadRecipe,
    BadTag,
    NotAllowed,
    OverMemory,
    PaymentRequired,
    TooLarge,
    Unsupported,
)
from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning.wallet import Receipt
from nodewire.protocol.job import feedback
from nodewire.protocol.model.manifest import BlobRef
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.protocol import initial_weights
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.recipe import Audit, Compression, Outer, Recipe
from nodewire.training.protocol.round import BALANCE, DEPOSIT, Round, RoundTicket, ShardAssignment
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.provider.admission import TrainingAdmission
from nodewire.training.provider.carried_store import CarriedFiles
from nodewire.training.provider.paid_job import RunResources
from nodewire.training.provider.shard_job import ShardRun
from nodewire.training.provider.undelivered_results import MadeResults
from tests.kinds.digits import RECIPE
from tests.training.engine import recipes

ME, CUSTOMER, STRANGER = (Keys(bytes([i]) * 32) for i in (1, 2, 3))
SALT, HASH = "5a" * 32, "ab" * 32
AD = Trainer(
    name="ada",
    kinds=(8840, 8841),
    families=("mlp",),
    msat_per_pflop=0,
    least_msat=1_000,
    gflops=10,
    memory_bytes=10**7,
    most_bytes=10**5,
    concurrency=1,
    deposit_ppm=250_000,
    lnurl="https://ada.example",
)


def request(recipe: Recipe = RECIPE, kind: int = 8840, by: Keys = CUSTOMER, **changes) -> tuple[Event, RoundTicket]:
    """A request for one shard of this provider, and its ticket; `changes` are of the shard's row or the round."""
    ticket = RoundTicket(
        request="0" * 64,
        index=0,
        salt=SALT,
        recipe=recipe.document(),
        theta_key=HASH,
        theta_sha256=HASH,
        shard_key=HASH,
        shard_sha256=HASH,
        start_key=changes.get("start_key"),
    )
    row = {
        "index": 0,
        "provider": ME.public,
        "data": BlobRef(sha256=HASH, bytes=10_000),
        "steps": recipe.steps,
        "gflop": 1,
        "price_msat": 1_000,
        "deposit_msat": 250,
        "ticket": ticket.seal(),
    }
    whole = {
        "job": rounds.job_of(by.public, SALT),
        "round": 0,
        "seal": rounds.seal_of(recipe.digest(), SALT),
        "theta": BlobRef(sha256=HASH, bytes=10_000),
        "deadline_s": 60,
    }
    row |= {name: value for name, value in changes.items() if name in row}
    whole |= {name: value for name, value in changes.items() if name in whole or name in ("previous", "start")}
    tags, content = rounds.tags_and_content(Round(shards=(ShardAssignment(**row),), **whole), relays=())
    event = events.sign(by, kind, created_at=int(changes.get("at", time.time())), tags=tags, content=content)
    return event, ticket.model_copy(update={"request": event.id})


@pytest.fixture
def ledger():
    opened = Ledger(":memory:")
    yield opened
    opened.close()


def admit(ledger: Ledger, event: Event, ticket: RoundTicket, ad: Trainer = AD):
    admission = TrainingAdmission(ME.public, ad, {8840: FEDAVG, 8841: DILOCO}, ledger)
    return admission.check(admission.glance(event, time.time()), ticket)


def test_a_good_request_is_taken(ledger):
    job = admit(ledger, *request())
    assert (job.recipe, job.assigned.index, job.kind.request) == (RECIPE, 0, 8840)
    assert job.key(BALANCE) == Key(job.request.id, ME.public, BALANCE)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"provider": STRANGER.public}, NotAllowed),
        ({"at": time.time() - 1_000}, NotAllowed),
        ({"round": 3}, NotAllowed),
        ({"steps": 21}, NotAllowed),
        ({"gflop": 0}, PaymentRequired),
        ({"price_msat": 999}, PaymentRequired),
        ({"deposit_msat": 249}, PaymentRequired),
        ({"theta": BlobRef(sha256=HASH, bytes=50_000)}, TooLarge),
        ({"data": BlobRef(sha256=HASH, bytes=100_001)}, TooLarge),
        ({"data": BlobRef(sha256=HASH, bytes=10**7)}, OverMemory),
        ({"seal": HASH}, BadInput),
        ({"job": HASH}, BadInput),
        ({"ticket": HASH}, BadInput),
        ({"kind": 8841}, BadRecipe),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_anything_else_is_refused(ledger, changes, error):
    with pytest.raises(error):
        admit(ledger, *request(**changes))


def test_what_this_provider_does_not_train_is_refused(ledger):
    with pytest.raises(NotAllowed, match="family"):
        admit(ledger, *request(), ad=AD.model_copy(update={"families": ("cnn",)}))
    with pytest.raises(NotAllowed, match="kind"):
        admit(ledger, *request(), ad=AD.model_copy(update={"kinds": (8841,)}))
    with pytest.raises(BadTag, match="nonce"):
        admit(ledger, *request(), ad=AD.model_copy(update={"pow_bits": 20}))


def test_a_diloco_recipe_is_of_the_other_kind(ledger):
    recipe = RECIPE.model_copy(update={"outer": Outer(method="nesterov")})
    assert admit(ledger, *request(recipe, kind=8841)).kind.request == 8841
    with pytest.raises(BadRecipe, match="outer"):
        admit(ledger, *request(recipe, kind=8840))


@pytest.mark.parametrize("form", [{"method": "int4", "error_feedback": "1.0"}, {"fragments": 2}])
def test_what_is_carried_from_round_to_round_must_be_audited(ledger, form):
    recipe = RECIPE.model_copy(update={"compression": Compression(**form)})
    assert admit(ledger, *request(recipe)).recipe == recipe
    with pytest.raises(Unsupported, match="fraction"):
        admit(ledger, *request(recipe.model_copy(update={"audit": Audit(fraction="0.0")})))


def adapted() -> tuple[Recipe, dict[str, object]]:
    """A recipe with an adapter, and what a request for it says besides."""
    plain = recipes.recipe("encoder")
    ref = BlobRef(sha256=HASH, bytes=initial_weights.file_bytes(plain.family.shapes()))
    document = recipes.recipe("encoder-lora").document()
    document["family"] |= {"start": ref.document()}
    sealed = BlobRef(sha256=SALT, bytes=sealed_bytes(ref.bytes))
    theta = BlobRef(sha256=HASH, bytes=5_000)
    return Recipe.from_document(document), {"start": sealed, "start_key": HASH, "theta": theta}


def test_frozen_weights_are_taken_where_an_adapter_needs_them_and_nowhere_else(ledger):
    ad = AD.model_copy(update={"families": ("encoder", "mlp")})
    recipe, frozen = adapted()
    job = admit(ledger, *request(recipe, **frozen), ad=ad)
    assert job.start_sha256 == HASH
    for wrong, error in (
        ({"start": None}, BadInput),
        ({"start_key": None}, BadInput),
        ({"start": BlobRef(sha256=SALT, bytes=frozen["start"].bytes - 1)}, BadInput),
        ({"start": BlobRef(sha256=SALT, bytes=2**40)}, BadInput),
    ):
        with pytest.raises(error, match="start"):
            admit(ledger, *request(recipe, **frozen | wrong), ad=ad)
    with pytest.raises(BadInput, match="freezes nothing"):
        admit(ledger, *request(**frozen), ad=ad)
    small = ad.model_copy(update={"most_bytes": frozen["start"].bytes - 1})
    with pytest.raises(TooLarge, match="start"):
        admit(ledger, *request(recipe, **frozen), ad=small)
    # A size that the model's tensors do not have: nothing of it is fetched.
    document = recipe.document()
    document["family"] |= {"start": {"sha256": HASH, "bytes": 2**40}}
    with pytest.raises(BadRecipe, match=r"family\.start"):
        admit(ledger, *request(Recipe.from_document(document), **frozen), ad=ad)


def test_who_owes_or_was_served_is_refused(ledger):
    event, ticket = request()
    ledger.owe(Due(Key(event.id, ME.public, BALANCE), CUSTOMER.public, 750, int(time.time()) + 60))
    with pytest.raises(NotAllowed, match="served"):
        admit(ledger, event, ticket)
    ledger.owe(Due(Key(HASH, ME.public, BALANCE), CUSTOMER.public, 750, int(time.time()) - 1))
    with pytest.raises(PaymentRequired, match="unpaid"):
        admit(ledger, *request(steps=10))


def test_the_round_before_stands_for_a_deposit_if_this_customer_owed_it(ledger):
    admission = TrainingAdmission(ME.public, AD, {8840: FEDAVG}, ledger)
    job = admit(ledger, *request(round=1, previous="cd" * 32, deposit_msat=0))
    assert not admission.has_deposit(job.assigned)
    with pytest.raises(PaymentRequired):
        admission.before(job)
    ledger.owe(Due(Key("cd" * 32, ME.public, BALANCE), STRANGER.public, 1_000, 0))
    with pytest.raises(PaymentRequired, match="another"):
        admission.before(job)


def pay(ledger: Ledger, key: Key) -> None:
    """As if this provider's wallet had said so."""
    preimage, hash_ = "11" * 32, events.hashlib.sha256(bytes.fromhex("11" * 32)).hexdigest()
    ledger.quoted(Quote(key, hash_, "{}", "lnbc"))
    ledger.settled(Receipt("1", hash_, preimage, ledger.due(key).amount_msat, int(time.time())), "w")


def a_run(ledger: Ledger, tmp_path, published: list[Event], patience_s: float) -> ShardRun:
    async def publish(event: Event) -> None:
        published.append(event)

    job = admit(ledger, *request())
    return ShardRun(
        job,
        RunResources(ME, None, ledger, publish, tmp_path, patience_s),
        carried=CarriedFiles(tmp_path / "carried", 10**6),
        made=MadeResults(tmp_path / "made"),
    )


async def test_work_waits_for_the_deposit_in_this_providers_own_wallet(ledger, tmp_path):
    published: list[Event] = []
    run = a_run(ledger, tmp_path, published, 20.0)
    waiting = asyncio.create_task(run.deposit())
    while not published:
        await asyncio.sleep(0)
    said = feedback.parse(published[0])
    assert (said.status, said.kind, said.due.amount_msat, said.due.chunk) == ("payment-required", 8840, 250, DEPOSIT)
    await run.paid()  # of something else
    await asyncio.sleep(0)
    assert not waiting.done()
    pay(ledger, run.job.key(DEPOSIT))
    await run.paid()
    await waiting
    await run.deposit()  # after a crash: paid once is paid
    assert len(published) == 1


async def test_a_deposit_that_never_comes_ends_it_and_is_no_debt(ledger, tmp_path):
    run = a_run(ledger, tmp_path, [], 0.02)
    with pytest.raises(PaymentRequired, match="deposit"):
        await run.deposit()
    assert not ledger.in_debt(CUSTOMER.public, time.time() + 10**9)
