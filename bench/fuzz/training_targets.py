"""What `bench.fuzz.fuzz_train` reads: well-formed inputs of every kind, and the functions that read them on the market.

It is imported in the process that reads: torch comes with it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.fuzz import mutations
from nodewire.errors import BadInput, NodewireError
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job import feedback
from nodewire.protocol.model.manifest import BlobRef
from nodewire.store import sealed_blobs
from nodewire.training.engine import data, state
from nodewire.training.engine.families import initial
from nodewire.training.engine.update import compression as compress
from nodewire.training.protocol import audit, round_close, trainer_ad
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails, Progress
from nodewire.training.protocol.round import Round, RoundTicket, ShardAssignment
from nodewire.training.protocol.trainer_ad import Trainer
from tests.kinds.digits import TOML
from tests.training.engine import recipes

ME, OTHER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
KNOWN = [recipes.recipe(name) for name in recipes.NAMES]
SMALL = recipes.recipe("mlp")
HASH, AT_S = "ab" * 32, 1_700_000_000
BLOB = BlobRef(sha256=HASH, bytes=100)


@dataclass(frozen=True, slots=True)
class Target:
    """What is read: `seeds` are well-formed, `mutate` changes one of them, `read` raises or returns."""

    seeds: Sequence[Any]
    mutate: Callable[[random.Random, Any], Any]
    read: Callable[[Any], None]


def targets() -> dict[str, Target]:
    """All of them, by name."""
    torch.set_num_threads(1)
    return {**_recipes(), **_updates(), **_shards(), **_blobs(), **_jobs(), **_closes(), **_ads()}


def _recipes() -> dict[str, Target]:
    documents = [json.loads(recipe.to_json()) for recipe in KNOWN]
    binary = [recipe.pack() for recipe in KNOWN]
    long = TOML + '[outer]\nmethod = "nesterov"\n[compression]\nmethod = "int4"\n[audit]\nfraction = 0.5\n[hardware]\n'
    return {
        "recipe.toml": Target(
            [TOML, long],
            mutations.of_toml,
            lambda text: sums_of(Recipe.from_toml(text.encode("utf-8", "replace").decode())),
        ),
        "recipe.json": _documents(documents, lambda data: sums_of(Recipe.parse(data))),
        "recipe.msgpack": _bytes(binary, lambda data: sums_of(Recipe.unpack(data))),
        "recipe.packed": Target(
            documents,
            lambda rng, one: _packed(mutations.of_document(rng, one)),
            lambda data: sums_of(Recipe.unpack(data)),
        ),
        "recipe.document": Target(
            documents,
            lambda rng, one: mutations.of_document(rng, one, binary=True),
            lambda document: sums_of(Recipe.from_document(document)),
        ),
    }


def sums_of(recipe: Recipe) -> None:
    """What is computed of a recipe that was read."""
    assert recipe.memory_bytes() > 0 and recipe.flops_per_round() > 0 and recipe.upload_bytes() > 0
    assert recipe.trained() == sum(map(_product, recipe.shapes().values()))
    assert len(recipe.digest()) == 64
    again = Recipe.unpack(recipe.pack())
    assert again == recipe and rounds.work_gflop(recipe, recipe.steps) >= 0
    try:
        rounds.check_supported(recipe)
    except BadInput:
        return


def _updates() -> dict[str, Target]:
    return {
        "update.f32": _update(method="f32"),
        "update.int8": _update(method="int8"),
        "update.int4": _update(method="int4", block=128),
        "update.topk8": _update(method="topk", bits=8, fraction="0.25"),
        "update.topk2": _update(method="topk", bits=2, fraction="0.25"),
    }


def _update(**compression: Any) -> Target:
    recipe = recipes.recipe("mlp", compression=compression)
    generator = torch.Generator().manual_seed(3)
    deltas = [
        {name: torch.randn(shape, generator=generator) * scale for name, shape in recipe.shapes().items()}
        for scale in (0.01, 0.0, 1e30)
    ]

    def read(data: bytes) -> None:
        delta = compress.unpack(data, recipe.shapes(), recipe.compression)
        assert {name: tuple(tensor.shape) for name, tensor in delta.items()} == recipe.shapes()
        assert all(bool(torch.isfinite(tensor).all()) for tensor in delta.values())

    return _files([compress.pack(delta, recipe.compression)[0] for delta in deltas if _fits(delta)], read)


def _fits(delta: Any) -> bool:
    return all(float(tensor.abs().max()) < 2.0**64 for tensor in delta.values())


def _shards() -> dict[str, Target]:
    names = {"arrays": "mlp", "bytes": "decoder", "tokens": "decoder-bpe", "pairs": "encoder"}
    return {f"shard.{kind}": _shard(name) for kind, name in names.items()}


def _shard(name: str) -> Target:
    recipe = recipes.recipe(name)
    packed = [one.packed for one in data.split(recipes.made(recipe)[0], 8, recipe).shards[:2]]

    def read(data_: bytes) -> None:
        shard = data.Shard.unpack(data_, recipe)
        for batch in data.batches(shard, recipe, 0, 0, 0, 2):
            assert len(batch[0]) == recipe.batch

    return _files(packed, read)


def _blobs() -> dict[str, Target]:
    theta = state.pack(initial(SMALL))
    hidden = list(sealed_blobs.seal([theta], "07" * 32))
    scratch = os.memfd_create("fuzz")

    def unsealed(data: bytes) -> None:
        os.ftruncate(scratch, 0)
        os.pwrite(scratch, data, 0)
        assert b"".join(sealed_blobs.unseal(Path(f"/proc/self/fd/{scratch}"), "07" * 32)) == theta

    return {
        "theta": _files([theta], lambda data: _finite(state.unpack(data, state.types(SMALL.shapes()), field="theta"))),
        "blob.sealed": _bytes([b"".join(hidden)], unsealed),
    }


def _ticket(recipe: Recipe) -> RoundTicket:
    keys = {"theta_key": "01" * 32, "theta_sha256": HASH, "shard_key": "02" * 32, "shard_sha256": HASH}
    return RoundTicket(request="0" * 64, index=0, salt="5a" * 32, recipe=recipe.document(), **keys)


ROUND = Round(
    job=rounds.job_of(ME.public, "5a" * 32), round=3, seal=rounds.seal_of(HASH, "5a" * 32), theta=BLOB,
    shards=tuple(
        ShardAssignment(
            index=index, provider=keys.public, data=BLOB, steps=20, gflop=3, price_msat=1_000, deposit_msat=250,
            ticket=_ticket(SMALL).seal(),
        )
        for index, keys in enumerate((ME, OTHER))
    ),
    previous="ee" * 32, deadline_s=60,
)  # fmt: skip
_tags, _content = rounds.tags_and_content(ROUND, relays=("ws://r",))
REQUEST = events.sign(ME, 8841, created_at=AT_S, tags=_tags, content=_content)
OPENING = DeliveryDetails(key="01" * 32, sha256=HASH, bytes=5_000, samples=640, losses=(1, 2, 3), states=(HASH,) * 4)
COMMITMENT = OPENING.commitment(OTHER.public, REQUEST.id, 3, 0)
RESULT = delivery.build(OTHER, 8841, REQUEST.id, ME.public, delivery.Goods(COMMITMENT, BLOB, 750, "x"), created_at=AT_S)


def _jobs() -> dict[str, Target]:
    due = feedback.Due(0, 0, 1, 250, HASH)
    say_due = feedback.build(OTHER, REQUEST.id, ME.public, "payment-required", created_at=AT_S, due=due, kind=8841)

    def ticket(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if not rounds.is_ticket(text):
            return
        read = RoundTicket.parse(text)
        assert len(read.seal()) == 64
        sums_of(Recipe.from_document(read.recipe))

    def opened(data: bytes) -> None:
        read = DeliveryDetails.parse(data)
        assert len(read.commitment(OTHER.public, REQUEST.id, 3, 0)) == 64

    return {
        "ticket": _documents([json.loads(_ticket(recipe).to_json()) for recipe in KNOWN], ticket),
        "request": _events([REQUEST], _event_read(rounds.parse)),
        "result": _events([RESULT], _event_read(delivery.parse)),
        "result.opening": _documents([json.loads(OPENING.to_json())], opened),
        "progress": _documents([{"v": 1, "step": 5, "loss": 1_000}], lambda data: void(Progress.parse(data))),
        "feedback": _events([say_due], _event_read(feedback.parse)),
    }


def _closes() -> dict[str, Target]:
    counted = round_close.CountedResult(
        request=REQUEST.id, provider=OTHER.public, index=0, result=RESULT.id, commitment=COMMITMENT
    )
    close = round_close.Close(job=ROUND.job, round=3, nonce="0c" * 32, results=(counted,), others=("0d" * 32,))
    closed = round_close.build(ME, 8841, close, created_at=AT_S)
    asked = audit.ask(ME, 8841, REQUEST.id, OTHER.public, closed.id, [0, 1, 5], created_at=AT_S)
    shown = [audit.SnapshotCiphertext(segment=n, blob=BLOB, key="03" * 32, sha256=HASH) for n in range(3)]
    return {
        "round.closed": _events([closed], _event_read(round_close.parse)),
        "audit.asked": _events([asked], _event_read(audit.parse)),
        "audit.showing": _documents(
            [json.loads(audit.AuditAnswer(shown=tuple(shown)).to_json())],
            lambda data: void(audit.AuditAnswer.parse(data)),
        ),
    }


def _ads() -> dict[str, Target]:
    ad = Trainer(
        name="ada", kinds=(8840, 8841), families=("mlp",), msat_per_pflop=5, gflops=50, memory_bytes=10**9,
        most_bytes=10**8, concurrency=2, lnurl="https://ada.example/pay",
    )  # fmt: skip
    return {"trainer.ad": _events([trainer_ad.build(OTHER, ad, created_at=AT_S)], _event_read(trainer_ad.parse))}


def _event_read(parse: Callable[[events.Event], object]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        parse(events.parse_unverified(data))

    return read


def void(_: object) -> None:
    """What was read is of no more use."""


def _finite(tensors: Any) -> None:
    assert all(tensor.numel() for tensor in tensors.values())


def _product(shape: Sequence[int]) -> int:
    made = 1
    for n in shape:
        made *= n
    return made


def _packed(document: Any) -> bytes:
    try:
        return canonical.encode(document)
    except (NodewireError, ValueError):  # a float, or nested too deeply: there are no such bytes
        return b"\xc1"


def _bytes(seeds: Sequence[bytes], read: Callable[[bytes], None]) -> Target:
    return Target(seeds, lambda rng, one: mutations.of_bytes(rng, one, seeds), read)


def _files(seeds: Sequence[bytes], read: Callable[[bytes], None]) -> Target:
    return Target(seeds, lambda rng, one: mutations.of_safetensors(rng, one, seeds), read)


def _documents(seeds: Sequence[Any], read: Callable[[bytes], None]) -> Target:
    """JSON: mostly the document is changed, sometimes its bytes."""
    texts = [json.dumps(one).encode() for one in seeds]

    def mutate(rng: random.Random, one: Any) -> bytes:
        if rng.random() < 0.25:
            return mutations.of_bytes(rng, rng.choice(texts), texts)
        return mutations.dumps(mutations.of_document(rng, one))

    return Target(seeds, mutate, read)


def _events(seeds: Sequence[Any], read: Callable[[bytes], None]) -> Target:
    """Events' JSON; where the content is a document, that one is changed, too."""
    documents = [json.loads(one.to_json()) for one in seeds]
    texts = [json.dumps(one).encode() for one in documents]

    def mutate(rng: random.Random, one: Any) -> bytes:
        choice = rng.random()
        if choice < 0.2:
            return mutations.of_bytes(rng, rng.choice(texts), texts)
        if choice < 0.6 and one["content"].startswith("{"):
            content = mutations.dumps(mutations.of_document(rng, json.loads(one["content"]))).decode("utf-8", "replace")
            return mutations.dumps({**one, "content": content})
        if choice < 0.8:
            return mutations.dumps({**one, "tags": mutations.of_document(rng, one["tags"])})
        return mutations.dumps(mutations.of_document(rng, one))

    return Target(documents, mutate, read)
