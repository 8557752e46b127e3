"""A draft model from a folder: the same tokens sooner, its memory counted, its vocabulary the driver's own."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer

from nodewire.config import CustomerConfig
from nodewire.errors import BadConfig, OverMemory
from nodewire.kind import Limits
from nodewire.llm.entry import driver_footprint, load
from nodewire.llm.programs.programs import DriverProgram
from nodewire.llm.speculation.draft_model import MAX_LANES, Draft
from nodewire.protocol.tensors.frame import Frame
from nodewire.worker.client import WorkerProcess
from tests.llm.llm_models import PLAIN, ROOMY, Ring, make_model
from tests.llm.quant.test_llm_memory import peak_bytes

PROMPT = [5, 77, 130, 9, 201, 44, 12]
SAMPLED = {"temperature": 3.0, "seed": 11}


def drafting(folder, room=2**30):
    return Limits(memory_bytes=room, draft=str(folder))


def driver_of(registration):
    """Its program, and its files."""
    task = registration.manifest.tasks[0]
    return registration.blobs[task.program.sha256], [registration.blobs[blob.sha256] for blob in task.weights]


def turns(ring, **params):
    """A generation, and how many frames went around the ring for it: each takes 100 ms by the driver's clock."""
    driver, sent, now_ns = ring.actors["driver"], [], [0]
    receive, driver._clock_ns = driver.receive, lambda: now_ns[0]

    def counted(session, frame):
        now_ns[0] += 100_000_000
        outs = receive(session, frame)
        sent.extend(out for out in outs if out.edge != "tokens")
        return outs

    driver.receive = counted
    try:
        return ring.generate(PROMPT, max_tokens=60, **params), len(sent)
    finally:
        driver.receive = receive


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_driver_with_a_draft_model_says_the_same_in_fewer_turns(registration, plain, params):
    expected, alone = turns(Ring(registration, ROOMY), **params)
    ring = Ring(registration, drafting(plain))
    assert turns(ring, **params) == (expected, alone)  # no guesses without lookahead
    found, frames = turns(ring, lookahead=16, **params)
    assert found == expected
    assert frames < alone / 2  # its own copy is always right
    if params:  # what the text itself says comes to little where it is drawn from almost everything
        assert frames < turns(Ring(registration, ROOMY), lookahead=16, **params)[1] * 0.6


def test_sessions_beyond_the_lanes_take_turns(registration, plain):
    ring = Ring(registration, drafting(plain))
    whole = [ring.generate(PROMPT[n:], max_tokens=20) for n in range(2)]
    under_way = []
    for n in range(2):
        ring.open(f"s{n}", max_tokens=20, lookahead=8)
        under_way.append(ring.frames(f"s{n}", PROMPT[n:]))
    ids = [[], []]
    for _ in range(20):
        for n, frames in enumerate(under_way):
            ids[n] += next(frames).tensors[0].tolist()
    assert ids == [one[0] for one in whole]


def test_its_memory_is_counted_and_covers_what_it_takes(registration, plain, tmp_path):
    path, files = driver_of(registration)
    program = DriverProgram.unpack(path.read_bytes())
    draft = Draft(plain, program, files[1].read_bytes())
    room = driver_footprint(program).total
    with pytest.raises(OverMemory, match="draft"):
        load("decoder.driver", path.read_bytes(), files, drafting(plain, room + draft.footprint.total - 1))
    load("decoder.driver", path.read_bytes(), files, drafting(plain, room + draft.footprint.total))
    text = list(range(1, 250))

    def serve():
        driver = load("decoder.driver", path.read_bytes(), files, drafting(plain))
        driver.open("s", {"lookahead": 8})
        driver.receive("s", Frame("prompt", 0, (torch.tensor(text),)))
        state = driver._sessions["s"]
        state.scheduler.expand(state.flight.head)

    used = peak_bytes(serve, tmp_path / "trace.json")
    tokenizer = program.tokenizer.bytes * 16  # which PyTorch does not allocate
    assert used <= room + draft.footprint.total - tokenizer


def test_it_keeps_no_more_lanes_than_sessions_or_four(registration, plain):
    path, files = driver_of(registration)
    program = DriverProgram.unpack(path.read_bytes())
    sizes = {}
    for slots in (1, 2, MAX_LANES, 64):
        said = program.model_copy(update={"slots": slots})
        sizes[slots] = Draft(plain, said, files[1].read_bytes()).footprint.caches
    assert sizes[1] < sizes[2] < sizes[MAX_LANES] == sizes[64]


def refused(registration, folder):
    path, files = driver_of(registration)
    with pytest.raises(BadConfig) as caught:
        load("decoder.driver", path.read_bytes(), files, drafting(folder))
    assert caught.value.field == "worker.draft" and str(folder) in caught.value.reason
    return caught.value.reason


def test_a_model_of_other_tokens_is_refused_by_name(registration, plain, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**PLAIN, vocab_size=299)).save_pretrained(tmp_path / "fewer")
    shutil.copy(plain / "tokenizer.json", tmp_path / "fewer")
    assert "a vocabulary of 299, the model's is 300" in refused(registration, tmp_path / "fewer")
    shutil.copytree(plain, tmp_path / "others")
    document = json.loads((plain / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    first, second = list(vocabulary)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tmp_path / "others" / "tokenizer.json").write_text(json.dumps(document))
    assert "other tokens" in refused(registration, tmp_path / "others")


def test_the_same_tokens_written_otherwise_will_do(registration, plain, tmp_path):
    folder = tmp_path / "same"
    shutil.copytree(plain, folder)
    document = json.loads((plain / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(document, indent=2))
    Tokenizer.from_file(str(folder / "tokenizer.json"))
    path, files = driver_of(registration)
    load("decoder.driver", path.read_bytes(), files, drafting(folder))


def test_a_folder_that_holds_no_model_is_refused_by_name(registration, tmp_path):
    assert refused(registration, tmp_path / "nothing")
    make_model(tmp_path / "cut", PLAIN, torch.float32)
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"\xff" * 64)
    assert refused(registration, tmp_path / "cut")


async def test_a_worker_reads_the_folder_that_its_operator_names(registration, plain):
    """And no other: what it may see is fixed before anything that a peer sent."""
    path, files = driver_of(registration)
    room = Limits(memory_bytes=2**28, draft=str(plain))
    worker = await WorkerProcess.start("kinds.k8843_worker", room, readable=[path.parent, *(f.parent for f in files)])
    try:
        await worker.load("driver", "decoder.driver", path, files)
        await worker.open("driver", "ab" * 32, {"max_tokens": 5, "lookahead": 4})
    finally:
        await worker.stop()


def test_a_draft_model_without_lookahead_is_a_mistake_of_the_file(tmp_path):
    lines = ['key = "k"', 'relays = ["ws://127.0.0.1:1"]', 'blossom = ["http://127.0.0.1:1"]', 'state = "s"']
    lines += [f'committee = "38841:{"ab" * 32}:c"']
    wallet = ["[wallet]", 'url = "http://127.0.0.1:1"', 'token_file = "t"', "[worker]", 'draft = "small"']
    path = tmp_path / "customer.toml"
    path.write_text("\n".join([*lines, *wallet]))
    with pytest.raises(BadConfig, match=r"worker\.draft"):
        CustomerConfig.load(path)
    path.write_text("\n".join([*lines, "lookahead = 8", *wallet]))
    assert CustomerConfig.load(path).worker.limits.draft == str(tmp_path / "small")
