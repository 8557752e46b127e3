"""Outer steps as documents, and which of them a provider takes: sealed, within its means, at its price."""

from __future__ import annotations

import time

import pytest

from kinds.k8840 import KIND as FEDAVG
from kinds.k8842 import KIND as OUTER
from nodewire.errors import (
    BadEvent,
    BadInput,
    BadRecipe,
    BadTag,
    NodewireError,
    NotAllowed,
    OverMemory,
    PaymentRequired,
    TooLarge,
)
from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip59
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol import kinds
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.protocol import outer_step
from nodewire.training.protocol import recipe as recipes
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.outer_step import MAX_INPUTS, Input, Optimization, OuterDeliveryDetails, OuterTicket
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.round import BALANCE
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.provider.admission import TrainingAdmission
from nodewire.training.provider.store import KeptShards
from tests.kinds.digits import RECIPE

ME, CUSTOMER, STRANGER = (Keys(bytes([i]) * 32) for i in (1, 2, 3))
SALT, HASH = "5a" * 32, "ab" * 32
NESTEROV = RECIPE.model_copy(update={"outer": recipes.Outer(method="nesterov", momentum="0.9")})
AD = Trainer(
    name="oona",
    kinds=(8842,),
    families=("mlp",),
    msat_per_pflop=0,
    least_msat=1_000,
    gflops=10,
    memory_bytes=10**8,
    most_bytes=10**5,
    concurrency=1,
    deposit_ppm=250_000,
    lnurl="https://oona.example",
)


def blob(size: int = 10_000, number: int = 0) -> BlobRef:
    return BlobRef(sha256=f"{number:064x}", bytes=size)


def an_input(number: int, size: int = 1_000) -> Input:
    return Input(result=f"{number + 1:064x}", index=number, weight=640, update=blob(size, number))


def request(
    recipe: Recipe = NESTEROV, by: Keys = CUSTOMER, relays=(), replace=(), **changes
) -> tuple[Event, OuterTicket]:
    """A request for one step; `changes` are of the ticket or the step, `replace` pairs of a tag and another one."""
    ticket = {
        "request": "0" * 64,
        "salt": SALT,
        "recipe": recipe.document(),
        "theta_key": HASH,
        "theta_sha256": HASH,
        "momenta_key": HASH,
        "momenta_sha256": HASH,
        "opens": ((HASH, HASH),) * 2,
    }
    opened = OuterTicket(**ticket | {name: value for name, value in changes.items() if name in ticket})
    step = {
        "job": rounds.job_of(by.public, SALT),
        "round": 1,
        "seal": rounds.seal_of(recipe.digest(), SALT),
        "provider": ME.public,
        "theta": blob(number=7),
        "momenta": blob(number=8),
        "inputs": (an_input(0), an_input(1)),
        "gflop": 1,
        "price_msat": 1_000,
        "deposit_msat": 250,
        "ticket": opened.seal(),
        "deadline_s": 60,
    }
    made = Optimization(**step | {name: value for name, value in changes.items() if name in step})
    tags, content = outer_step.tags_and_content(made, relays=relays)
    tags = [next((list(new) for old, new in replace if old == tag[0]), tag) for tag in tags]
    event = events.sign(by, kinds.OUTER, created_at=int(time.time()), tags=tags, content=content)
    return event, opened.model_copy(update={"request": event.id})


@pytest.fixture
def ledger():
    opened = Ledger(":memory:")
    yield opened
    opened.close()


def admit(ledger: Ledger, event: Event, ticket: OuterTicket, ad: Trainer = AD):
    admission = TrainingAdmission(ME.public, ad, {8840: FEDAVG, 8842: OUTER}, ledger)
    return admission.check_outer(admission.glance(event, time.time()), ticket)


def test_a_good_request_is_taken(ledger):
    job = admit(ledger, *request())
    assert (job.recipe, job.assigned.balance_msat) == (NESTEROV, 750)
    assert job.key(BALANCE) == Key(job.request.id, ME.public, BALANCE)
    assert OuterTicket.parse(job.ticket.to_json()) == job.ticket
    assert outer_step.is_ticket(job.ticket.to_json()) and rounds.is_ticket(job.ticket.to_json())


def test_before_the_first_round_there_are_no_momenta(ledger):
    assert admit(ledger, *request(momenta=None, momenta_key=None, momenta_sha256=None)).assigned.momenta is None
    with pytest.raises(NotAllowed, match="average has none"):
        admit(ledger, *request(recipe=RECIPE))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"provider": STRANGER.public}, NotAllowed),
        ({"round": 3}, NotAllowed),
        ({"gflop": 0}, PaymentRequired),
        ({"price_msat": 999}, PaymentRequired),
        ({"deposit_msat": 249}, PaymentRequired),
        ({"theta": blob(50_000, 7)}, TooLarge),
        ({"momenta": blob(50_000, 8)}, TooLarge),
        ({"inputs": (an_input(0), an_input(1, 50_000))}, TooLarge),
        ({"inputs": (an_input(0),)}, BadInput),
        ({"momenta": None}, BadInput),
        ({"momenta_key": None}, BadInput),
        ({"seal": HASH}, BadInput),
        ({"job": HASH}, BadInput),
        ({"ticket": HASH}, BadInput),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_anything_else_is_refused(ledger, changes, error):
    with pytest.raises(error):
        admit(ledger, *request(**changes))


def test_what_this_provider_does_not_serve_or_hold_is_refused(ledger):
    with pytest.raises(NotAllowed, match="family"):
        admit(ledger, *request(), ad=AD.model_copy(update={"families": ("cnn",)}))
    with pytest.raises(NotAllowed, match="kind"):
        admit(ledger, *request(), ad=AD.model_copy(update={"kinds": (8840,)}))
    with pytest.raises(OverMemory):
        admit(ledger, *request(), ad=AD.model_copy(update={"memory_bytes": outer_step.memory_bytes(NESTEROV, 2) - 1}))


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("bid", ["bid", "999"]),
        ("p", ["p", STRANGER.public]),
        ("i", ["i", HASH, "blob"]),
        ("i", ["i", HASH, "job", ""]),
        ("relays", ["relays", *("wss://relay.example",) * 40]),
    ],
)
def test_a_tag_that_contradicts_the_step_is_refused_by_name(tag, value):
    event, _ = request(replace=[(tag, value)])
    with pytest.raises(BadTag) as caught:
        outer_step.parse(event)
    assert caught.value.field == tag


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (an_input(1), an_input(0))},
        {"inputs": (an_input(0), an_input(0))},
        {"inputs": ()},
        {"deposit_msat": 1_001},
    ],
)
def test_a_step_that_contradicts_itself_is_none(changes):
    good = Optimization.parse(request()[0].content).document()
    with pytest.raises(BadEvent):
        Optimization.from_document(
            good | {k: v if k == "deposit_msat" else tuple(i.document() for i in v) for k, v in changes.items()}
        )


def test_the_largest_request_and_its_ticket_fit_events():
    many = tuple(an_input(i, 10**9) for i in range(MAX_INPUTS))
    event, ticket = request(
        inputs=many, opens=((HASH, HASH),) * MAX_INPUTS, relays=[f"wss://{'r' * 40}.example/{i}" for i in range(8)]
    )
    assert len(event.to_json()) < events.MAX_BYTES
    assert outer_step.parse(event).round.inputs == many
    rumor = nip59.rumor(CUSTOMER.public, kinds.TICKET, created_at=0, content=ticket.to_json())
    assert len(nip59.wrap(rumor, CUSTOMER, ME.public, now_s=0, ephemeral=True).to_json()) < events.MAX_BYTES


def test_the_recipes_of_rounds_are_of_the_other_kinds():
    for recipe in (RECIPE, NESTEROV):
        with pytest.raises(BadRecipe):
            OUTER.check(recipe)


def test_a_result_is_parsed_back_and_its_commitment_is_its_authors():
    opening = OuterDeliveryDetails(theta_key=HASH, theta_sha256=HASH, root=HASH)
    said = opening.commitment(ME.public, HASH, 1)
    others = {opening.commitment(STRANGER.public, HASH, 1), opening.commitment(ME.public, SALT, 1)}
    others |= {opening.commitment(ME.public, HASH, 2)}
    assert len(others | {said}) == 4
    for momenta in (None, blob(20, 2)):
        goods = outer_step.StepGoods(said, blob(), momenta, 750, "c")
        event = outer_step.build(ME, HASH, CUSTOMER.public, goods, created_at=1)
        delivered = outer_step.parse_result(event)
        assert (delivered.provider, delivered.commitment, delivered.amount_msat) == (ME.public, said, 750)
        assert (delivered.theta, delivered.momenta) == (blob(), momenta)
    with pytest.raises(BadEvent):
        outer_step.parse_result(request()[0])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"v": 2}', "x" * 50_000])
def test_garbage_is_a_typed_error(content):
    with pytest.raises(NodewireError):
        outer_step.parse(events.sign(CUSTOMER, kinds.OUTER, created_at=1, tags=[], content=content))


def test_work_and_memory_grow_with_the_results():
    big = NESTEROV.model_copy(
        update={"family": NESTEROV.family.model_copy(update={"inputs": 2**20, "hidden": (2**10,)})}
    )
    assert outer_step.work_gflop(NESTEROV, 2) == 1
    assert outer_step.work_gflop(big, 8) == -(-big.trained() * (20 + 8 * 4) // 10**9) > outer_step.work_gflop(big, 4)
    assert outer_step.memory_bytes(big, 8) - outer_step.memory_bytes(big, 4) == 4 * (4 * big.trained() + 32 * 2**18)


def test_a_provider_that_dies_finds_steps_and_shards_again(tmp_path):
    event, ticket = request()
    kept = KeptShards(tmp_path / "shards.db")
    kept.begun(event, ticket)
    kept.close()
    again = KeptShards(tmp_path / "shards.db")
    (found,) = again.all()
    again.close()
    assert (found.event.id, found.ticket, found.delivered) == (event.id, ticket, False)
