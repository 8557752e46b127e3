"""Trainers' ads, rounds, their tickets and deliveries: built, signed, parsed back; altered ones refused by name."""

import pytest

from nodewire.errors import BadEvent, BadInput, BadTag, NodewireError
from nodewire.nostr import event as events
from nodewire.protocol import kinds
from nodewire.protocol.encoding import merkle
from nodewire.protocol.job import feedback
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.protocol import result, trainer_ad
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.result import DeliveryDetails
from nodewire.training.protocol.round import Round, RoundTicket, ShardAssignment
from nodewire.training.protocol.trainer_ad import Trainer
from tests.protocol import documents

ME, PROVIDER, OTHER = documents.CUSTOMER, documents.PROVIDERS[0], documents.PROVIDERS[1]
HASH, SALT = documents.HASH, "5a" * 32
RECIPE = {"v": 1, "family": {"name": "mlp", "widths": (8, 4)}}


def ad(**changes) -> Trainer:
    fields = {
        "name": "ada",
        "kinds": (8840, 8841),
        "families": ("mlp", "cnn"),
        "msat_per_pflop": 2_000_000,
        "least_msat": 5,
        "gflops": 50,
        "memory_bytes": 10**9,
        "most_bytes": 10**8,
        "concurrency": 2,
        "deposit_ppm": 250_000,
        "lnurl": "https://ada.example/pay",
    }
    return Trainer(**{**fields, **changes})


def ticket(**changes) -> RoundTicket:
    fields = {
        "request": "0" * 64,
        "index": 0,
        "salt": SALT,
        "recipe": RECIPE,
        "theta_key": "01" * 32,
        "theta_sha256": HASH,
        "shard_key": "02" * 32,
        "shard_sha256": HASH,
    }
    return RoundTicket(**{**fields, **changes})


def assigned(index: int, provider: str, **changes) -> ShardAssignment:
    fields = {
        "index": index,
        "provider": provider,
        "data": BlobRef(sha256=HASH, bytes=100),
        "steps": 20,
        "gflop": 3,
        "price_msat": 1_000,
        "deposit_msat": 250,
        "ticket": ticket(index=index).seal(),
    }
    return ShardAssignment(**{**fields, **changes})


def a_round(**changes) -> Round:
    fields = {
        "job": rounds.job_of(ME.public, SALT),
        "round": 3,
        "seal": rounds.seal_of(HASH, SALT),
        "theta": BlobRef(sha256="cd" * 32, bytes=5_000),
        "shards": (assigned(0, PROVIDER.public), assigned(1, OTHER.public)),
        "previous": "ee" * 32,
        "deadline_s": 60,
    }
    return Round(**{**fields, **changes})


def request(round_=None, drop=(), replace=(), kind=kinds.FEDAVG):
    said, content = rounds.tags_and_content(round_ or a_round(), relays=("ws://r",))
    replaced = dict(replace)
    said = [replaced.get(t[0], t) for t in said if t[0] not in drop]
    return events.sign(ME, kind, created_at=5, tags=said, content=content)


def test_a_trainers_ad_is_parsed_back():
    event = trainer_ad.build(PROVIDER, ad(), created_at=5)
    assert trainer_ad.parse(event) == ad()
    assert (event.values("k"), event.values("t")) == (["8840", "8841"], ["federated"])


@pytest.mark.parametrize("tag", ["d", "k", "t"])
def test_a_trainers_ad_without_one_of_its_tags_is_refused_by_name(tag):
    good = trainer_ad.build(PROVIDER, ad(), created_at=5)
    with pytest.raises(BadTag, match=tag):
        trainer_ad.parse(
            events.sign(
                PROVIDER, kinds.AD, created_at=5, content=good.content, tags=[t for t in good.tags if t[0] != tag]
            )
        )


def test_a_round_costs_what_its_work_does_and_never_less_than_the_least():
    assert [ad().price_msat(gflop) for gflop in (0, 1, 2, 3, 10**6)] == [5, 5, 5, 6, 2_000_000]
    assert ad().deposit_msat(1_001) == 251
    with pytest.raises(ValueError, match="lnurl"):
        ad(lnurl="")


def test_a_request_is_parsed_back():
    parsed = rounds.parse(request())
    assert (parsed.round, parsed.customer, parsed.kind) == (a_round(), ME.public, 8840)
    first = a_round(previous=None, round=0)
    assert rounds.parse(request(first, kind=kinds.DILOCO)).round == first
    assert (first.total_msat, first.shards[0].balance_msat) == (2_000, 750)
    assert first.find_assignment(OTHER.public) == first.shards[1]
    assert first.find_assignment(ME.public) is None


@pytest.mark.parametrize("tag", ["i", "bid", "p"])
def test_a_request_without_one_of_its_tags_is_refused_by_name(tag):
    with pytest.raises(BadTag, match=tag):
        rounds.parse(request(drop=(tag,)))


@pytest.mark.parametrize(("tag", "value"), [("bid", "7"), ("i", HASH), ("p", HASH)])
def test_a_tag_that_contradicts_the_round_is_refused_by_name(tag, value):
    with pytest.raises(BadTag, match=tag):
        rounds.parse(request(replace={tag: [tag, value, "blob"]}))


@pytest.mark.parametrize(
    "shards",
    [
        (),
        (assigned(1, PROVIDER.public), assigned(0, OTHER.public)),
        (assigned(0, PROVIDER.public), assigned(0, OTHER.public)),
        (assigned(0, PROVIDER.public), assigned(1, PROVIDER.public)),
        (assigned(0, PROVIDER.public, deposit_msat=1_001),),
    ],
)
def test_a_round_with_contradictory_shards_is_refused(shards):
    with pytest.raises(BadEvent, match="shards"):
        Round.from_document({**a_round().document(), "shards": tuple(s.document() for s in shards)})


def test_the_largest_request_fits_an_event():
    shards = tuple(
        assigned(4_095 - rounds.MAX_ASSIGNED + i, f"{i:064x}", price_msat=10**15, gflop=2**53 - 1, steps=2**24)
        for i in range(1, rounds.MAX_ASSIGNED + 1)
    )
    event = request(a_round(shards=shards))
    assert len(event.to_json()) < events.MAX_BYTES
    assert rounds.parse(events.parse(event.to_json())).round.shards == shards


@pytest.mark.parametrize("content", ["", "[]", '{"v":2}', '{"v":1}'])
def test_garbage_in_the_content_is_a_typed_error(content):
    with pytest.raises(NodewireError):
        rounds.parse(events.sign(ME, kinds.FEDAVG, created_at=5, tags=request().tags, content=content))


def test_a_ticket_opens_the_request_that_sealed_it():
    parsed = rounds.parse(request())
    good = RoundTicket.parse(ticket(request=parsed.id).to_json())
    assert rounds.check_ticket(good, parsed, HASH, PROVIDER.public) == parsed.round.shards[0]
    assert rounds.is_ticket(good.to_json())
    assert not rounds.is_ticket('{"v":1,"params":{}}')


@pytest.mark.parametrize(
    ("changes", "recipe", "provider", "field"),
    [
        ({"request": "0" * 64}, HASH, PROVIDER.public, "ticket"),
        ({"index": 1}, HASH, PROVIDER.public, "ticket"),
        ({"theta_key": HASH}, HASH, PROVIDER.public, "ticket"),
        ({}, HASH, OTHER.public, "ticket"),
        ({}, HASH, ME.public, "ticket"),
        ({}, "00" * 32, PROVIDER.public, "recipe"),
    ],
)
def test_any_other_ticket_is_refused(changes, recipe, provider, field):
    parsed = rounds.parse(request())
    with pytest.raises(BadInput, match=field):
        rounds.check_ticket(ticket(**{"request": parsed.id, **changes}), parsed, recipe, provider)


def test_a_ticket_of_another_customers_job_is_refused():
    other = rounds.parse(request(a_round(job=rounds.job_of(OTHER.public, SALT))))
    with pytest.raises(BadInput, match="salt"):
        rounds.check_ticket(ticket(request=other.id), other, HASH, PROVIDER.public)


def delivered(**changes) -> DeliveryDetails:
    fields = {
        "key": "03" * 32,
        "sha256": HASH,
        "bytes": 900,
        "samples": 640,
        "losses": (2_300_000, 1_900_000),
        "states": (HASH, "cd" * 32),
    }
    return DeliveryDetails(**{**fields, **changes})


def test_a_delivery_is_parsed_back():
    blob = BlobRef(sha256=HASH, bytes=916)
    event = result.build(
        PROVIDER,
        kinds.FEDAVG,
        HASH,
        ME.public,
        result.Goods(delivered().commitment(PROVIDER.public, HASH, 2, 0), blob, 750, "x"),
        created_at=5,
    )
    said = result.parse(event)
    assert event.kind == 6840
    assert (said.provider, said.request, said.customer, said.blob, said.amount_msat) == (
        PROVIDER.public,
        HASH,
        ME.public,
        blob,
        750,
    )
    assert said.commitment == DeliveryDetails.parse(delivered().to_json()).commitment(PROVIDER.public, HASH, 2, 0)
    for tag in ("e", "p", "x", "i", "amount"):
        without = [t for t in event.tags if t[0] != tag]
        with pytest.raises(BadTag, match=tag):
            result.parse(events.sign(PROVIDER, 6840, created_at=5, tags=without))


def test_a_commitment_is_its_authors_for_one_shard_of_one_request():
    made = delivered()
    others = {
        made.commitment(OTHER.public, HASH, 2, 0),
        made.commitment(PROVIDER.public, "00" * 32, 2, 0),
        made.commitment(PROVIDER.public, HASH, 2, 1),
        delivered(states=(HASH,)).commitment(PROVIDER.public, HASH, 2, 0),
        delivered(sha256="00" * 32).commitment(PROVIDER.public, HASH, 2, 0),
        delivered(carried=HASH).commitment(PROVIDER.public, HASH, 2, 0),
        delivered(carried="00" * 32).commitment(PROVIDER.public, HASH, 2, 0),
        made.commitment(PROVIDER.public, HASH, 3, 0),
        made.commitment(PROVIDER.public, HASH, 2, 0),
    }
    assert len(others) == 9
    assert merkle.root([]) != merkle.root([merkle.leaf(bytes.fromhex(HASH))])


def test_the_largest_delivery_fits_an_event():
    most = delivered(states=(HASH,) * result.MAX_STATES, losses=(2**53 - 1,) * 64)
    assert len(most.to_json()) <= DeliveryDetails.MAX_BYTES


def test_feedback_names_the_kind_of_its_request_and_may_carry_a_ciphertext():
    said = feedback.parse(
        feedback.build(
            PROVIDER,
            HASH,
            ME.public,
            "partial",
            created_at=5,
            kind=kinds.DILOCO,
            remarks=feedback.Remarks(ciphertext="only for the customer"),
        )
    )
    assert (said.kind, said.ciphertext) == (8841, "only for the customer")
    assert feedback.parse(feedback.build(PROVIDER, HASH, ME.public, "busy", created_at=5)).kind == kinds.INFERENCE
