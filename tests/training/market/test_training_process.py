"""Coordinator and trainer in a real capped worker: one round, judged, audited and stepped behind the sandbox."""

from __future__ import annotations

import hashlib

import pytest
import torch

from nodewire.errors import BadFrame
from nodewire.kind import Limits
from nodewire.protocol.encoding import random_draw
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.store import sealed_blobs
from nodewire.store.blobs import Blobs
from nodewire.training.customer import files
from nodewire.training.customer.market.coordinator_client import Coordinator, Past, Verdict
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.data import split
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.models import directory
from nodewire.training.engine.update import carried_state, compression, outer_step, step_proof
from nodewire.training.protocol import round_close
from nodewire.training.protocol.audit import SnapshotCiphertext
from nodewire.training.protocol.recipe import Compression, Outer
from nodewire.training.protocol.result import DeliveryDetails
from nodewire.worker.client import WorkerProcess
from tests.kinds.digits import RECIPE, dataset
from tests.sessions import Named
from tests.training import models

ONE_ROUND = RECIPE.model_copy(update={"rounds": 1})
HASH = "ab" * 32


async def put(worker, edge, data: bytes):
    await worker.receive("trainer", "s", Frame(edge, 0, (Array("uint8", (len(data),), data),), {"end": True}))


async def test_texts_are_tokenized_and_an_adapter_trained_behind_the_sandbox(tmp_path):
    given = models.given("encoder-lora", tmp_path / "files", rounds=1, steps=2)
    folder, elsewhere = tmp_path / "training", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):  # as a cache of downloads keeps them
        (given.start / name).rename(elsewhere / name)
        (given.start / name).symlink_to(elsewhere / name)
    (folder / "empty").touch()
    readable = [given.data, folder, *files.readable(given.start)]
    worker = Named(
        await WorkerProcess.start(
            "kinds.training_worker", Limits(200 * 10**6), readable=readable, arena_bytes=16 * 2**20
        )
    )
    async with Blobs([], tmp_path / "blobs") as blobs:
        coordinator = Coordinator(worker, blobs, folder)
        await coordinator.open(given.recipe.pack(), given.data, 1, given.start)
        begun = {
            "start": await coordinator.start(),
            "theta": await coordinator.theta(),
            "shard": await coordinator.shard(0),
        }
        assert begun["start"].plain_sha256 == given.recipe.family.start.sha256
        await worker.load("trainer", "trainer", folder / "empty", [])
        await worker.open("trainer", "s", {"recipe": given.recipe.pack(), "round": 0, "index": 0, "steps": 2})
        for edge, blob in begun.items():
            await put(worker, edge, b"".join(sealed_blobs.unseal(blobs.path(blob.sha256), blob.key)))
        said, *frames = await worker.receive("trainer", "s", Frame("train", 0))
        assert said.meta["end"]
        update, key = whole(frames), sealed_blobs.new_key()
        ref = await blobs.put(b"".join(sealed_blobs.seal([update], key)))
        digest = hashlib.sha256(update).hexdigest()
        assert await coordinator.result(0, 0, 2, blobs.path(ref.sha256), key, digest) == (True, "")
        assert await coordinator.judge(0, [0]) == {0: Verdict(True, "")}
        await coordinator.step(0)
        expected, _ = bare_loop.run(given.recipe, given.dataset, 1, start=given.tensors)
        assert await coordinator.weights() == state.pack(expected)
        written = await coordinator.model()
    assert written == directory.files(
        given.recipe, expected, given.tensors, (elsewhere / "tokenizer.json").read_bytes()
    )
    await worker.stop()


async def joined(worker, edge, **meta) -> bytes:
    return whole(await worker.receive("trainer", "s", Frame(edge, 0, (), meta)))


def whole(frames) -> bytes:
    return b"".join(bytes(frame.tensors[0].data) for frame in frames)


async def test_a_round_is_trained_judged_audited_and_stepped_in_a_worker(tmp_path):
    data, folder = tmp_path / "data", tmp_path / "training"
    data.mkdir()
    folder.mkdir()
    (data / "digits.safetensors").write_bytes(state.pack(dataset()))
    (folder / "empty").touch()
    worker = Named(
        await WorkerProcess.start(
            "kinds.training_worker", Limits(200 * 10**6), readable=[data, folder], arena_bytes=16 * 2**20
        )
    )
    async with Blobs([], tmp_path / "blobs") as blobs:
        coordinator = Coordinator(worker, blobs, folder)
        await coordinator.open(ONE_ROUND.pack(), data, 1)
        theta, shard = await coordinator.theta(), await coordinator.shard(0)
        await worker.load("trainer", "trainer", folder / "empty", [])
        params = {"recipe": ONE_ROUND.pack(), "round": 0, "index": 0, "steps": ONE_ROUND.steps}
        await worker.open("trainer", "s", params)
        for edge, blob in (("theta", theta), ("shard", shard)):
            await put(worker, edge, b"".join(sealed_blobs.unseal(blobs.path(blob.sha256), blob.key)))
        states = []
        for seq in range(2):
            said, *frames = await worker.receive("trainer", "s", Frame("train", seq))
            states.append(said.meta["state"])
        update = whole(frames)

        async def kept(plain: bytes, key: str) -> BlobRef:
            return await blobs.put(b"".join(sealed_blobs.seal([plain], key)))

        key, digest = sealed_blobs.new_key(), hashlib.sha256(update).hexdigest()
        opened = DeliveryDetails(
            key=key, sha256=digest, bytes=len(update), samples=640, losses=(), states=tuple(states)
        )
        blob = await kept(update, key)
        assert await coordinator.result(0, 0, ONE_ROUND.steps, blobs.path(blob.sha256), key, digest) == (True, "")
        assert await coordinator.judge(0, [0]) == {0: Verdict(True, "")}
        shown = {}
        drawn = random_draw.draw("01" * 32, opened.commitment(HASH, HASH, 0, 0), 2, 0.5, 64)
        for segment in round_close.ends(drawn):
            plain = await joined(worker, "reveal", segment=segment)
            ref = await kept(plain, key)
            said = SnapshotCiphertext(segment=segment, blob=ref, key=key, sha256=hashlib.sha256(plain).hexdigest())
            shown[segment] = blobs.path(ref.sha256), said
        assert shown
        await coordinator.step(0)
        past = Past(0, 0, ONE_ROUND.steps, blobs.path(blob.sha256), opened, theta)
        assert await coordinator.audit(past, drawn, shown, lambda: False) == (True, "")
        expected, _ = bare_loop.run(ONE_ROUND, dataset(), 1)
        assert await coordinator.weights() == state.pack(expected)
    await worker.stop()


async def test_an_outer_step_is_made_in_a_worker_that_cannot_import_any_more(tmp_path):
    (tmp_path / "empty").touch()
    recipe = ONE_ROUND.model_copy(update={"outer": Outer(method="fedadam", lr="0.01")})
    theta = initial(recipe)
    delta = {name: torch.full_like(tensor, 0.01) for name, tensor in theta.items()}
    packed, _ = compression.pack(delta, recipe.compression, None)
    made = outer_step.step(recipe.outer, theta, outer_step.start(recipe.outer, theta), [(640, delta)])
    worker = Named(
        await WorkerProcess.start(
            "kinds.training_worker", Limits(200 * 10**6), readable=[tmp_path], arena_bytes=16 * 2**20
        )
    )
    await worker.load("outer", "outer", tmp_path / "empty", [])
    await worker.open("outer", "s", {"recipe": recipe.pack(), "round": 0})
    for edge, data, said in (("theta", state.pack(theta), {}), ("update", packed, {"at": 0, "weight": 640})):
        frame = Frame(edge, 0, (Array("uint8", (len(data),), data),), {**said, "end": True})
        await worker.receive("outer", "s", frame)
    (said,) = await worker.receive("outer", "s", Frame("step", 0))
    assert said.meta["root"] == step_proof.root(recipe.outer, *made).hex()
    for what, expected in zip(("theta", "momenta"), made, strict=True):
        frames = await worker.receive("outer", "s", Frame("after", 0, (), {"what": what}))
        assert b"".join(bytes(one.tensors[0].data) for one in frames) == state.pack(expected)
    await worker.stop()


async def test_data_may_be_a_single_file_that_is_all_a_worker_sees(tmp_path):
    folder, data = tmp_path / "training", tmp_path / "digits.safetensors"
    folder.mkdir()
    data.write_bytes(state.pack(dataset()))
    worker = Named(
        await WorkerProcess.start(
            "kinds.training_worker", Limits(200 * 10**6), readable=[folder, data], arena_bytes=16 * 2**20
        )
    )
    async with Blobs([], tmp_path / "blobs") as blobs:
        coordinator = Coordinator(worker, blobs, folder)
        await coordinator.open(ONE_ROUND.pack(), data, 2)
        shards, _ = split(dataset(), 2, ONE_ROUND)
        assert (await coordinator.shard(1)).plain_sha256 == hashlib.sha256(shards[1].packed).hexdigest()
    await worker.stop()


async def test_what_is_carried_goes_in_and_out_of_a_worker(tmp_path):
    recipe = ONE_ROUND.model_copy(
        update={"rounds": 4, "compression": Compression(method="int4", fragments=2, error_feedback="1.0")}
    )
    (tmp_path / "empty").touch()
    worker = Named(
        await WorkerProcess.start(
            "kinds.training_worker", Limits(200 * 10**6), readable=[tmp_path], arena_bytes=16 * 2**20
        )
    )
    await worker.load("trainer", "trainer", tmp_path / "empty", [])
    shard, theta, trainer = split(dataset(), 1, recipe).shards[0], initial(recipe), Trainer(recipe)
    begun, brought = None, b""
    for round_ in range(2):
        await worker.open("trainer", "s", {"recipe": recipe.pack(), "round": round_, "index": 0, "steps": recipe.steps})
        await put(worker, "theta", state.pack(theta))
        await put(worker, "shard", shard.packed)
        if brought:
            await put(worker, "carried", brought)
        for seq in range(2):
            _, *frames = await worker.receive("trainer", "s", Frame("train", seq))
        end = trainer.snapshot(carried_state.start_of_round(theta, begun), shard, round_, 0, recipe.steps)
        wanted, after = carried_state.send(recipe, round_, carried_state.moved(theta, end.theta), begun)
        assert whole(frames) == wanted
        carried_on = await joined(worker, "carry")
        assert carried_on == carried_state.packed(after)
        assert await joined(worker, "reveal", segment=2) == (brought or carried_state.EMPTY)
        with pytest.raises(BadFrame):
            await joined(worker, "carry")
        begun, brought = after, carried_on
        await worker.close("trainer", "s")
    await worker.stop()
