"""A node measures itself: real workers, real tasks of a decoder, an encoder and a classifier."""

import asyncio
import json

import pytest

from nodewire.errors import BadConfig, BadInput
from nodewire.kind import Limits
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import ad_profile
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.provider.profile import node_profile, probe
from nodewire.worker.sandbox.rights import RESERVE_BYTES
from tests.protocol.committee.actors import keys

ENTRY = "kinds.k8843_worker"
LIMITS = Limits(200_000_000)


async def profiled(registrations, folder, wanted, caps=()):
    """What profiling makes of (manifest, tasks), whose blobs are those of the registrations."""
    blobs = {sha256: path for one in registrations for sha256, path in one.blobs.items()}

    async def fetch(ref):
        return blobs[ref.sha256]

    return await node_profile.profile(LIMITS, [(*one, ENTRY) for one in wanted], fetch, folder, caps=caps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def decoder(folder, tmp_path_factory):
    from nodewire.llm.checkpoint.splitter import split_decoder
    from tests.kinds.llama import make_llama

    return split_decoder(make_llama(tmp_path_factory.mktemp("llama")), 1_600_000, folder, slots=2)


@pytest.fixture(scope="module")
def encoder(folder, tmp_path_factory):
    from nodewire.graph.registration.encoder_splitter import split_encoder
    from tests.market.tiny_models import make_encoder

    return split_encoder(make_encoder(tmp_path_factory.mktemp("models") / "bert"), 400_000, folder)


@pytest.fixture(scope="module")
def broken(decoder):
    """The decoder with a stage's program for its driver."""
    driver, *stages = decoder.manifest.tasks
    tasks = (driver.model_copy(update={"program": stages[0].program}), *stages)
    return decoder.manifest.model_copy(update={"tasks": tasks})


@pytest.fixture(scope="module")
def made(decoder, encoder, broken, folder):
    """All tasks of decoder and encoder; first of all one that cannot be loaded."""
    wanted = [(broken, ["driver"])]
    wanted += [(one.manifest, [task.name for task in one.manifest.tasks]) for one in (decoder, encoder)]
    return asyncio.run(profiled((decoder, encoder), folder, wanted))


def test_drivers_and_calls_of_next_to_no_work_are_not_predicted(made):
    for one in made.tasks:
        for call in one.calls:
            is_told = not one.engine.endswith(".driver") and made.rates["float32"].is_told_by(call.work)
            assert (made.predicted_us(one, call) is not None) == is_told
    drivers = [one for one in made.document()["tasks"] if one["engine"].endswith(".driver") and one["calls"]]
    assert len(drivers) == 2
    assert {call["predicted_us"] for one in drivers for call in one["calls"]} == {None}
    assert made.fitted.within_half < 4


def of(made, manifest):
    return [one for one in made.tasks if one.manifest == manifest.digest()]


def test_all_tasks_of_a_decoder_are_measured(made, decoder):
    found = of(made, decoder.manifest)
    assert [(one.task, one.refused) for one in found] == [(task.name, "") for task in decoder.manifest.tasks]
    driver, *stages = found
    assert [call.positions for call in driver.calls] == [1]
    for stage in stages:
        assert [call.positions for call in stage.calls][:2] == [1, 4]
        assert stage.calls[-1].us / stage.calls[-1].positions < stage.calls[0].us
    for one in found:
        assert one.loaded_bytes <= one.peak_bytes
        assert all(call.us > 0 for call in one.calls)
    speeds = made.speeds()[decoder.manifest.digest()]
    assert set(speeds) == {task.name for task in decoder.manifest.tasks}
    assert made.rates["float32"].flops_per_s > 1e8
    assert made.fitted.rates.slower > 0
    assert made.fitted.within_half >= 1


def test_all_tasks_of_an_encoder_are_measured(made, encoder):
    found = of(made, encoder.manifest)
    assert [(one.task, one.refused) for one in found] == [(task.name, "") for task in encoder.manifest.tasks]
    for one in found:
        assert len(one.calls) >= 3
        positions = [call.positions for call in one.calls]
        assert positions == sorted(set(positions))
    assert all(us >= 1 for us in made.speeds()[encoder.manifest.digest()].values())


def test_a_task_that_cannot_be_loaded_is_said_and_ends_nothing(made, broken):
    (one,) = of(made, broken)
    assert one is made.tasks[0]
    assert "bad-task" in one.refused
    assert len(made.tasks) > 1
    assert broken.digest() not in made.speeds()


async def test_a_cap_that_is_too_low_is_told_from_one_that_is_not(decoder, folder):
    stage = decoder.manifest.tasks[1]
    low = stage.memory_bytes // 2
    wanted = [(decoder.manifest, [stage.name])]
    capped = await profiled((decoder,), folder, wanted, caps=(low, 4 * stage.memory_bytes))
    (one,) = capped.tasks
    assert "over-memory" in one.caps[low]
    assert one.caps[4 * stage.memory_bytes] == ""
    said = capped.document()["tasks"][0]["caps"]
    assert [cap["ran"] for cap in said] == [False, True]


def test_what_was_kept_is_claimed_for_the_same_device_and_threads_only(made, tmp_path):
    path = node_profile.keep(tmp_path / "state", made)
    assert json.loads(path.read_text())["speeds"] == made.speeds()
    assert node_profile.kept(tmp_path / "state", LIMITS) == node_profile.ProfileClaims(made.speeds(), made.published())
    assert node_profile.kept(tmp_path / "state", Limits(1, threads=2)) == node_profile.ProfileClaims()
    assert node_profile.kept(tmp_path, LIMITS) == node_profile.ProfileClaims()
    said = json.loads(path.read_text())
    del said["published"]  # as earlier versions wrote it
    path.write_text(json.dumps(said))
    assert node_profile.kept(tmp_path / "state", LIMITS) == node_profile.ProfileClaims(made.speeds())
    for text in ('{"limits": 3}', json.dumps(said | {"published": {"at_s": 1}})):
        path.write_text(text)
        with pytest.raises(BadConfig, match="profile"):
            node_profile.kept(tmp_path / "state", LIMITS)


def test_what_is_published_is_what_was_measured_as_an_ad_has_it(made, decoder):
    digest = decoder.manifest.digest()
    offers = tuple(TaskOffer(task=task.name, price_msat=0, us_per_position=1) for task in decoder.manifest.tasks)
    ad = Ad(name="me", manifests=(ManifestOffer(manifest=digest, tasks=offers, slots=1),))
    tags = ad_profile.build(made.published(), ad)
    read = ad_profile.parse(ads.build(keys("me"), ad, created_at=1, profile=tags), ad)
    assert read.at_s == made.at_s
    assert read.gflops == pytest.approx(made.published().gflops, rel=0.01)
    found = {one.task: one for one in of(made, decoder.manifest)}
    assert {task for _, task in read.tasks} == set(found)
    for (_, task), one in read.tasks.items():
        calls = {call.positions: call.us for call in found[task].calls}
        assert one.peak_bytes == found[task].peak_bytes
        assert one.us == max(1, round(calls[1]))
        assert one.positions in calls
        assert one.positions / one.us_together >= 1 / one.us


def test_a_process_above_its_prediction_is_said_as_a_typed_warning():
    most = 105_000_000 + RESERVE_BYTES
    one = node_profile.TaskProfile("ab" * 32, "stage.0", "decoder.stage", 100_000_000, 90_000_000, most, 1, 1.0)
    assert one.overrun is None
    one.peak_bytes += 1
    assert one.overrun.code == "over-memory" and one.overrun.field == "stage.0"
    assert "109 MB, 9% above the 100 MB" in one.overrun.reason
    one.refused = "bad-task: stage.0"
    assert one.overrun is None


def test_sizes_end_where_the_task_does(decoder):
    driver, stage, *_ = decoder.manifest.tasks
    assert probe.sizes(decoder.manifest, driver.name) == (1,)
    most = probe.sizes(decoder.manifest, stage.name)[-1]
    assert most * (probe.CALLS + 2) <= decoder.manifest.context


async def test_more_than_a_task_takes_is_refused(decoder):
    with pytest.raises(BadInput, match="positions"):
        await probe.measure(decoder.manifest, decoder.manifest.tasks[1].name, None, "", 10**6)
    with pytest.raises(BadInput, match="positions"):
        await probe.measure(decoder.manifest, decoder.manifest.tasks[1].name, None, "", 0)
