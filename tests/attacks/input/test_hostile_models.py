"""A model's tokenizer and metadata, which are a stranger's, must not fill the memory of who reads them."""

import base64
import json
import re
import resource
import time
from dataclasses import replace

import pytest

from bench.fuzz import hostile_gguf as hostile
from bench.fuzz.hostile_gguf import ARRAY, BOOL, F32, I32, TEXT, U16
from nodewire.errors import BadTask, TooLarge
from nodewire.graph import encoder
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.tokens import meta_tokenizer, sentencepiece
from nodewire.llm.tokens.sentencepiece import NORMAL, Piece, tokenizer_of
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.text import detokenizer
from nodewire.weights import directory as weights_directory
from nodewire.weights.directory import read_tokenizer

TEMPLATE = {"single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}}
A, DOUBLED = {"Sequence": {"id": "A", "type_id": 0}}, {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def substrings(text):
    """In which each is every two of its parts put together."""
    return sorted({text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)}, key=len)


@pytest.mark.parametrize("bound", ["MAX_MERGES", "MAX_MERGE_CHARS"])
def test_tokens_that_are_all_parts_of_each_other_are_refused_before_their_merges_are_made(tmp_path, monkeypatch, bound):
    pieces = substrings("abcdefghijklmnopqrst")
    count = sum(len(piece) - 1 for piece in pieces)
    most = {"MAX_MERGES": count, "MAX_MERGE_CHARS": sum(len(one) * (len(one) - 1) for one in pieces)}[bound]
    scored = [Piece(piece, 0.0, NORMAL) for piece in pieces]
    monkeypatch.setattr(sentencepiece, bound, most)
    assert len(json.loads(tokenizer_of(scored, "x").to_str())["model"]["merges"]) == count
    monkeypatch.setattr(sentencepiece, bound, most - 1)
    with pytest.raises(TooLarge, match="pairs"):
        tokenizer_of(scored, "x")
    tokens = ["<unk>", *pieces]
    file = hostile.small().without("tokenizer.ggml.merges")
    for key, kind, value in (
        ("model", TEXT, "llama"),
        ("tokens", ARRAY, (TEXT, tokens)),
        ("token_type", ARRAY, (I32, [2] + [1] * len(pieces))),
        ("scores", ARRAY, (F32, [0.0] * len(tokens))),
    ):
        file = file.saying(f"tokenizer.ggml.{key}", kind, value)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.encode())
    with pytest.raises(TooLarge, match=r"gguf\.tokenizer\.ggml\.tokens"):
        open_checkpoint(path)


def test_metas_tokenizers_are_bounded_as_others_are(monkeypatch):

    tokens = [
        *(bytes([byte]) for byte in range(256)),
        *(one.encode() for one in substrings("abcdefgh") if len(one) > 1),
    ]
    ranked = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    data, ends = meta_tokenizer.converted(ranked)
    assert ends and len(json.loads(data)["model"]["merges"]) == sum(len(one) - 1 for one in tokens)
    monkeypatch.setattr(sentencepiece, "MAX_MERGES", 83)
    with pytest.raises(TooLarge, match="pairs"):
        meta_tokenizer.converted(ranked)
    monkeypatch.setattr(meta_tokenizer, "MAX_CHARS", 300)
    with pytest.raises(TooLarge, match="300"):
        meta_tokenizer.converted(ranked)


def tokenizer_json(**said):
    document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "decoder": None}
    model = {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"}
    return json.dumps({**document, "normalizer": None, "pre_tokenizer": None, "model": model, **said}).encode()


def in_turn(kind, inner, parts):
    return {kind: {"type": "Sequence", inner: parts}}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("normalizer", in_turn("normalizer", "normalizers", [DOUBLED] * 40)),
        ("normalizer", in_turn("normalizer", "normalizers", [{"type": "Sequence", "normalizers": [DOUBLED] * 7}])),
        ("normalizer", {"normalizer": {**DOUBLED, "content": "a" * 10_000}}),
        ("normalizer", {"normalizer": {**DOUBLED, "pattern": {"Regex": ""}, "content": "a" * 100}}),
        ("normalizer", {"normalizer": {"type": "Prepend", "prepend": "a" * 10_000}}),
        ("normalizer", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAGFh" + "YWFh" * 50}}),
        ("normalizer", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}),
        ("normalizer", in_turn("normalizer", "normalizers", [{"type": "NFC"}] * 100)),
        ("normalizer", {"normalizer": [DOUBLED]}),
        ("post_processor", {"post_processor": {"type": "TemplateProcessing", **TEMPLATE, "single": [A, A]}}),
        (
            "post_processor",
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    **TEMPLATE,
                    "single": [A, *[{"SpecialToken": {"id": "u", "type_id": 0}}] * 100],
                    "special_tokens": {"u": {"id": "u", "ids": [1] * 100, "tokens": ["u"] * 100}},
                }
            },
        ),
    ],
    ids=lambda said: str(said)[:60],
)
def test_a_tokenizer_that_makes_much_of_a_text_is_refused_before_it_is_given_one(field, said):
    with pytest.raises(BadTask) as error:
        Tokenizer(tokenizer_json(**said))
    assert error.value.field == f"tokenizer.{field}"
    with pytest.raises(BadTask):
        encoder.tokenizer(tokenizer_json(**said), 64)


def test_what_models_own_tokenizers_do_with_a_text_is_still_done():
    from tokenizers import AddedToken, Regex, models, normalizers, processors
    from tokenizers import Tokenizer as Theirs

    made = Theirs(models.WordLevel({"▁a": 0, "u": 1, "<s>": 2}, "u"))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Prepend("▁"),
            normalizers.Lowercase(),
        ]
    )
    made.add_special_tokens([AddedToken("<s>")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 2)])
    assert Tokenizer(made.to_str().encode()).encode("A") == [2, 0, 2]


def test_a_tokenizer_of_many_values_is_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(detokenizer, "MAX_VALUES", 100)
    monkeypatch.setattr(weights_directory, "MAX_TOKENIZER_VALUES", 100)
    (tmp_path / "tokenizer.json").write_bytes(b'{"model":{},"x":[' + b"[]," * 101 + b"0]}")
    with pytest.raises(TooLarge, match="values"):
        read_tokenizer(tmp_path, 2**20)
    with pytest.raises(TooLarge, match="values"):
        encoder.tokenizer((tmp_path / "tokenizer.json").read_bytes(), 64)


@pytest.mark.parametrize("kind", [BOOL, U16])
def test_arrays_of_a_models_description_are_no_longer_than_a_model_has_layers(tmp_path, kind):
    path = tmp_path / "model.gguf"
    path.write_bytes(hostile.small().saying("llama.block_count", ARRAY, (kind, [n % 2 for n in range(1_025)])).encode())
    began_s = time.process_time()
    with pytest.raises(TooLarge, match="block_count"):
        open_checkpoint(path)
    assert time.process_time() - began_s < 10


def test_booleans_take_as_much_as_they_do_in_the_file(tmp_path):
    from nodewire.gguf import header

    path = tmp_path / "model.gguf"
    path.write_bytes(hostile.small().saying("x", ARRAY, (BOOL, [1, 0] * 2**20)).encode())
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = header.read(path).metadata["x"]
    assert found.nbytes == 2**21 and found[:2].tolist() == [True, False]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 12 * 1_024
    path.write_bytes(hostile.small().saying("tokenizer.ggml.token_type", ARRAY, (BOOL, [1] * hostile.TOKENS)).encode())
    with pytest.raises(BadTask, match="token_type"):
        open_checkpoint(path)


def shards(folder, **second):
    """The first of two files of a small model, of which the second says these keys, too."""
    whole = hostile.small()
    for number in (0, 1):
        made = replace(whole, tensors=whole.tensors[:5] if not number else whole.tensors[5:])
        made = made if not number else replace(made, metadata=())
        said = {"split.no": (U16, number), "split.count": (U16, 2), "split.tensors.count": (I32, len(whole.tensors))}
        for key, (kind, value) in (said | (second if number else {})).items():
            made = made.saying(key, kind, value)
        (folder / f"m-0000{number + 1}-of-00002.gguf").write_bytes(made.encode())
    return folder / "m-00001-of-00002.gguf"


def test_shards_of_two_models_are_not_put_together(tmp_path):
    told = {"general.architecture": (TEXT, "llama"), "general.name": (TEXT, "small")}
    assert open_checkpoint(shards(tmp_path, **told)).config.family == "llama"
    for key, kind, value in (
        ("general.name", TEXT, "another"),
        ("general.architecture", TEXT, "qwen3"),
        ("llama.rope.freq_base", F32, 500.0),
        ("split.tensors.count", I32, 7),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [1] * hostile.TOKENS)),
        ("tokenizer.ggml.tokens", I32, 7),
    ):
        with pytest.raises(BadTask, match=rf"gguf\.{re.escape(key)}: another in m-00002"):
            open_checkpoint(shards(tmp_path, **told | {key: (kind, value)}))
