"""Writes tests/vectors/examples1.json anew: `python -m tests.protocol.make_examples`.

These are the examples of nips/ that documents1.json does not hold: what a customer, a provider, an oracle or a splice
says in one job, and in one training. Keys follow from names, times and nonces are fixed: the same bytes come out on
every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodewire.nostr.event import Event, sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44, nip61
from nodewire.pay.ecash.proofs import Lock, Proof
from nodewire.pay.nutzaps import authorship
from nodewire.protocol import kinds
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job import feedback, result
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.feedback import Due, ErrorDetail
from nodewire.protocol.job.result import ResultDetails
from nodewire.protocol.job.share_statement import ShareStatement
from nodewire.protocol.market import ad_profile, bond, splice_ad
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.ad_profile import PublishedFit, PublishedProfile, PublishedRate, PublishedTask
from nodewire.protocol.market.splice_ad import Splice
from nodewire.protocol.market.static_swarm import RollCall, Swarm, SwarmNode
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors import mxint8
from nodewire.protocol.tensors.frame import MXINT8, Array, Frame
from nodewire.protocol.verification import complaint
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification.sample import JobSamples, Sample
from nodewire.training.protocol import audit, outer_step, round_close, trainer_ad
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.outer_step import Input, Optimization
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails
from nodewire.training.protocol.round import Round, RoundTicket, ShardAssignment
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.wire.evidence.pull import Want
from nodewire.wire.nat.offer import Offer
from nodewire.wire.transport import identity
from tests.protocol.committee.actors import digest, keys

VECTORS = Path(__file__).parent.parent / "vectors" / "examples1.json"
AT_S = 1_800_000_020
CUSTOMER, DRIVER, STAGE, VERIFIER = (keys(name) for name in ("customer", "driver", "stage", "verifier"))
ORACLE, HOLDER, RELAYED = (keys(name) for name in ("oracle", "holder", "splice"))
REQUEST, COMMITTEE = digest("request"), digest("committee")
CERTIFICATE = b"certificate of the listener, DER"
RELAY = "wss://relay.example"
RECIPE = """
name = "digits"
loss = "cross_entropy"
steps = 12
batch = 32
rounds = 20
[family]
name = "mlp"
inputs = 64
hidden = [128]
classes = 10
[data]
layout = "arrays"
[inner]
optimizer = "sgd"
lr = 0.1
momentum = 0.9
"""


def text() -> str:
    """The whole file."""
    return json.dumps(vectors(), indent=1, sort_keys=True) + "\n"


def vectors() -> dict[str, Any]:
    told = {"shares": _shares(), **_generation(), **_verification(), **_reach(), **_training()}
    return {name: one.as_dict() if isinstance(one, Event) else one for name, one in told.items()}


def _shares() -> dict[str, Any]:
    said = ShareStatement.sign(CUSTOMER, request=REQUEST, holder=HOLDER.public, chunk=4, shares=(3, 3, 4)).document()
    unsigned = {name: value for name, value in said.items() if name != "sig"}
    encoded = canonical.encode(unsigned)
    return {
        "document": said,
        "signed_bytes": encoded.hex(),
        "hash": canonical.tagged_hash(ShareStatement.TAG, encoded).hex(),
    }


def _generation() -> Mapping[str, Any]:
    prompt = Frame("prompt", 0, (Array("uint8", (5,), b"Hello"),))
    ticket = job.Ticket(
        request=REQUEST,
        params={"max_tokens": 64, "temperature": 0.7, "positions": 128},
        salt=digest("salt"),
        inputs=(("prompt", 0, job.content_of(prompt)),),
    )
    close = Close.sign(DRIVER, request=REQUEST, attempt=0, chunk=0, units=1, end=False)
    due = Due(chunk=0, attempt=0, units=1, amount_msat=29, root=digest("claim"), close=close)
    roots = [ChunkRoot(request=REQUEST, task="driver", chunk=n, attempt=0, root=digest(f"root {n}")) for n in (0, 1)]
    refused = ErrorDetail(field="max_tokens", reason="above the manifest's context")
    said = ResultDetails(frames=65, compute_us=(900, 61_000))
    of = (DRIVER, REQUEST, CUSTOMER.public)
    return {
        "ticket": {"document": ticket.document(), "prompt": prompt.tensors[0].data.hex(), "seal": ticket.seal()},
        "payment_required": feedback.build(*of, "payment-required", created_at=AT_S, due=due),
        "error": feedback.build(
            *of,
            "error",
            created_at=AT_S,
            remarks=feedback.Remarks(text="bad-input", ciphertext=_sealed(DRIVER, refused.to_json())),
        ),
        "error_said": refused.document(),
        "result": result.build(*of, roots, _sealed(DRIVER, said.to_json()), created_at=AT_S),
        "result_said": said.document(),
        **_nutzap(),
        "swarm": _swarm(),
        "mxint8": _mxint8(),
        "measured": _measured(),
    }


def _nutzap() -> dict[str, Any]:
    mint, lock, salt = "https://mint.example", keys("lock"), digest("nutzap salt")
    taken = nip61.build_info(DRIVER, relays=[RELAY], mints=[(mint, "sat")], pubkey=lock.public, created_at=AT_S)
    one = Lock((lock.public,), is_sig_all=False)
    secrets = [one.secret(authorship.nonce(CUSTOMER.public, salt, number)) for number in range(2)]
    dleq = (digest("e"), digest("s"), digest("r"))
    proofs = [
        Proof(amount, "00d0a1b24d1c1a53", secret, f"02{digest('C')}", dleq)
        for amount, secret in zip((1, 4), secrets, strict=True)
    ]
    made = nip61.build(
        CUSTOMER,
        nip61.parse_info(taken),
        mint,
        [json.dumps(proof.as_dict(), separators=(",", ":")) for proof in proofs],
        created_at=AT_S + 1,
        event=REQUEST,
        others=[["chunk", "0"], ["attempt", "0"], ["salt", salt]],
    )
    preimage = authorship.preimage(secrets)
    paid = {"preimage": preimage, "payment_hash": authorship.payment_hash(nip61.parse(made))}
    return {"nutzap_info": taken, "nutzap": made, "nutzap_payment": paid}


def _swarm() -> dict[str, Any]:
    nodes = (SwarmNode(public=DRIVER.public, layers=(0, 11)), SwarmNode(public=STAGE.public, layers=(12, 23)))
    swarm = Swarm(name="home", context=4_096, slots=2, driver=DRIVER.public, nodes=nodes)
    called = RollCall(swarm=swarm.digest(), manifest=digest("manifest"))
    return {
        "document": swarm.document(),
        "digest": swarm.digest(),
        "address": swarm.address,
        "roll_call": called.document(),
    }


def _measured() -> list[list[str]]:
    manifest, task = digest("manifest"), PublishedTask(peak_bytes=33_000_000, us=1_800, positions=64, us_together=9_100)
    held = ManifestOffer(
        manifest=manifest, tasks=(TaskOffer(task="stage.0", price_msat=37, us_per_position=2_000),), slots=2
    )
    profile = PublishedProfile(
        at_s=AT_S,
        rates={"float32": PublishedRate(90 * 10**9, 12 * 10**9)},
        fit=PublishedFit(call_us=140, slower=3.0, within=1.25),
        tasks={(manifest, "stage.0"): task},
    )
    return [list(tag) for tag in ad_profile.build(profile, Ad(name="stage", manifests=(held,)))]


def _mxint8() -> dict[str, Any]:
    sent = bytes.fromhex("8540fd0000")
    return {"sent": sent.hex(), "shape": [4], "numbers": mxint8.numbers(Array(MXINT8, (4,), sent)).tolist()}


def _verification() -> Mapping[str, Any]:
    at = {"provider": STAGE.public, "request": REQUEST, "task": "stage.0", "chunk": 2, "attempt": 0}
    sample = Sample(**at, root=digest("root stage"), verifiers=(VERIFIER.public,))
    sampled = JobSamples(committee=COMMITTEE, epoch=7, certificate=digest("body"), request=REQUEST, samples=(sample,))
    claim = feedback.build(
        *(STAGE, REQUEST, CUSTOMER.public, "payment-required"),
        created_at=AT_S,
        due=Due(chunk=2, attempt=0, units=1, amount_msat=37, root=digest("claim stage")),
    )
    want = Want(what="opening", request=REQUEST, task="stage.0", attempt=0, first=2, last=2, epoch=7)
    nonce = bytes(range(16))
    return {
        "sampled": verification.build(ORACLE, sampled, created_at=AT_S),
        "sample_key": sample.key,
        "complaint": complaint.build(CUSTOMER, COMMITTEE, claim, created_at=AT_S + 40),
        "complaint_case": complaint.case_key(STAGE.public, REQUEST, claim.id),
        "bond": bond.build(HOLDER, STAGE.public, 5_000_000, expires_at_s=AT_S + 3_600, created_at=AT_S),
        "want": {
            "document": want.document(),
            "puller": ORACLE.public,
            "holder": STAGE.public,
            "nonce": nonce.hex(),
            "job": canonical.digest(Want.TAG, [want.document(), ORACLE.public, STAGE.public, nonce]),
        },
    }


def _reach() -> Mapping[str, Any]:
    ad = Splice(name="meeting", at=("splice.example:7447",), bytes_per_s=10**7, most_bytes=2**33, region="eu")
    offer = Offer(
        type="offer",
        session=digest("session"),
        room=digest("room"),
        splice=f"splice:{RELAYED.public}@splice.example:7447",
        places=("203.0.113.7:40112",),
        splice_ms=31,
        expires_s=AT_S + 30,
    )
    return {
        "splice": splice_ad.build(RELAYED, ad, created_at=AT_S),
        "splice_request": splice_ad.request(
            STAGE, RELAYED.public, salt=digest("salt")[:16], now_s=AT_S, room=digest("room")
        ),
        "offer": offer.document(),
        "wire_auth": identity.auth(DRIVER, STAGE.public, CERTIFICATE, AT_S),
        "wire_auth_certificate": CERTIFICATE.hex(),
    }


def _training() -> Mapping[str, Any]:
    recipe, salt = Recipe.from_toml(RECIPE), digest("training")
    ticket = _round_ticket(recipe, salt)
    round_ = _round(recipe, salt, ticket)
    tags, content = rounds.tags_and_content(round_, relays=(RELAY,))
    request = sign(CUSTOMER, kinds.FEDAVG, created_at=AT_S, tags=tags, content=content)
    details = _delivery_details(recipe)
    commitment = details.commitment(STAGE.public, request.id, 0, 0)
    goods = delivery.Goods(commitment, _blob("update ciphertext"), 750, _sealed(STAGE, details.to_json()))
    come = delivery.build(STAGE, kinds.FEDAVG, request.id, CUSTOMER.public, goods, created_at=AT_S + 20)
    counted = round_close.CountedResult(
        request=request.id, provider=STAGE.public, index=0, result=come.id, commitment=commitment
    )
    close = round_close.build(
        CUSTOMER,
        kinds.FEDAVG,
        round_close.Close(job=round_.job, round=0, nonce=digest("nonce"), results=(counted,)),
        created_at=AT_S + 25,
    )
    return {
        "recipe": {"document": recipe.document(), "digest": recipe.digest()},
        "trainer": trainer_ad.build(STAGE, _trainer(), created_at=AT_S, expires_at_s=AT_S + 600),
        "round": request,
        "round_ticket": ticket.document(),
        "delivery": come,
        "delivered": details.document(),
        "round_close": close,
        "snapshots_asked": audit.ask(
            CUSTOMER, kinds.FEDAVG, request.id, STAGE.public, close.id, (1, 2), created_at=AT_S + 26
        ),
        "outer": _outer(recipe, round_, come.id, details.samples),
    }


def _trainer() -> Trainer:
    return Trainer(
        name="ada",
        kinds=(kinds.FEDAVG, kinds.DILOCO),
        families=("mlp",),
        msat_per_pflop=2_000_000,
        least_msat=1_000,
        gflops=50,
        memory_bytes=10**9,
        most_bytes=10**8,
        concurrency=2,
        deposit_ppm=250_000,
        lnurl="https://ada.example/pay",
    )


def _round_ticket(recipe: Recipe, salt: str) -> RoundTicket:
    return RoundTicket(
        request="00" * 32,
        index=0,
        salt=salt,
        recipe=recipe.document(),
        theta_key=digest("theta key"),
        theta_sha256=digest("theta"),
        shard_key=digest("shard key"),
        shard_sha256=digest("shard"),
    )


def _round(recipe: Recipe, salt: str, ticket: RoundTicket) -> Round:
    assigned = ShardAssignment(
        index=0,
        provider=STAGE.public,
        data=_blob("shard ciphertext"),
        steps=recipe.steps,
        gflop=rounds.work_gflop(recipe, recipe.steps),
        price_msat=1_000,
        deposit_msat=250,
        ticket=ticket.seal(),
    )
    return Round(
        job=rounds.job_of(CUSTOMER.public, salt),
        round=0,
        seal=rounds.seal_of(recipe.digest(), salt),
        theta=_blob("theta ciphertext"),
        shards=(assigned,),
        deadline_s=60,
    )


def _delivery_details(recipe: Recipe) -> DeliveryDetails:
    return DeliveryDetails(
        key=digest("update key"),
        sha256=digest("update"),
        bytes=38_000,
        samples=recipe.steps * recipe.batch,
        losses=(2_301_000, 1_874_000),
        states=(digest("state 1"), digest("state 2")),
    )


def _outer(recipe: Recipe, round_: Round, result: str, samples: int) -> Event:
    """A request for the outer step that follows from one result of a round."""
    step = Optimization(
        job=round_.job,
        round=round_.round,
        seal=round_.seal,
        provider=DRIVER.public,
        theta=round_.theta,
        inputs=(Input(result=result, index=0, weight=samples, update=_blob("update ciphertext")),),
        gflop=outer_step.work_gflop(recipe, 1),
        price_msat=1_000,
        deposit_msat=250,
        ticket=digest("outer ticket"),
        deadline_s=60,
    )
    tags, content = outer_step.tags_and_content(step, relays=(RELAY,))
    return sign(CUSTOMER, kinds.OUTER, created_at=AT_S + 30, tags=tags, content=content)


def _blob(name: str) -> BlobRef:
    return BlobRef(sha256=digest(name), bytes=40_000)


def _sealed(author: Keys, plaintext: str) -> str:
    """NIP-44 for the customer, under a nonce that is fixed so that every run gives the same bytes."""
    return nip44.encrypt(plaintext, nip44.conversation_key(author, CUSTOMER.public), nonce=b"\x07" * 32)


if __name__ == "__main__":
    VECTORS.write_text(text())
