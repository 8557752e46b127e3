"""A node measures itself: real workers, real tasks of a decoder, an encoder and a classifier."""

import json

import pytest

from nodewire.errors import BadConfig, BadInput
from nodewire.kind import Limits
from nodewire.provider import probing, profiling

ENTRY = "kinds.k8843_worker"
LIMITS = Limits(200_000_000)


def fetcher(registration):
    async def fetch(ref):
        return registration.blobs[ref.sha256]

    return fetch


async def profiled(registration, folder, caps=(), tasks=None):
    manifest = registration.manifest
    names = tasks or [task.name for task in manifest.tasks]
    return await profiling.profile(LIMITS, [(manifest, names, ENTRY)], fetcher(registration), folder, caps=caps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def decoder(folder, tmp_path_factory):
    from nodewire.llm.split import split_decoder
    from tests.kinds.llama import make_llama

    return split_decoder(make_llama(tmp_path_factory.mktemp("llama")), 1_600_000, folder, slots=2)


async def test_all_tasks_of_a_decoder_are_measured(decoder, folder):
    made = await profiled(decoder, folder)
    assert [one.refused for one in made.tasks] == [""] * len(decoder.manifest.tasks)
    driver, *stages = made.tasks
    assert [call.positions for call in driver.calls] == [1]
    for stage in stages:
        assert [call.positions for call in stage.calls][:2] == [1, 4]
        assert stage.calls[-1].us / stage.calls[-1].positions < stage.calls[0].us
    for one in made.tasks:
        assert one.loaded_bytes <= one.peak_bytes
        assert all(call.us > 0 for call in one.calls)
    speeds = made.speeds()[decoder.manifest.digest()]
    assert set(speeds) == {task.name for task in decoder.manifest.tasks}
    assert made.rates["float32"].flops_per_s > 1e8
    assert made.fitted.rates.slower > 0
    assert made.fitted.within_half >= 1


async def test_all_tasks_of_an_encoder_are_measured(folder, tmp_path):
    from nodewire.graph.split_encoder import split_encoder
    from tests.market.tiny_models import make_encoder

    encoder = split_encoder(make_encoder(tmp_path / "bert"), 400_000, folder)
    made = await profiled(encoder, folder)
    assert [one.refused for one in made.tasks] == [""] * len(encoder.manifest.tasks)
    for one in made.tasks:
        assert len(one.calls) >= 3
        positions = [call.positions for call in one.calls]
        assert positions == sorted(set(positions))
    assert all(us >= 1 for us in made.speeds()[encoder.manifest.digest()].values())


async def test_a_task_that_cannot_be_loaded_is_said_and_ends_nothing(decoder, folder):
    driver, *stages = decoder.manifest.tasks
    broken = driver.model_copy(update={"program": stages[0].program})
    manifest = decoder.manifest.model_copy(update={"tasks": (broken, *stages)})
    made = await profiling.profile(LIMITS, [(manifest, [broken.name, stages[0].name], ENTRY)], fetcher(decoder), folder)
    assert "bad-task" in made.tasks[0].refused
    assert made.tasks[1].calls
    assert set(made.speeds()[manifest.digest()]) == {stages[0].name}


async def test_a_cap_that_is_too_low_is_told_from_one_that_is_not(decoder, folder):
    stage = decoder.manifest.tasks[1]
    low = stage.memory_bytes // 2
    made = await profiled(decoder, folder, caps=(low, 4 * stage.memory_bytes), tasks=[stage.name])
    (one,) = made.tasks
    assert "over-memory" in one.caps[low]
    assert one.caps[4 * stage.memory_bytes] == ""
    said = made.document()["tasks"][0]["caps"]
    assert [cap["ran"] for cap in said] == [False, True]


async def test_what_was_kept_is_claimed_for_the_same_device_and_threads_only(decoder, folder, tmp_path):
    stage = decoder.manifest.tasks[1].name
    made = await profiled(decoder, folder, tasks=[stage])
    path = profiling.keep(tmp_path / "state", made)
    assert json.loads(path.read_text())["speeds"] == made.speeds()
    assert profiling.kept_speeds(tmp_path / "state", LIMITS) == made.speeds()
    assert profiling.kept_speeds(tmp_path / "state", Limits(1, threads=2)) == {}
    assert profiling.kept_speeds(tmp_path, LIMITS) == {}
    path.write_text('{"limits": 3}')
    with pytest.raises(BadConfig, match="profile"):
        profiling.kept_speeds(tmp_path / "state", LIMITS)


def test_sizes_end_where_the_task_does(decoder):
    driver, stage, *_ = decoder.manifest.tasks
    assert probing.sizes(decoder.manifest, driver.name) == (1,)
    most = probing.sizes(decoder.manifest, stage.name)[-1]
    assert most * (probing.CALLS + 2) <= decoder.manifest.context


async def test_more_than_a_task_takes_is_refused(decoder, folder):
    with pytest.raises(BadInput, match="positions"):
        await probing.measure(decoder.manifest, decoder.manifest.tasks[1].name, None, "", 10**6)
    with pytest.raises(BadInput, match="positions"):
        await probing.measure(decoder.manifest, decoder.manifest.tasks[1].name, None, "", 0)
