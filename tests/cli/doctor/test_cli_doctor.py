"""What `nodewire doctor` says of a provider's tasks and rounds before its daemon would fail on them."""

from __future__ import annotations

import socket

import pytest

from nodewire.cli.doctor import doctor
from nodewire.config import ProviderConfig, Serve, TrainConfig, WorkerConfig
from nodewire.errors import BadConfig, NotFound, OverMemory
from nodewire.metrics import endpoint
from nodewire.store.state_lock import held
from relay import Config as RelayConfig
from relay import serve as serve_relay
from tests.kinds.llama import make_llama
from tests.protocol import documents

MODEL = "38840:" + "0" * 64 + ":tiny"


class Market:
    async def manifest(self, address, digest=None):
        return documents.manifest()


@pytest.fixture
def serve(monkeypatch, tmp_path):
    async def enter_market(stack, role):
        return None, None, Market()

    monkeypatch.setattr(doctor, "enter_market", enter_market)

    async def check(tasks, memory):
        (tmp_path / "provider.toml").write_text(
            'key = "k"\nstate = "s"\nrelays = ["ws://r"]\nblossom = ["http://b"]\n'
            f'committee = "38841:{"0" * 64}:main"\n'
            '[wallet]\nurl = "http://w"\ntoken_file = "t"\n'
            f'[worker]\nmemory = "{memory}"\n'
            f'[[serve]]\nmanifest = "{MODEL}"\ntasks = ["driver"]\nprice_msat = 1\n'
        )
        role = ProviderConfig.load(tmp_path / "provider.toml")
        return await doctor._serve(role, Serve(manifest=MODEL, tasks=tasks, price_msat=1))

    return check


async def test_a_task_that_the_manifest_lacks_is_named_with_those_that_it_has(serve):
    with pytest.raises(BadConfig, match=r"tasks: tiny has no stage\.9; it has driver, stage\.0, stage\.1"):
        await serve(("stage.0", "stage.9"), "2MB")


async def test_memory_below_what_a_task_needs_is_told_with_what_it_takes(serve):
    with pytest.raises(OverMemory, match=r'worker\.memory: .*: set \[worker\] memory = "1MB" or more'):
        await serve(("stage.0", "stage.1"), "4kB")


async def test_tasks_that_fit_are_told_with_what_they_may_need(serve):
    assert await serve(("stage.0",), "2MB") == (
        "tiny: stage.0, 2 slots, may need 0.0 of 2.0 MB, each task for 15.625 sat a million tokens"
    )


@pytest.mark.parametrize(("megabytes", "fits"), [(0.9, False), (1.1, True)])
async def test_what_all_of_serve_may_need_together_is_told_beside_what_there_is(monkeypatch, megabytes, fits):
    whole = documents.manifest()
    sizes = {"driver": 400_000, "stage.0": 600_000}
    tasks = tuple(one.model_copy(update={"memory_bytes": sizes.get(one.name, 1)}) for one in whole.tasks)

    class Sized:
        async def manifest(self, address, digest=None):
            return whole.model_copy(update={"tasks": tasks})

    async def enter_market(stack, role):
        return None, None, Sized()

    monkeypatch.setattr(doctor, "enter_market", enter_market)
    serves = [Serve(manifest=MODEL, tasks=names, price_msat=1) for names in (("driver",), ("stage.0", "driver"))]
    role = ProviderConfig.model_construct(
        relays=["ws://r"], worker=WorkerConfig(memory=round(megabytes * 1e6)), serve=serves
    )
    if fits:
        assert await doctor._serve_all(role) == "all of [[serve]] may need 1.0 of 1.1 MB"
    else:
        with pytest.raises(OverMemory, match=r'may need 1\.0 of 0\.9 MB: set \[worker\] memory = "1MB" or more'):
            await doctor._serve_all(role)


async def test_a_device_that_torch_does_not_have_is_told_before_any_worker_starts():
    assert await doctor._device("cpu") == "cpu"
    with pytest.raises(BadConfig, match=r'worker\.device: torch cannot use "cuda:63" on this machine \(.+\)'):
        await doctor._device("cuda:63")


async def test_a_draft_that_drivers_could_not_guess_by_is_told_before_they_fail(tmp_path):
    folder = make_llama(tmp_path / "draft")
    assert await doctor._draft(folder) == "llama, 300 tokens, which a driver's model must have, too"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadConfig, match=r"worker\.draft: .*tokenizer\.json"):
        await doctor._draft(folder)
    with pytest.raises(BadConfig, match=r"worker\.draft: .*nowhere"):
        await doctor._draft(tmp_path / "nowhere")


@pytest.fixture
async def exposed(tmp_path):
    """A daemon's state folder that is in use, and the address that it shows its metrics at."""
    with held(tmp_path / "state"):
        async with endpoint.serve_metrics(endpoint.MetricsExposition("provider", "127.0.0.1:0")) as url:
            yield tmp_path / "state", url.removeprefix("http://").removesuffix(endpoint.PATH)


async def test_metrics_that_answer_are_said_to(exposed):
    state, address = exposed
    assert await doctor._metrics(address, state) == "answers"


async def test_metrics_that_others_can_read_are_warned_of(exposed):
    state, address = exposed
    port = address.rpartition(":")[2]
    for host in ("0.0.0.0", "192.0.2.1"):
        said = await doctor._metrics(f"{host}:{port}", state.parent / "another")
        assert "is not running" in said and "no password" in said
    assert "password" not in await doctor._metrics(f"[::1]:{port}", state.parent / "another")
    async with endpoint.serve_metrics(endpoint.MetricsExposition("provider", "0.0.0.0:0")) as url:
        said = await doctor._metrics(url.removeprefix("http://").removesuffix(endpoint.PATH), state)
    assert said.startswith("answers; there is no password: at that address")


async def test_metrics_that_do_not_answer_though_the_daemon_runs_are_a_fault(exposed):
    state, _ = exposed
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotFound, match=r"does not answer.*from the daemon's next start"):
        await doctor._metrics(f"127.0.0.1:{port}", state)


async def test_a_port_where_somebody_else_answers_is_a_fault(exposed, tmp_path):
    state, _ = exposed
    async with serve_relay(RelayConfig(db=tmp_path / "relay.db", port=0)) as relay:
        with pytest.raises(BadConfig, match="is not this daemon's"):
            await doctor._metrics(relay.http_url.removeprefix("http://"), state)


def trains(memory, device="cpu", **fields):
    return doctor._train(
        WorkerConfig(memory=memory, device=device), TrainConfig(msat_per_pflop=1, **fields), 16 * 10**9
    )


async def test_memory_that_no_round_fits_into_is_told_with_what_to_set():
    with pytest.raises(OverMemory, match=r'worker\.memory: 0\.0005 MB; .* 100 MB .*: set \[worker\] memory = "2GB"'):
        await trains(500)


async def test_rounds_that_take_more_than_the_machine_has_are_told_with_what_it_has():
    with pytest.raises(OverMemory, match=r"1 at a time of 17,000 MB each, of the machine's 16,000 MB: .* \"16000MB\""):
        await trains("17GB")
    with pytest.raises(OverMemory, match=r'memory = "5333MB" or less'):
        await trains("6GB", concurrency=3)


async def test_rounds_that_fit_are_told_with_their_families():
    assert await trains("8GB", concurrency=2, families=("mlp",)) == (
        "mlp; 2 at a time of 8,000 MB each, of the machine's 16,000 MB"
    )
    assert await trains("40GB", device="cuda")  # its own memory is another


async def test_a_file_that_only_trains_has_a_line_for_it(tmp_path, monkeypatch):
    (tmp_path / "provider.toml").write_text(
        'key = "k"\nstate = "s"\nrelays = ["ws://127.0.0.1:9"]\nblossom = ["http://127.0.0.1:9"]\n'
        f'committee = "38841:{"0" * 64}:main"\n'
        '[wallet]\nurl = "http://127.0.0.1:9"\ntoken_file = "t"\n'
        "[worker]\nmemory = 500\n[train]\nmsat_per_pflop = 1\n"
    )

    async def passed(*_):
        return ""

    for check in ("_sandbox", "_relay", "_store", "_committee", "_wallet"):
        monkeypatch.setattr(doctor, check, passed)
    monkeypatch.setattr(doctor.doctor_network, "checks", lambda role: [])
    rows = dict(await doctor._examine(tmp_path / "provider.toml"))
    assert not rows["[train]"].ok
