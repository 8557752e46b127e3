"""What a relay has of a whole encrypted training: no byte of recipe, data, weights, losses or keys; and who opens what.

The relay's database, its write-ahead log and its blob store are searched for windows of everything that was sealed,
and of the same computed by the bare loop, as they are, in hex and in base64.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
import torch

from nodewire.errors import BadCiphertext, NodewireError
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44, nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.store import sealed_blobs
from nodewire.training.engine import bare_loop, data, state
from nodewire.training.engine.update import compression
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.audit import AuditAnswer
from nodewire.training.protocol.recipe import Compression
from nodewire.training.protocol.round import Round, RoundTicket
from nodewire.training.protocol.trainer_ad import Trainer
from tests.kinds.digits import RECIPE, dataset
from tests.training import leaks, small_market
from tests.training.small_market import provider, train

torch.set_num_threads(1)
MARKED = RECIPE.model_copy(
    update={
        "name": "xylophone-recipe",
        "seed": 4_071_966_218_337,
        "rounds": 2,
        "inner": RECIPE.inner.model_copy(update={"lr": "0.0987654321", "momentum": "0.876543219"}),
        "compression": Compression(method="int8"),
    }
)
"""A recipe whose values stand nowhere else."""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A whole training, everything that was sealed in it, and what the relay has afterwards (with the log, too)."""
    folder = tmp_path_factory.mktemp("privacy")

    async def run() -> tuple[leaks.Secrets, dict[str, bytes], list[Any], bytes]:
        with leaks.watched() as secrets:
            async with small_market.opened(folder) as market:
                async with provider(market, "ada"), provider(market, "bea"):
                    done, weights = await train(market, "dora", MARKED)
                    assert done.failures == ()
                async with Pool([market.relay]) as pool:
                    found = await pool.fetch([Filter(kinds=frozenset({8840, 8844, 6840, 6844, 7000}))])
                dump = leaks.readable(folder)  # before the relay is closed: its log has not been folded in
        return secrets, dump, found, weights

    secrets, dump, found, weights = asyncio.run(run())
    assert any(name.endswith("-wal") for name in dump)
    keys = {name: Keys.from_file(folder / name / "key") for name in ("ada", "bea", "dora")}
    return secrets, dump, found, weights, keys, folder


@pytest.fixture(scope="module")
def searched(job):
    return leaks.Searched(job[1])


def leaves(document: Any):
    """Names and values of a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, key
            yield from ((key, leaf) for _, leaf in leaves(value))
    elif isinstance(document, list | tuple):
        for value in document:
            yield from leaves(value)
    else:
        yield "", document


def test_what_is_there_would_be_found(job, searched):
    secrets, dump, found, _, keys, _ = job
    assert searched.whole(keys["ada"].public.encode())
    assert searched.whole(b"payment-required")
    secret = max(secrets.plaintexts, key=len)
    for form in leaks.encodings(secret[-1_101:-1_001]):
        planted = leaks.Searched({"relay.db": dump["relay.db"][:5_000] + form + b"\x00" * 500})
        assert planted.binary(secret), form[:40]
    planted = leaks.Searched({"relay.db": b'{"loss": 1.234567}'})
    assert planted.word("1.234567") and not planted.word("234567")
    assert {event.kind for event in found} == {8840, 8844, 6840, 6844, 7000}


def test_of_the_recipe_nothing_stands_there(searched):
    public = " ".join([*Trainer.model_fields, *Round.model_fields])
    for _, value in leaves(MARKED.document()):
        if isinstance(value, str) and len(value) > 8 and value not in public:
            assert not searched.whole(value.encode()), value
    assert not searched.word(str(MARKED.seed))
    assert not searched.whole(MARKED.seed.to_bytes(8, "big")) and not searched.whole(MARKED.seed.to_bytes(8, "little"))
    assert not searched.binary(MARKED.pack()) and not searched.binary(MARKED.to_json().encode())
    digest = MARKED.digest()
    assert not searched.whole(digest.encode()) and not searched.whole(bytes.fromhex(digest))


def test_of_data_weights_updates_and_snapshots_nothing_stands_there(job, searched):
    secrets, _, _, weights, _, _ = job
    shards, held_out = data.split(dataset(), 2, MARKED)
    theta, _ = bare_loop.run(MARKED, dataset(), 2)
    assert weights == state.pack(theta)
    computed = [weights, held_out.packed, *(shard.packed for shard in shards)]
    computed += [state.pack(bare_loop.run(MARKED, dataset(), 2, rounds=n)[0]) for n in range(MARKED.rounds)]
    computed.append(compression.pack(theta, Compression(method="int4"))[0])
    shown = [whole for whole in secrets.plaintexts if whole not in computed]
    assert len(secrets.plaintexts) >= 2 + 3 + 4 + 4  # shards, thetas, updates and what audits were shown
    assert len(shown) >= 8 and all(shard.packed in secrets.plaintexts for shard in shards)
    for shard in shards:
        labels = shard.tensors["y"][:40]  # a few of them are any bytes' pattern, so many are not
        assert not searched.whole(labels.numpy().tobytes()) and not searched.whole(bytes(labels.tolist()))
    for whole in [*computed, *shown]:
        start = 8 + int.from_bytes(whole[:8], "little")  # headers hold the names of tensors
        assert not searched.binary(whole[start:])
        assert not searched.binary(whole[8:start])


def test_of_losses_and_messages_nothing_stands_there(job, searched):
    secrets, dump, found, _, keys, _ = job
    _, curve = bare_loop.run(MARKED, dataset(), 2)
    losses = [one for point in curve for one in (point.inner, point.held_out)]
    public = {event.id for event in found} | {one.public for one in keys.values()} | {name[-64:] for name in dump}
    messages = 0
    for text in secrets.texts:
        try:
            message = json.loads(text)
        except ValueError:
            continue  # of a seal: the message within it is there, too
        messages += 1
        losses += [micro / 1e6 for micro in message.get("losses", ())]
        for hex32 in re.findall(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", text):
            if hex32 not in public and message.get("kind") is None:  # what wraps a message is made for that alone
                assert not searched.whole(hex32.encode()) and not searched.whole(bytes.fromhex(hex32)), text[:80]
    assert messages > 10 and len(losses) >= 12
    for loss in losses:
        packed, words = leaks.loss_forms(loss)
        assert not [form for form in packed if searched.whole(form)]
        assert not [word for word in words if len(word) > 5 and searched.word(word)]


def test_no_key_stands_there(job, searched):
    secrets, _, _, _, keys, _ = job
    assert len(secrets.keys) == len(set(secrets.keys)) >= 13
    for key in [*(one.secret.hex() for one in keys.values()), *secrets.keys, "5a" * 32]:
        assert not searched.whole(key.encode()) and not searched.whole(bytes.fromhex(key))


def test_a_shard_opens_with_its_assignees_ticket_only(job):
    secrets, _, found, _, keys, folder = job
    requests = [rounds.parse(event) for event in found if event.kind == 8840]
    tickets: dict[tuple[str, str], RoundTicket] = {}
    for recipient, wrap in secrets.tickets:
        for name in ("ada", "bea", "dora"):
            if keys[name].public == recipient:
                rumor = nip59.unwrap(wrap, keys[name])
                ticket = RoundTicket.parse(rumor.content)
                tickets[ticket.request, recipient] = ticket
            else:
                with pytest.raises(NodewireError):
                    nip59.unwrap(wrap, keys[name])
    opened = 0
    for request in requests:
        for assigned in request.round.shards:
            blob = folder / "blobs" / assigned.data.sha256[:2] / assigned.data.sha256
            blob = blob if blob.exists() else next((folder / "blobs").rglob(assigned.data.sha256))
            for (_, recipient), ticket in tickets.items():
                if recipient == assigned.provider:
                    shard = data.Shard.unpack(b"".join(sealed_blobs.unseal(blob, ticket.shard_key)), MARKED)
                    opened += len(shard) > 0
                    keys_that_fail = [ticket.theta_key]
                else:
                    keys_that_fail = [ticket.theta_key, ticket.shard_key]
                for key in keys_that_fail:
                    with pytest.raises(BadCiphertext):
                        list(sealed_blobs.unseal(blob, key))
    assert opened >= 4


def test_what_an_audit_shows_opens_for_the_customer_only(job):
    _, _, found, _, keys, folder = job
    shown = [event for event in found if event.kind == 6844]
    assert len(shown) == 4
    authors = {one.public: one for one in keys.values()}
    for event in shown:
        text = nip44.decrypt(event.content, nip44.conversation_key(keys["dora"], event.pubkey))
        showing = AuditAnswer.parse(text)
        for one in showing.shown:
            blob = next((folder / "blobs").rglob(one.blob.sha256))
            assert b"".join(sealed_blobs.unseal(blob, one.key))
        strangers = [Keys.generate(), *(one for public, one in authors.items() if public != event.pubkey)]
        for stranger in strangers:
            if stranger is keys["dora"]:
                continue
            for other in (event.pubkey, keys["dora"].public):
                with pytest.raises(NodewireError):
                    nip44.decrypt(event.content, nip44.conversation_key(stranger, other))
