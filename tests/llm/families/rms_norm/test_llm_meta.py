"""A Llama as Meta lays it out says what it says in the other layout; its tokenizers need no further library."""

import base64
import json
import math
import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from nodewire.errors import BadInput, BadTask, NotFound
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.meta_tokenizer import converted
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.llm.tokens.tokenizer import Tokenizer
from tests.llm.llm_models import PLAIN, Ring, make_model

PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(70)]
NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn": "attention",
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
ROPE3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8_192,
}


def in_metas_layout(theirs, folder, **params):
    """What a Hugging Face folder holds, renamed, and the dimensions that turn together beside each other."""
    folder.mkdir()
    config = json.loads((theirs / "config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    tensors = {}
    for name, tensor in load_file(theirs / "model.safetensors").items():
        if "q_proj" in name or "k_proj" in name:
            tensor = tensor.view(-1, 2, head // 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        for old, new in NAMES.items():
            name = name.replace(old, new)
        tensors[name] = tensor.contiguous()
    save_file(tensors | {"rope.freqs": torch.ones(head // 2)}, folder / "consolidated.safetensors")
    said = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "vocab_size": -1,
        "multiple_of": 32,
        "ffn_dim_multiplier": 0.55,
        "norm_eps": config["rms_norm_eps"],
    }
    (folder / "params.json").write_text(json.dumps(said | params))
    (folder / "tokenizer.json").write_bytes((theirs / "tokenizer.json").read_bytes())
    return folder


@pytest.mark.parametrize("how", ["llama 2", "llama 3.1"])
def test_the_two_layouts_say_the_same(tmp_path, how):
    new = how == "llama 3.1"
    shape = PLAIN | {"rope_parameters": ROPE3, "max_position_embeddings": 131_072} if new else PLAIN
    theirs = make_model(tmp_path / "theirs", shape, torch.bfloat16)
    params = {"rope_theta": 500_000.0, "use_scaled_rope": True} if new else {}
    ours = in_metas_layout(theirs, tmp_path / "ours", **params)
    expected, whole = (LocalDecoder(one, context=256, dtype="float32") for one in (theirs, ours))
    assert torch.equal(expected.logits(PROMPT), whole.logits(PROMPT))
    tokens = list(whole.tokens(PROMPT, Sampling(40)))
    registration = split_decoder(
        ours, 1_600_000, tmp_path / "out", slots=1, options=DecoderOptions(context=256, dtype="float32")
    )
    assert len(registration.manifest.tasks) >= 3
    ids, _, _ = Ring(registration).generate(PROMPT, max_tokens=40)
    assert ids == tokens


def test_a_dry_run_needs_params_json_alone_if_it_says_how_large_the_vocabulary_is(tmp_path):
    theirs = make_model(tmp_path / "theirs", PLAIN, torch.bfloat16)
    ours = in_metas_layout(theirs, tmp_path / "ours")
    real = split_decoder(ours, 1_600_000, tmp_path / "out", slots=1, name="one", options=DecoderOptions(context=256))
    weights, params = ours / "consolidated.safetensors", json.loads((ours / "params.json").read_text())

    def dry():
        made = split_decoder(ours, 1_600_000, None, slots=1, name="one", options=DecoderOptions(context=256))
        assert [task.program for task in made.manifest.tasks] == [task.program for task in real.manifest.tasks]
        assert (made.manifest.edges, made.upload_bytes) == (real.manifest.edges, real.upload_bytes)
        return made.lacks

    assert dry() == ()
    weights.unlink()
    (ours / "consolidated.00.pth").write_bytes(b"never read")
    with pytest.raises(BadInput, match="safetensors"):
        dry()
    (ours / "params.json").write_text(json.dumps(params | {"vocab_size": 300}))
    assert dry() == (weights.name,)
    with pytest.raises(BadInput, match="safetensors"):
        open_checkpoint(ours)
    (ours / "tokenizer.json").unlink()
    bare = split_decoder(ours, 1_600_000, None, slots=1, name="one", options=DecoderOptions(context=256))
    assert bare.lacks == (weights.name, "tokenizer.model")
    programs = ([task.program for task in made.manifest.tasks[1:]] for made in (bare, real))
    assert next(programs) == next(programs) != []


def test_pickles_are_refused_with_what_to_do(tmp_path):
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(NotFound, match="consolidated"):
        open_checkpoint(tmp_path)
    (tmp_path / "consolidated.00.pth").write_bytes(b"never read")
    with pytest.raises(BadInput, match="safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dim", 0),
        ("n_heads", "8"),
        ("of_tomorrow", 1),
        ("moe", {"num_experts": 8}),
        ("multiple_of", 0),
        ("head_dim", 5),
    ],
)
def test_params_that_are_not_a_llamas_are_refused(plain, tmp_path, field, value):
    with pytest.raises(BadTask):
        open_checkpoint(in_metas_layout(plain, tmp_path / "ours", **{field: value}))


WORDS = ["the ", "cat", "at", "th", "he", "hat", "that", "e ", "ca", " c"]
RANKS = {bytes([i]): i for i in range(256)} | {word.encode(): 256 + i for i, word in enumerate(sorted(WORDS, key=len))}
TIKTOKEN = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())


def joined(parts, best):
    """Of all neighbours the best joined first, the leftmost of equals, until none is left."""
    while True:
        found = [(best[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in best]
        if not found:
            return parts
        _, i = min(found)
        parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]


@given(st.text(alphabet="thecat", max_size=12))
def test_a_list_of_ranks_joins_bytes_as_its_ranks_say(word):
    tokenizer = Tokenizer(converted(TIKTOKEN)[0])
    whole = word.encode()
    parts = [whole] if whole in RANKS else joined([bytes([byte]) for byte in whole], RANKS)
    assert tokenizer.encode(word) == [len(RANKS), *(RANKS[part] for part in parts if part)]


@given(st.text(max_size=40).filter(lambda text: "<|" not in text))
def test_any_text_comes_back(text):
    data, ends = converted(TIKTOKEN)
    tokenizer = Tokenizer(data)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert ends == [len(RANKS) + i for i in (1, 8, 9)]


def field(number, value):
    """A protobuf field: bytes, a number, or a float."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


LETTERS = {letter: -100.0 - i for i, letter in enumerate("▁thecax")}
PAIRS = {"th": -1.0, "he": -2.0, "the": -3.0, "▁the": -4.0, "at": -5.0, "ca": -6.0, "cat": -7.0, "▁c": -8.0}
PIECES = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{i:02X}>", 0.0, 6) for i in range(256)),
    *((text, score, 1) for text, score in (PAIRS | LETTERS).items()),
]


def sentencepiece(pieces=PIECES, kind=2):
    rows = [field(1, text.encode()) + field(2, score) + field(3, sort) for text, score, sort in pieces]
    return b"".join(field(1, row) for row in rows) + field(2, field(3, kind))


@given(st.text(alphabet="thecax", min_size=1, max_size=12))
def test_a_sentencepiece_model_joins_what_scores_best(word):
    tokenizer = Tokenizer(converted(sentencepiece())[0])
    parts = joined(list("▁" + word), {text: -score for text, score in PAIRS.items()})
    ids = {text: i for i, (text, _, _) in enumerate(PIECES)}
    assert tokenizer.encode(word) == [1, *(ids[part] for part in parts)]


def test_a_sentencepiece_model_falls_back_to_bytes():
    data, ends = converted(sentencepiece())
    tokenizer = Tokenizer(data)
    assert ends == [2]
    assert tokenizer.decode(tokenizer.encode("the 你 cat")) == "the 你 cat"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\n\x05ab",
        b"\x0b",
        b"IQ== zero\n",
        b"IQ== 7\n",
        b"!! 0\n",
        sentencepiece(kind=1),
        sentencepiece([("a", 0.0, 1)] * 2),
        sentencepiece([("a" * 600, 0.0, 1)]),
        sentencepiece([*PIECES, ("xx", math.nan, 1)]),
        field(1, field(1, b"\xff")) + field(2, field(3, 2)),
        TIKTOKEN + b"".join(base64.b64encode(bytes([65]) * n) + b" %d\n" % (264 + n) for n in range(2, 600)),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(data):
    with pytest.raises(BadTask, match="tokenizer"):
        converted(data)
