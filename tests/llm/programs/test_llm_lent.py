"""Ends that are lent: the first stage embeds, the last one answers the likeliest tokens, and the driver has neither."""

import random

import pytest
import torch

from bench.decode.emulation.known_text import Knowing
from bench.tasks.tiny_decoders import make_family
from nodewire.errors import BadFrame, BadManifest, BadTask, NodewireError, Unsupported
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.programs.programs import DriverProgram, StageProgram
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import ROOMY, Ring, make_model, prompt_frame
from tests.llm.quant.test_llm_memory import MANY_HEADS, peak_bytes

PROMPT = [5, 77, 130, 9, 201, 44, 12]
LONG = [(7 * i * i + 3 * i) % 299 + 1 for i in range(150)]
FAMILIES = ("mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3", "mixtral", "gpt_oss", "glm4_moe")


@pytest.fixture(scope="module")
def lent(plain, tmp_path_factory):
    found = split_decoder(plain, 1_600_000, tmp_path_factory.mktemp("lent"), slots=2, options=DecoderOptions(lend=True))
    assert len(found.manifest.tasks) >= 3
    return found


def program(registration, name, kind):
    task = registration.manifest.task(name)
    return kind.unpack(registration.blobs[task.program.sha256].read_bytes())


def last(registration):
    return registration.manifest.tasks[-1].name


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "long"])
def test_the_tokens_are_those_of_the_whole_model(model, prompt, tmp_path):
    made = split_decoder(model, 1_700_000, tmp_path, slots=1, options=DecoderOptions(lend=True))
    whole = LocalDecoder(model, dtype=program(made, made.manifest.driver.name, DriverProgram).dtype)
    expected = list(whole.tokens(prompt, Sampling(60)))
    ids, text, _ = Ring(made).generate(prompt, max_tokens=60)
    assert ids == expected
    assert text == whole.tokenizer.decode(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_of_every_family(made, family, tmp_path):
    folder = made(family)
    expected = list(LocalDecoder(folder).tokens(PROMPT, Sampling(30)))
    for stages in (1, 2):
        cut = split_decoder(
            folder, None, tmp_path / str(stages), slots=1, split=stages, options=DecoderOptions(lend=True)
        )
        assert Ring(cut).generate(PROMPT, max_tokens=30)[0] == expected


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_guesses_change_nothing(lent, right):
    ring = Ring(lent, ROOMY)
    expected = ring.generate(PROMPT, max_tokens=120)
    text = [*PROMPT, *expected[0]]
    for lookahead, width in ((2, 1), (16, 3), (64, 4)):
        ring.actors["driver"]._make_drafters = lambda sampler, width=width: [
            Knowing(text, lambda at: random.Random(at).random() < right, 300, width)
        ]
        assert ring.generate(PROMPT, max_tokens=120, lookahead=lookahead) == expected


def test_only_ids_go_to_the_ring_and_come_back(lent):
    ring, seen = Ring(lent), []
    step = ring.step
    ring.step = lambda session, frame: seen.append(frame) or step(session, frame)
    ring.generate(LONG, max_tokens=4)
    for frame in seen:
        if frame.edge in ("hidden.0", "return"):
            assert (frame.tensors[0].dtype, frame.tensors[0].shape[2]) == (torch.int64, 1)
    edges = {edge.name: edge for edge in lent.manifest.edges}
    assert edges["hidden.0"].bytes_per_position == edges["return"].bytes_per_position == 8
    assert edges["hidden.1"].bytes_per_position == 4 * 64


def test_a_driver_holds_its_tokenizer_alone(lent, registration):
    driver = lent.manifest.driver
    assert len(driver.weights) == 1
    assert driver.memory_bytes < registration.manifest.driver.memory_bytes
    assert program(lent, "driver", DriverProgram).tensors == {}


def test_a_program_without_lent_ends_says_nothing_of_them(registration):
    assert "lends" not in program(registration, "driver", DriverProgram).document()
    assert not {"takes_ids", "gives_ids"} & program(registration, "stage.0", StageProgram).document().keys()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7, "seed": 1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"5": 1}},
        {"logprobs": 0},
        {"json_object": True},
    ],
    ids=lambda params: next(iter(params)),
)
def test_what_needs_logits_is_refused_by_name(lent, params):
    driver = Ring(lent).actors["driver"]
    with pytest.raises(Unsupported) as caught:
        driver.open("s", {"max_tokens": 3, **params})
    assert caught.value.field == ("json_schema" if "json_object" in params else next(iter(params)))
    driver.open("s", {"max_tokens": 3})


IDS = torch.tensor([[[5], [6]]])


@pytest.mark.parametrize(
    "tensors",
    [
        (IDS.int(),),
        (IDS.float(),),
        (IDS[0],),
        (IDS[..., 0],),
        (IDS.expand(1, 2, 64),),
        (torch.tensor([[[300]]]),),
        (torch.tensor([[[-1]]]),),
        (torch.tensor([[[2**62]]]),),
        (torch.zeros(1, 257, 1, dtype=torch.int64),),
        (IDS, IDS),
        (),
    ],
    ids=["int32", "float32", "rank 2", "rank 2 again", "too wide", "beyond", "negative", "huge", "long", "two", "none"],
)
def test_a_stage_that_embeds_takes_ids_of_the_vocabulary_and_nothing_else(lent, tensors):
    stage = Ring(lent).actors["stage.0"]
    stage.open("s", {})
    with pytest.raises(BadFrame):
        stage.receive("s", Frame("hidden.0", 0, tensors, {"pos": 0, "chunk": 0, "tokens": 2}))
    (answer,) = stage.receive("s", Frame("hidden.0", 0, (IDS,), {"pos": 0, "chunk": 0, "tokens": 2}))
    assert answer.tensors[0].shape == (1, 2, 64)


@pytest.mark.parametrize(
    "back", [torch.tensor([[[300]]]), torch.tensor([[[-1]]]), torch.zeros(1, 1, 64), torch.tensor([[[4], [5]]])]
)
def test_a_driver_takes_back_ids_of_the_vocabulary_and_nothing_else(lent, back):
    driver = Ring(lent).actors["driver"]
    driver.open("s", {"max_tokens": 3})
    driver.receive("s", prompt_frame(PROMPT))
    with pytest.raises(BadFrame):
        driver.receive("s", Frame("return", 0, (back,), {"pos": len(PROMPT) - 1, "chunk": 0, "tokens": 1}))


def test_rows_that_are_not_finite_end_their_session_alone(lent):
    stage = Ring(lent).actors[last(lent)]
    edge = stage.program.edge_in
    good, bad = torch.randn(1, 3, 64), torch.full((1, 3, 64), torch.nan)
    for session in "ab":
        stage.open(session, {})
    meta = {"pos": 0, "chunk": 0, "tokens": 3}
    with pytest.raises(BadFrame):
        stage.receive("b", Frame(edge, 0, (bad,), meta))
    huge = Frame(edge, 0, (bad.nan_to_num(3e38),), meta)
    found = stage.receive_together([("a", (Frame(edge, 0, (good,), meta),)), ("b", (huge,))])
    assert found[0][0].tensors[0].shape == (1, 1, 1)
    assert isinstance(found[1], NodewireError)


def test_a_frame_without_rows_is_answered_so(lent):
    for name, empty in (("stage.0", torch.empty(1, 0, 1, dtype=torch.int64)), (last(lent), torch.empty(1, 0, 64))):
        stage = Ring(lent).actors[name]
        stage.open("s", {})
        meta = {"pos": 0, "chunk": 0, "tokens": 0}
        (answer,) = stage.receive("s", Frame(stage.program.edge_in, 1, (empty,), meta))
        assert answer.tensors[0].shape == (1, 0, 64 if name == "stage.0" else 1)
        assert answer.tensors[0].dtype == (torch.float32 if name == "stage.0" else torch.int64)


def test_a_prompt_that_begins_alike_is_found_again(plain, tmp_path):
    whole = split_decoder(plain, None, tmp_path, slots=2, split=1, options=DecoderOptions(lend=True))
    stage, answers = Ring(whole).actors["stage.0"], []
    for session in ("first", "second"):
        stage.open(session, {"prefixes": "mia"})
        for at in (0, PAGE):
            ids = torch.tensor(LONG[at : at + PAGE])[None, :, None]
            (answer,) = stage.receive(session, Frame("hidden.0", 0, (ids,), {"pos": at, "chunk": 0, "tokens": PAGE}))
            answers.append((int(answer.tensors[0]), answer.meta.get("cached", 0)))
        stage.close(session)
    assert [cached for _, cached in answers] == [0, 0, PAGE, PAGE]
    assert [token for token, _ in answers[:2]] == [token for token, _ in answers[2:]]


@pytest.mark.parametrize(
    ("name", "change"),
    [("stage.1", {"takes_ids": True}), ("stage.0", {"gives_ids": True}), ("stage.0", {"takes_ids": False})],
)
def test_ends_are_where_a_model_has_them(lent, name, change):
    said = program(lent, name, StageProgram).document()
    with pytest.raises(BadTask):
        StageProgram.from_document({**said, **change})


def test_a_driver_that_lends_has_no_tensors_of_its_own(registration):
    said = program(registration, "driver", DriverProgram).document()
    with pytest.raises(BadTask):
        DriverProgram.from_document({**said, "lends": True})
    with pytest.raises(BadTask):
        DriverProgram.from_document({**said, "tensors": {}})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_every_task_stays_within_its_stated_memory(tmp_path, dtype, tied):
    shape = MANY_HEADS | {"max_position_embeddings": 1024, "tie_word_embeddings": tied}
    folder = make_model(tmp_path / "model", shape, torch.bfloat16)
    made = split_decoder(folder, 40_000_000, tmp_path / "out", slots=2, options=DecoderOptions(dtype=dtype, lend=True))
    kind, positions = getattr(torch, dtype), 1024
    (stage,) = (task for task in made.manifest.tasks if task.name != "driver")
    ids = torch.randint(0, 299, (1, positions, 1))

    def run():
        data = made.blobs[stage.program.sha256].read_bytes()
        actor = load(stage.engine, data, [made.blobs[blob.sha256] for blob in stage.weights], ROOMY)
        for session in ("a", "b"):
            actor.open(session, {})
            actor.receive(session, Frame("hidden.0", 0, (ids[:, :-256],), {"pos": 0, "chunk": 0, "tokens": 768}))
            actor.receive(session, Frame("hidden.0", 1, (ids[:, -256:],), {"pos": 768, "chunk": 0, "tokens": 256}))

    assert kind is not None
    assert peak_bytes(run, tmp_path / "trace.json") <= stage.memory_bytes


def test_a_model_that_lends_its_head_says_so_by_its_returns(lent, registration):
    assert lent.manifest.lends_its_head
    assert not registration.manifest.lends_its_head
    said = lent.manifest.document()
    with pytest.raises(BadManifest):
        Manifest.from_document({**said, "edges": []})


def test_quantized_ones_too(tmp_path):
    from nodewire.llm.quant.checkpoint_writer import quantize

    folder = make_family(tmp_path / "plain", "qwen2", torch.bfloat16, hidden_size=128, intermediate_size=256)
    quantize(folder, tmp_path / "int8", "int8")
    expected = list(LocalDecoder(tmp_path / "int8").tokens(PROMPT, Sampling(20)))
    made = split_decoder(tmp_path / "int8", None, tmp_path / "out", slots=1, split=2, options=DecoderOptions(lend=True))
    assert Ring(made).generate(PROMPT, max_tokens=20)[0] == expected
