"""A GGUF file goes wherever a model's folder goes, and its blocks stay as they are where tasks know them."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bench.fuzz import hostile_gguf as hostile
from bench.fuzz.hostile_gguf import ARRAY, F32, TEXT, U32
from nodewire.chat.folder import chat_template
from nodewire.core import extras
from nodewire.errors import BadInput, BadTask, NodewireError, NotFound, Unsupported
from nodewire.gguf.model import open_model
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.arithmetic import arithmetic_here
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.local.speculative import LocalSpeculation
from nodewire.llm.quant.blocks import unpacked, widened
from nodewire.llm.quant.checkpoint_writer import quantize
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.training.engine.models import directory, initial_weights
from nodewire.weights.tensorfile import AssembledTensor, elements, read
from tests.llm.gguf_files import in_gguf, made
from tests.llm.llm_models import PLAIN, ROOMY, Ring, make_model
from tests.training.engine.recipes import recipe

PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(40)]
SMALL = hostile.small()


def numbers(checkpoint, name):
    """A tensor's, as it is read, or as its blocks are."""
    if name in checkpoint.tensors:
        stored = checkpoint.tensors[name]
        return read(AssembledTensor(torch.float32, stored.shape, (stored,)))
    words, scales = (checkpoint.tensors[f"{name}_{part}"] for part in ("packed", "scale"))
    bits = checkpoint.config.quantization.scheme.removeprefix("int")
    codes = unpacked(read(AssembledTensor(torch.int32, words.shape, (words,))), int(bits))
    return widened(codes, read(AssembledTensor(torch.float32, scales.shape, (scales,))))


@pytest.mark.parametrize(("kind", "scheme"), [("Q8_0", "int8"), ("Q5_0", "int8"), ("Q4_0", "int4")])
def test_blocks_of_whole_numbers_stay_so_and_are_the_same_numbers(tmp_path, kind, scheme):
    path, reference = made(tmp_path, "llama, yarn", kind)
    checkpoint = open_checkpoint(path)
    how = checkpoint.config.quantization
    assert (how.scheme, how.group_size, how.plain) == (scheme, 32, ())
    theirs = load_file(reference / "model.safetensors")
    assert theirs.keys() == {name.removesuffix("_packed").removesuffix("_scale") for name in checkpoint.tensors}
    for name, tensor in theirs.items():
        assert torch.equal(numbers(checkpoint, name), tensor), name
    plain = open_checkpoint(path, in_blocks=False)
    assert plain.config.quantization is None
    for name, tensor in theirs.items():
        assert torch.equal(numbers(plain, name), tensor), name


def test_what_is_in_other_blocks_is_widened_and_the_rest_stays(tmp_path):
    def kind_of(name):
        return "Q4_1" if ".1.ffn_down" in name else "Q5_1" if "attn_output" in name else "Q4_0"

    path, reference = made(tmp_path, "llama, yarn", kind_of)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.quantization.scheme == "int4"
    assert checkpoint.config.quantization.plain == ("o", "1.down")
    for name, tensor in load_file(reference / "model.safetensors").items():
        assert torch.equal(numbers(checkpoint, name), tensor), name


def test_blocks_of_four_bits_go_with_those_of_eight_where_that_is_less(tmp_path):
    path, reference = made(tmp_path, "llama, yarn", lambda name: "Q4_0" if "attn_q" in name else "Q8_0")
    checkpoint = open_checkpoint(path)
    assert (checkpoint.config.quantization.scheme, checkpoint.config.quantization.plain) == ("int8", ())
    for name, tensor in load_file(reference / "model.safetensors").items():
        assert torch.equal(numbers(checkpoint, name), tensor), name


@pytest.mark.parametrize(("inner", "scheme"), [(96, "int8"), (128, "int4")])
def test_the_blocks_that_take_fewest_bytes_are_kept(tmp_path, inner, scheme):
    """A layer's MLP in 4 bits, attention in 8, which has 12,288 numbers: 1.5 times as many in 4, and 2 times."""
    path, _ = made(
        tmp_path, "llama, yarn", lambda name: "Q4_0" if "ffn" in name else "Q8_0", {"intermediate_size": inner}
    )
    how = open_checkpoint(path).config.quantization
    assert (how.scheme, how.plain) == (scheme, ("o", "qkv") if scheme == "int4" else ())


def test_a_part_of_a_tensor_is_that_part_of_it(tmp_path):
    path, _ = made(tmp_path, "llama, yarn", "Q4_1")
    stored = open_checkpoint(path).tensors["model.layers.1.self_attn.q_proj.weight"]
    whole = read(AssembledTensor(torch.float32, stored.shape, (stored,))).view(-1)
    for first, last in ((0, 1), (63, 65), (1_000, 1_029), (4_032, 4_096), (0, 4_096)):
        part = elements(elements(stored, first, last), 0, last - first)
        assert torch.equal(read(AssembledTensor(torch.float32, part.shape, (part,))), whole[first:last])


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_file_is_cut_into_a_ring_that_says_what_it_says_whole(tmp_path, kind):
    path, _ = made(tmp_path, "llama, yarn", kind)
    registration = split_decoder(
        path, None, tmp_path / "blobs", slots=1, split=3, options=DecoderOptions(dtype="float32")
    )
    whole, ring = LocalDecoder(path, dtype="float32"), Ring(registration, ROOMY)
    tokens = list(whole.tokens(PROMPT, Sampling(max_tokens=24)))
    assert ring.generate(PROMPT, max_tokens=24, temperature=0)[0] == tokens
    foreseen = split_decoder(path, None, None, slots=1, split=3, options=DecoderOptions(dtype="float32"))
    assert [task.memory_bytes for task in foreseen.manifest.tasks] == [
        task.memory_bytes for task in registration.manifest.tasks
    ]


def test_blocks_are_as_small_in_a_tasks_files_as_in_the_file(tmp_path):
    path, _ = made(tmp_path, "llama, yarn", "Q8_0")
    registration = split_decoder(path, None, tmp_path / "blobs", slots=1, split=1)
    stage = registration.manifest.tasks[1]
    own = open_model(path).tensors.items()
    matrices = sum(one.count for name, one in own if name.startswith("blk.") and len(one.shape) == 2)
    assert matrices * 34 // 32 < sum(blob.bytes for blob in stage.weights) < matrices * 34 // 32 + 20_000


def test_what_is_widened_is_widened_to_what_is_computed_in(tmp_path):
    path, _ = made(tmp_path, "llama, yarn", "Q4_1")
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        made_ = split_decoder(path, None, tmp_path / dtype, slots=1, split=1, options=DecoderOptions(dtype=dtype))
        sizes[dtype] = sum(blob.bytes for blob in made_.manifest.tasks[1].weights)
    assert 1.9 < sizes["float32"] / sizes["bfloat16"] < 2.0


@pytest.mark.parametrize(
    ("kind", "dtype", "alone"),
    [
        ("F32", "float32", "float32"),
        ("F16", "float32", "float32"),
        ("BF16", "bfloat16", "bfloat16"),
        ("Q4_1", "bfloat16", "float32"),
        ("Q8_0", "bfloat16", "bfloat16"),
    ],
)
def test_what_is_stored_in_few_bits_is_registered_in_bfloat16_and_alone_loses_nothing(tmp_path, kind, dtype, alone):
    path, _ = made(tmp_path, "llama, yarn", kind)
    registration = split_decoder(path, None, None, slots=1, split=1)
    assert {one.dtype for edge in registration.manifest.edges for one in edge.tensors} == {dtype, "int64"}
    assert arithmetic_here(open_checkpoint(path), torch.device("cuda")) == alone


def test_a_quantized_file_says_its_own_size_and_widens_to_bfloat16_what_is_in_no_block(tmp_path):
    path, _ = made(tmp_path, "llama, yarn", "Q4_1")
    size = path.stat().st_size
    said = []
    report = quantize(path, tmp_path / "out", "int8", lambda done, of: said.append((done, of)))
    assert report.read_bytes == size and said[-1] == (size, size)
    tensors = open_checkpoint(tmp_path / "out").tensors
    assert tensors["model.embed_tokens.weight"].dtype == "bfloat16"
    assert tensors["model.norm.weight"].dtype == "float32"


def test_a_file_is_quantized_to_a_folder_that_transformers_and_register_read(tmp_path):
    path, reference = made(tmp_path, "llama, yarn", "Q8_0")
    quantize(path, tmp_path / "ours", "int4")
    quantize(reference, tmp_path / "theirs", "int4")
    ours, theirs = open_checkpoint(tmp_path / "ours"), open_checkpoint(tmp_path / "theirs")
    assert ours.config == theirs.config
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        one, other = (b"".join(map(bytes, side.tensors[name].octets())) for side in (ours, theirs))
        assert one == other or ("packed" not in name and "scale" not in name), name
    assert chat_template(tmp_path / "ours") == chat_template(path)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "llama"


def test_a_file_guesses_ahead_for_another(tmp_path):
    path, _ = made(tmp_path, "llama, yarn", "Q8_0")
    params = {"max_tokens": 12, "temperature": 0, "lookahead": 4}
    found = [token for token, _ in LocalSpeculation(path, draft=path).steps("the quick", params)]
    assert found == [token for token, _ in LocalSpeculation(path).steps("the quick", {**params, "lookahead": 1})]


def test_a_file_is_a_start_of_training(tmp_path):
    folder = make_model(tmp_path / "plain", PLAIN, torch.float32)
    path, reference = in_gguf(folder, tmp_path / "made", "Q8_0")
    family = directory.family_of(path)
    assert family.start == directory.family_of(reference).start
    of = recipe("decoder").model_copy(update={"family": family})
    begun = initial_weights.read(of, path)
    assert initial_weights.cited(begun.tensors) == family.start
    assert begun.tokenizer == open_checkpoint(path).tokenizer


def small(tmp_path, file):
    path = tmp_path / "m.gguf"
    path.write_bytes(file.encode())
    return open_checkpoint(path)


FAULTS = {
    "another architecture": (SMALL.saying("general.architecture", TEXT, "rwkv7"), Unsupported, "rwkv7 is not one of"),
    "no width": (SMALL.without("llama.embedding_length"), BadTask, "llama.embedding_length: missing"),
    "no epsilon": (SMALL.without("llama.attention.layer_norm_rms_epsilon"), BadTask, "rms_epsilon: missing"),
    "an unknown key": (
        SMALL.saying("llama.ssm.state", U32, 1),
        BadTask,
        "llama.ssm.state: an unknown field that could change",
    ),
    "absurd layers": (SMALL.saying("llama.block_count", U32, 2**31 - 1), BadTask, "num_hidden_layers"),
    "absurd context": (SMALL.saying("llama.context_length", U32, 2**31 - 1), BadTask, "max_position_embeddings"),
    "layers that are not there": (
        SMALL.saying("llama.block_count", U32, 2),
        BadTask,
        "blk.1.attn_q.*: missing",
    ),
    "another width": (SMALL.saying("llama.embedding_length", U32, 64), BadTask, r"not \[64, 64\]"),
    "another scaling": (SMALL.saying("llama.rope.scaling.type", TEXT, "ntk"), BadTask, "ntk is not supported"),
    "an array for a number": (
        SMALL.saying("llama.logit_scale", ARRAY, (U32, [1, 2])),
        BadTask,
        "llama.logit_scale:.*not supported",
    ),
    "a text for a number": (SMALL.saying("llama.rope.freq_base", TEXT, "x"), BadTask, "rope_theta"),
    "a tensor too many": (
        SMALL.having("output_norm.weight", name="blk.0.attn_sub_norm.weight"),
        BadTask,
        "output_norm.weight: missing",
    ),
    "a tensor of another model": (
        hostile.File(SMALL.metadata, (*SMALL.tensors, hostile.Tensor("v.blk.0.weight", (8,), 0, bytes(32)))),
        BadTask,
        "v.blk.0.weight: is none of a llama",
    ),
    "no embedding": (SMALL.having("token_embd.weight", name="other"), BadTask, "token_embd.weight: missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_not_whole_or_not_known_is_refused_by_name(tmp_path, fault):
    file, error, said = FAULTS[fault]
    with pytest.raises(error, match=said):
        small(tmp_path, file)


def test_a_tiny_number_is_what_it_was_before_it_was_stored(tmp_path):
    assert small(tmp_path, SMALL.saying("llama.rope.freq_base", F32, 1e6)).config.rms_norm_eps == "1e-05"


def test_numbers_that_are_not_finite_are_refused_as_they_are_read(tmp_path):
    bad = np.full(hostile.WIDTH, np.nan, np.float32).tobytes()
    (tmp_path / "m.gguf").write_bytes(SMALL.having("output_norm.weight", data=bad).encode())
    with pytest.raises(BadTask, match="not finite"):
        LocalDecoder(tmp_path / "m.gguf")


def test_a_file_that_is_cut_short_after_it_was_opened_is_an_error(tmp_path):
    checkpoint = small(tmp_path, SMALL)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadTask, match="ends within a tensor"):
        for stored in checkpoint.tensors.values():
            list(stored.octets())


def test_without_the_library_blocks_are_refused_with_the_extra_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(NodewireError, match=r"gguf: not installed.*pip install '\.\[register\]'"):
        small(tmp_path, SMALL)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"none.gguf: not in"):
        open_checkpoint(tmp_path / "none.gguf")
    with pytest.raises((BadInput, NotFound)):
        open_checkpoint(tmp_path / "none")
