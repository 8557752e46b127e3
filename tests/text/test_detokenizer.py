"""A stranger's tokenizer.json as far as it makes text of ids: as the library reads it, and never more than that."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from nodewire.errors import BadTask, TooLarge
from nodewire.text.detokenizer import MAX_TOKEN_CHARS, MAX_TOKENIZER_BYTES, MAX_VALUES, Detokenizer
from nodewire.text.stream import TextStream

BYTES = [f"<0x{i:02X}>" for i in range(256)]


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({one: n for n, one in enumerate([*alphabet, "th", "the"])}, [("t", "h"), ("th", "e")]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    return made


def sentencepiece_bpe():
    words = ["<unk>", *BYTES, "▁the", "▁fox", "es", "▁"]
    made = Tokenizer(models.BPE({one: n for n, one in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 0)])
    return made


def unigram():
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("fox", -3.0), *((byte, -9.0) for byte in BYTES)]
    made = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def word_pieces():
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "fox": 1, "##es": 2, ".": 3, "do": 4, "n't": 5}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    return made


def words():
    return Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "fox": 2}, unk_token="<unk>"))


def end_of_word():
    made = Tokenizer(models.BPE({"a</w>": 0, "b": 1, "c</w>": 2}, [], end_of_word_suffix="</w>"))
    made.decoder = decoders.BPEDecoder()
    return made


KINDS = [byte_level, sentencepiece_bpe, unigram, word_pieces, words, end_of_word]


def with_added(made):
    made.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    made.add_tokens([AddedToken("nodewire", single_word=True, normalized=False), AddedToken("the", normalized=False)])
    return made


PAIRS = {make.__name__: (with_added(make()), Detokenizer(with_added(make()).to_str().encode())) for make in KINDS}


@pytest.mark.parametrize("kind", PAIRS)
@given(data=st.data())
def test_ids_are_decoded_as_the_whole_tokenizer_does(kind, data):
    library, ours = PAIRS[kind]
    ids = data.draw(st.lists(st.integers(0, library.get_vocab_size() + 3), max_size=40))
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", PAIRS)
@given(data=st.data())
def test_pieces_of_any_ids_join_to_the_decoded_whole(kind, data):
    library, ours = PAIRS[kind]
    first = 257 if kind == "sentencepiece_bpe" else 0  # of bytes that are no text those before are none either, then
    ids = data.draw(st.lists(st.integers(first, library.get_vocab_size() - 1), max_size=40))
    stream = TextStream(ours)
    assert "".join([*map(stream.push, ids), stream.flush()]) == ours.decode(ids)


def file(**changes):
    return json.dumps(json.loads(words().to_str()) | changes).encode()


def replacing(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def chain(*parts):
    return {"type": "Sequence", "decoders": [*parts]}


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
        replacing("a", "aa"),
        replacing("", "a"),
        replacing("", ""),
        chain(*(replacing("a", "a" * 16) for _ in range(16))),
        {"type": "BPEDecoder", "suffix": ""},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "|", "cleanup": True},
        {"type": "CTC", "pad_token": "p", "word_delimiter_token": "", "cleanup": True},
        chain(*({"type": "Fuse"} for _ in range(17))),
        chain(chain(chain({"type": "Fuse"}))),
        {"type": "Python"},
        "Fuse",
        7,
    ],
    ids=lambda said: str(said)[:40],
)
def test_a_decoder_that_may_run_long_or_make_text_longer_is_refused_by_name(decoder):
    with pytest.raises(BadTask, match="decoder"):
        Detokenizer(file(decoder=decoder))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": None},
        {"model": {"type": "BPE"}},
        {"model": {"vocab": {"a": -1}}},
        {"model": {"vocab": {"a": 2**31}}},
        {"model": {"vocab": {"a": "0"}}},
        {"model": {"vocab": [["a", 0], ["a", 0]]}},
        {"model": {"vocab": [["a", 0], [7, 0]]}},
        {"model": {"vocab": [[]]}},
        {"added_tokens": 7},
        {"added_tokens": [7]},
        {"added_tokens": [{"id": 0, "content": 7}]},
        {"added_tokens": [{"id": "x", "content": "a"}]},
        {"decoder": {"type": "Strip", "content": "two", "start": -1, "stop": 0}},
    ],
    ids=str,
)
def test_what_is_no_tokenizer_is_refused(changes):
    with pytest.raises(BadTask, match="tokenizer"):
        Detokenizer(file(**changes))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"null", b"{" * 10**6, b'{"model":' * 10**5])
def test_what_is_no_document_is_refused(data):
    with pytest.raises(BadTask, match="tokenizer"):
        Detokenizer(data)


def test_a_regular_expression_elsewhere_in_the_file_is_never_read():
    hostile = words()
    hostile.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    assert Detokenizer(hostile.to_str().encode()).decode([1, 2]) == "the fox"
    broken = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    assert Detokenizer(file(pre_tokenizer=broken)).decode([1]) == "the"


def test_a_token_over_its_cap_is_refused():
    Detokenizer(file(model={"vocab": {"a" * MAX_TOKEN_CHARS: 0}}))
    with pytest.raises(TooLarge, match="token of"):
        Detokenizer(file(model={"vocab": {"a" * (MAX_TOKEN_CHARS + 1): 0}}))


def test_a_file_over_its_caps_is_not_parsed():
    """Empty lists take 56 bytes for every three of the file."""
    for data in (bytes(MAX_TOKENIZER_BYTES + 1), b"[" + b"[]," * (MAX_VALUES + 1) + b"[]]"):
        tracemalloc.start()
        with pytest.raises(TooLarge):
            Detokenizer(data)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < 2**20


def test_each_token_is_decoded_in_a_window_however_long_the_text_is():
    """So a token of a long text costs what one of a short text does."""

    class Counting:
        def __init__(self):
            self.calls, self.most = 0, 0

        def decode(self, ids):
            self.calls, self.most = self.calls + 1, max(self.most, len(ids))
            return PAIRS["byte_level"][1].decode(ids)

    counting = Counting()
    stream = TextStream(counting)
    count = 5_000
    for number in range(count):
        stream.push(number % 250)
    assert counting.most <= 130 and counting.calls <= 2 * count
