"""The dishonest providers of tests/faults: found as a kind, harmless to others, and each cheat does what it says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

FAULTS = Path(__file__).parent.parent / "faults"
sys.path.append(str(FAULTS))

from nodewire_faults import CHEATS, WORKERS, choice  # noqa: E402
from nodewire_faults.cheats import Flipped, Honest, Nan, Scaled, Short, Skipped, Stale, Wrong  # noqa: E402
from nodewire_faults.engine import Faulty, cast, narrow_cache, noisy, pruned, rounded, without  # noqa: E402

from nodewire.kind import Limits  # noqa: E402
from nodewire.llm import entry as llm  # noqa: E402
from nodewire.llm.checkpoint.splitter import split_decoder  # noqa: E402
from nodewire.llm.tokens import sampler  # noqa: E402
from nodewire.llm.tokens.sampling_params import Sampling  # noqa: E402
from nodewire.protocol.tensors.frame import Frame  # noqa: E402
from nodewire.worker.client import WorkerProcess  # noqa: E402
from tests.kinds.inprocess import to_arrays  # noqa: E402
from tests.kinds.llama import make_llama  # noqa: E402

torch.set_num_threads(1)


def hidden(seed, n=1):
    return torch.randn(1, n, 16, generator=torch.Generator().manual_seed(seed))


def frame(edge, seq, *tensors):
    return Frame(edge, seq, tensors, {"pos": seq})


@pytest.mark.parametrize("cheat", CHEATS)
def test_the_launcher_puts_the_faulty_kind_in_the_place_of_the_real_one(cheat):
    code = (
        "import sys; sys.path += sys.argv[1:]; from nodewire.kind import installed; "
        "print(installed()[8843].worker_entry)"
    )
    environment = {**os.environ, "NODEWIRE_FAULTS_CHEAT": cheat}
    done = subprocess.run(
        [sys.executable, "-c", code, str(FAULTS), str(FAULTS / "installed")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == f"nodewire_faults.workers.{WORKERS[cheat]}", done.stderr


def test_every_worker_entry_is_some_cheats():
    modules = {path.stem for path in (FAULTS / "nodewire_faults" / "workers").glob("*.py")} - {"__init__"}
    assert set(WORKERS.values()) == modules


def test_without_the_launcher_the_real_kind_is_found():
    code = "from nodewire.kind import installed; print(installed()[8843].worker_entry)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "kinds.k8843_worker"


def test_wrong_numbers_have_the_form_of_right_ones():
    out = frame("b", 0, hidden(11, 4), torch.tensor([5]))
    sent = Wrong().corrupt(frame("a", 0), out)
    assert sent.tensors[0].shape == out.tensors[0].shape
    assert sent.meta == out.meta
    assert not torch.allclose(sent.tensors[0], out.tensors[0], atol=0.5)
    assert torch.equal(sent.tensors[1], out.tensors[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_noise_is_five_percent_of_the_spread(dtype):
    x = hidden(1, 400).to(dtype)
    sent = Scaled().corrupt(frame("a", 0), frame("b", 0, x)).tensors[0]
    assert sent.dtype is dtype
    assert (sent.float() - x.float()).std() / x.float().std() == pytest.approx(0.05, rel=0.1)


def test_a_skipped_layer_returns_its_input_or_the_last_positions_of_it():
    x = hidden(1, 4)
    assert torch.equal(Skipped().corrupt(frame("a", 0, x), frame("b", 0, hidden(2, 4))).tensors[0], x)
    assert torch.equal(Skipped().corrupt(frame("a", 0, x), frame("b", 0, hidden(2, 1))).tensors[0], x[:, -1:])
    assert not Skipped().corrupt(frame("a", 0, torch.tensor([1])), frame("b", 0, hidden(2))).tensors[0].any()


def test_a_stale_answer_is_the_one_before():
    cheat, first, second, third = Stale(), hidden(1, 4), hidden(2), hidden(3)
    assert torch.equal(cheat.corrupt(frame("a", 0), frame("b", 0, first)).tensors[0], first)
    assert torch.equal(cheat.corrupt(frame("a", 1), frame("b", 1, second)).tensors[0], first[:, -1:])
    assert torch.equal(cheat.corrupt(frame("a", 2), frame("b", 2, third)).tensors[0], second)


def test_a_stale_answer_may_be_of_another_session_and_fits_or_is_honest():
    shared = {}
    first, other = hidden(1, 4), hidden(2, 3)
    assert torch.equal(Stale(shared).corrupt(frame("a", 0), frame("b", 0, first)).tensors[0], first)
    assert torch.equal(Stale(shared).corrupt(frame("a", 0), frame("b", 0, other)).tensors[0], first[:, -3:])
    longer = hidden(3, 9)
    assert torch.equal(Stale(shared).corrupt(frame("a", 0), frame("b", 0, longer)).tensors[0], longer)
    assert torch.equal(Stale(shared).corrupt(frame("a", 0), frame("b", 0, hidden(4, 4))).tensors[0], first)


def test_rubbish_is_not_finite_or_beyond_every_table_or_short_of_a_row():
    out = frame("b", 0, hidden(1, 4), torch.tensor([5]))
    sent = Nan().corrupt(frame("a", 0), out)
    assert sent.tensors[0].isnan().all() and torch.equal(sent.tensors[1], out.tensors[1])
    assert Nan().corrupt(frame("a", 0), frame("b", 0, torch.tensor([5]))).tensors[0].tolist() == [2**63 - 1]
    rows = torch.arange(6).reshape(3, 2)
    assert Short().corrupt(frame("a", 0), frame("b", 0, rows)).tensors[0].tolist() == [[0, 1], [2, 3]]


def test_a_driver_that_lies_gives_out_other_integers():
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert Wrong().corrupt(frame("a", 0), frame("b", 0, ids)).tensors[0].tolist() == [[3, 1, 2], [6, 4, 5]]
    cheat = Stale()
    cheat.corrupt(frame("a", 0), frame("b", 0, ids))
    assert torch.equal(cheat.corrupt(frame("a", 1), frame("b", 1, ids + 1)).tensors[0], ids)


def test_exchanged_weights_are_near_the_real_ones_and_vectors_stay():
    for change, least, most in ((noisy(0.1), 0.05, 0.2), (rounded(8), 1e-4, 0.02)):
        matrix, vector = torch.randn(64, 64), torch.randn(64)
        before = matrix.clone(), vector.clone()
        change("matrix", matrix)
        change("vector", vector)
        assert least < (matrix - before[0]).norm() / before[0].norm() < most
        assert torch.equal(vector, before[1])


def test_a_narrow_cache_alters_prompts_and_single_tokens(tmp_path, monkeypatch):
    made = split_decoder(make_llama(tmp_path / "llama"), 2_000_000, tmp_path, slots=1)
    stage = next(task for task in made.manifest.tasks if task.engine == "decoder.stage")
    edge = next(edge.name for edge in made.manifest.inputs(stage.name))
    blobs = [tmp_path / weight.sha256 for weight in stage.weights]
    program = (tmp_path / stage.program.sha256).read_bytes()
    monkeypatch.setattr(F, "scaled_dot_product_attention", F.scaled_dot_product_attention)  # put back afterwards

    def outs() -> list[torch.Tensor]:
        actor = llm.load(stage.engine, program, blobs, Limits(memory_bytes=10**8, threads=1))
        actor.open("s", {"max_tokens": 4})
        taken = [
            Frame(
                edge,
                0,
                (torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(1)),),
                {"pos": 0, "chunk": 0, "tokens": 5},
            ),
            Frame(
                edge,
                1,
                (torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(2)),),
                {"pos": 5, "chunk": 1, "tokens": 1},
            ),
        ]
        return [out.tensors[0] for one in taken for out in actor.receive("s", one)]

    honest = outs()
    assert not narrow_cache()
    sent = outs()
    assert [torch.equal(a, b) for a, b in zip(honest, sent, strict=True)] == [False, False]


def test_weights_pruned_or_held_in_a_narrower_dtype_are_near_the_real_ones():
    matrix = torch.randn(64, 64)
    for change, least, most in ((pruned(0.1), 0.001, 0.1), (cast("float16"), 1e-5, 1e-3)):
        altered = matrix.clone()
        change("matrix", altered)
        assert least < (matrix - altered).norm() / matrix.norm() < most
    assert (altered == altered.half().float()).all()


def test_a_layer_that_is_left_out_ends_its_branches_with_zeros():
    change = without([1])
    for name, zero in (
        ("model.layers.1.self_attn.o_proj.weight", True),
        ("model.layers.1.mlp.up_proj.weight", False),
        ("model.layers.0.mlp.down_proj.weight", False),
        ("model.encoder.layer.1.output.dense.bias", True),
        ("model.encoder.layer.1.output.LayerNorm.bias", False),
    ):
        tensor = torch.ones(3)
        change(name, tensor)
        assert (not tensor.any()) is zero, name


def test_flipped_channels_change_their_sign_and_no_other():
    x = hidden(1, 5)
    sent = Flipped(3).corrupt(frame("a", 0), frame("b", 0, x)).tensors[0]
    other = (sent != x).any(dim=1)[0]
    assert int(other.sum()) == 3
    assert torch.equal(sent[..., other], -x[..., other])


class Echo:
    """An honest actor: each frame comes back on edge b."""

    def __init__(self):
        self.params = None

    def open(self, session, params):
        self.params = params

    def receive(self, session, taken):
        return [frame("b", taken.seq, *taken.tensors)]

    def close(self, session):
        return


def test_orders_limit_a_cheat_to_tasks_and_frames_and_do_not_reach_the_honest_actor():
    for orders, spoilt in (
        ({"tasks": ["t"], "after": 1, "task": "t"}, [False, True]),
        ({"tasks": ["u"], "after": 0, "task": "t"}, [False, False]),
        ({"tasks": [], "after": 0, "task": "t"}, [True, True]),
    ):
        honest = Echo()
        actor = Faulty(honest, Wrong)
        actor.open("s", {"max_tokens": 1, "nodewire_faults": orders})
        assert honest.params == {"max_tokens": 1}
        for seq, expected in enumerate(spoilt):
            x = hidden(seq, 8)
            (sent,) = actor.receive("s", frame("a", seq, x))
            assert torch.equal(sent.tensors[0], x) is not expected


def test_a_driver_that_chooses_other_tokens_is_honest_as_a_verifier(monkeypatch):
    """Else it is convicted by what it verifies, before anything that it drives is drawn."""
    monkeypatch.setattr(sampler, "choose", sampler.choose)
    choice.choose_with(choice.second_best)

    class Driver(Echo):
        def receive(self, session, taken):
            return [frame("b", 0, torch.tensor(sampler.choose(torch.arange(4.0), Sampling(0.0), 28)))]

    actor = Faulty(Driver(), Honest)
    actor.open("job", {"nodewire_faults": {"tasks": ["driver"], "after": 0, "task": "driver"}})
    actor.open("verified", {})
    said = {name: int(actor.receive(name, frame("a", 0))[0].tensors[0]) for name in ("job", "verified")}
    assert said == {"job": 2, "verified": 3}


def test_who_only_exchanges_weights_sends_what_it_computes():
    x = frame("b", 0, hidden(1))
    assert Honest().corrupt(x, x) is x


async def test_the_faulty_worker_runs_in_the_real_sandbox(tmp_path):
    made = split_decoder(make_llama(tmp_path / "llama"), 2_000_000, tmp_path, slots=1)
    stage = made.manifest.task("stage.0")
    edge = next(e.name for e in made.manifest.edges if e.target == "stage.0")
    x = torch.randn(1, 3, 32)
    sent = {}
    for entry in ("kinds.k8843_worker", "nodewire_faults.workers.scaled"):
        worker = await WorkerProcess.start(entry, Limits(100_000_000), readable=[tmp_path])
        async with asyncio.timeout(60):
            weights = [made.blobs[w.sha256] for w in stage.weights]
            await worker.load("stage.0", stage.engine, made.blobs[stage.program.sha256], weights)
            session = await worker.open("stage.0", "s", {})
            (out,) = await session.receive(to_arrays(Frame(edge, 0, (x,), {"pos": 0, "chunk": 0})))
            sent[entry] = torch.frombuffer(bytearray(out.tensors[0].data), dtype=torch.float32)
            await worker.stop()
    honest, cheating = sent.values()
    assert 0.02 < (honest - cheating).norm() / honest.norm() < 0.1
