"""Keys and values in 8 bits: about what bfloat16 says, from half of the memory, wherever rows come from and lie."""

from dataclasses import replace

import pytest
import torch

from nodewire.errors import BadInput, BadTask
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.llm.programs import memory_estimate
from nodewire.llm.programs.needs import BLOCK
from nodewire.llm.programs.programs import StageProgram
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.protocol.model.manifest import REFERENCE_ENGINE
from nodewire.protocol.tensors.frame import MXINT8, Array, bytes_of
from nodewire.protocol.tensors.mxint8 import numbers
from nodewire.weights.mxint8 import narrowed, widened
from tests.llm.cuda_graphs.test_runner import CONTEXT, Sides
from tests.llm.kv.test_prefix_cache import PROMPT, pages
from tests.llm.llm_lanes import frame
from tests.llm.llm_models import ROOMY

POSITIONS = 4 * PAGE
WITHIN = 0.15
"""Of a row, how far 8 bits take it from where bfloat16 has it, in layers of such large random numbers that bfloat16
itself is 0.03 from the truth; rows of other tokens are off by all of it."""


@pytest.fixture
def stage_of(plain, tmp_path):
    """A stage of all layers in bfloat16, or its reference; `slots` sessions."""

    def make(kv, engine="decoder.stage", slots=2):
        made = split_decoder(
            plain, 2**30, tmp_path, slots=slots, options=DecoderOptions(context=POSITIONS, dtype="bfloat16", kv=kv)
        )
        _, task = made.manifest.tasks
        program = made.blobs[task.program.sha256].read_bytes()
        return load(engine, program, [made.blobs[blob.sha256] for blob in task.weights], ROOMY)

    return make


def said(stage, frames, session="s"):
    """What a stage answers, in bfloat16."""
    found = []
    for one in frames:
        (out,) = stage.receive(session, replace(one, tensors=(one.tensors[0].bfloat16(),)))
        found.append(out.tensors[0][0].float())
    return found


def steps(count, first):
    return [frame([(7 * pos) % 50], pos) for pos in range(first, first + count)]


def assert_near(made, expected, within):
    for a, b in zip(made, expected, strict=True):
        assert (a - b).norm() <= within * b.norm()


def test_a_stage_says_about_what_it_says_in_bfloat16(stage_of):
    told = [frame([n % 50 for n in range(100)], 0), *steps(20, 100), frame([1, 2, 3], 110), *steps(2, 113)]
    told += [frame([5, 6, 7], 115, parents=[-1, 0, 0]), frame([8], 117, keep=[0, 2])]
    answers = []
    for kv in ("int8", None):
        stage = stage_of(kv)
        stage.open("s", {})
        answers.append(said(stage, told))
    assert_near(*answers, WITHIN)
    assert not all(map(torch.equal, *answers))


def test_cells_hold_what_the_layout_says(stage_of):
    """A key's bytes are a row of MXINT8 as sketches read it, and reading it rounds nothing."""
    stage = stage_of("int8")
    stage.open("s", {})
    said(stage, [frame(list(range(10)), 0)])
    lane = stage._sessions["s"].lane
    for layer, cells in enumerate(stage._lanes.cells):
        keys, _ = lane.read(layer, 0, 10)
        raw = cells[0, :, lane.start : lane.start + 10].contiguous()
        array = Array(MXINT8, tuple(keys.shape), raw.numpy().tobytes())
        assert len(array.data) == bytes_of(MXINT8, keys.shape)
        assert torch.equal(torch.from_numpy(numbers(array)).view(keys.shape), keys.float())
        assert torch.equal(narrowed(keys), raw) and torch.equal(widened(raw, keys.shape[-1], torch.bfloat16), keys)


def test_what_is_found_of_a_prompt_is_what_was_computed_bit_by_bit(stage_of):
    """The answers that pages keep are not in 8 bits."""
    stage = stage_of("int8")
    answers = []
    for _ in range(2):
        stage.open("s", {"positions": 3 * PAGE, "prefixes": "mia"})
        answers.append(said(stage, pages(PROMPT)))
        stage.close("s")
    assert len(stage._prefixes) == 2
    assert all(map(torch.equal, *answers))


def test_captured_steps_keep_8_bits_too(plain, tmp_path, monkeypatch):
    monkeypatch.setattr("nodewire.llm.cuda_graphs.runner.MET", 1)
    sides = Sides(plain, tmp_path, dtype="bfloat16", kv="int8")
    sides.open("a", "b")
    for session in "ab":
        sides.say((session, frame([n % 50 for n in range(64)], 0)))
    for pos in range(64, min(90, CONTEXT)):
        calls = ("a", frame([pos % 50], pos)), ("b", frame([(7 * pos) % 50], pos))
        made, expected = zip(*sides.say(*calls), strict=True)
        assert_near([one.float() for one in made], [one.float() for one in expected], WITHIN)
    assert sides.graphs.replays >= 20 and not sides.graphs.off


def test_lanes_take_what_the_manifest_says_of_a_page(plain, stage_of):
    for kv, each in (("int8", 17), (None, 32)):  # head_dim is 16: in blocks a scale before 16 codes
        stage = stage_of(kv)
        config, layers = stage.program.config, stage.program.last
        page = memory_estimate.page_bytes(config, layers, dtype="bfloat16", kv=kv)
        assert page == layers * 2 * PAGE * config.num_key_value_heads * each
        assert sum(cells.nbytes for cells in stage._lanes.cells) == 2 * 4 * page


def test_a_reference_keeps_them_as_it_computes(stage_of):
    """In blocks its codes would be as far from honest ones as honest ones are from each other."""
    assert stage_of("int8").program.kv == "int8"
    reference = stage_of("int8", REFERENCE_ENGINE)
    assert reference._stage.program.kv is None
    reference.open("s", {})
    exact = stage_of(None, REFERENCE_ENGINE)
    exact.open("s", {})
    told = [frame([n % 50 for n in range(100)], 0), *steps(8, 100)]
    assert all(map(torch.equal, said(reference, told), said(exact, told)))


def test_8_bits_are_refused_where_judges_compare_finer(plain, stage_of, tmp_path):
    with pytest.raises(BadInput, match=r"^--kv: .*--dtype bfloat16"):
        split_decoder(plain, 2**30, tmp_path / "out", slots=1, options=DecoderOptions(kv="int8"))
    document = stage_of("int8").program.document()
    with pytest.raises(BadTask, match="kv"):
        StageProgram.from_document({**document, "dtype": "float32"})
    with pytest.raises(BadTask, match="kv"):
        StageProgram.from_document({**document, "kv": "int4"})
    assert "kv" not in stage_of(None).program.document() and document["block"] == BLOCK
