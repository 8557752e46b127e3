"""A GGUF file is read behind the sandbox, too: a draft that a driver guesses by, and what a training starts from."""

import pytest

from bench.fuzz import hostile_gguf as hostile
from nodewire.kind import Limits
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.store.blobs import Blobs
from nodewire.training.customer import files
from nodewire.training.customer.market.coordinator_client import Coordinator
from nodewire.training.engine.models import directory
from nodewire.worker.client import WorkerProcess
from tests.sessions import Named
from tests.training import models


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(hostile.small().encode())
    return path


async def test_a_driver_in_a_worker_guesses_by_a_file(model, tmp_path):
    registration = split_decoder(model, None, tmp_path / "blobs", slots=1, split=1)
    driver, blobs = registration.manifest.tasks[0], registration.blobs
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    limits = Limits(512 * 10**6, draft=str(link))
    worker = await WorkerProcess.start("kinds.k8843_worker", limits, readable=[tmp_path / "blobs"])
    try:
        weights = [blobs[one.sha256] for one in driver.weights]
        plain = await worker.load("0" * 8, driver.engine, blobs[driver.program.sha256], weights)
        assert plain["memory_bytes"] > driver.memory_bytes  # the draft is there
    finally:
        await worker.stop()


async def test_a_training_in_a_worker_starts_from_a_file(model, tmp_path):
    given = models.given("bpe-decoder-lora", tmp_path / "files", rounds=1, steps=2)
    family = directory.family_of(model)
    of = given.recipe.model_copy(update={"family": family})
    folder = tmp_path / "training"
    folder.mkdir()
    readable = [given.data, folder, *files.readable(model)]
    worker = Named(
        await WorkerProcess.start(
            "kinds.training_worker", Limits(400 * 10**6), readable=readable, arena_bytes=16 * 2**20
        )
    )
    async with Blobs([], tmp_path / "blobs") as blobs:
        coordinator = Coordinator(worker, blobs, folder)
        await coordinator.open(of.pack(), given.data, 1, model)
        assert (await coordinator.start()).plain_sha256 == family.start.sha256
    await worker.stop()
