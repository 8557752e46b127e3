"""Text comes in pieces that, joined, are the decoded whole; sampling follows the probabilities."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, processors

from nodewire.errors import BadTask, TooLarge
from nodewire.llm.tokens.sampling_params import Sampling, choose
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.text.detokenizer import MAX_TOKENIZER_BYTES
from nodewire.text.stream import TextStream
from tests.llm.llm_models import byte_tokenizer

BYTES = Tokenizer(byte_tokenizer().to_str().encode())


def llama2_style() -> Tokenizer:
    """Word pieces that begin with U+2581, and bytes for what has none."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁the", "▁fox", "es", "▁"]
    library = Library(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(library.to_str().encode())


WORDS = llama2_style()


def pieces(tokenizer, ids, stop=()):
    stream = TextStream(tokenizer, stop)
    out = []
    for token in ids:
        out.append(stream.push(token))
        if stream.stopped:
            return out
    return [*out, stream.flush()]


@given(st.text(max_size=40))
def test_pieces_of_any_text_join_to_it(text):
    assert "".join(pieces(BYTES, BYTES.encode(text))) == text


@given(st.lists(st.integers(0, 299), max_size=60))
def test_pieces_of_any_ids_join_to_the_decoded_whole(ids):
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids)


@given(st.lists(st.sampled_from(["▁the", "▁fox", "es", "你", "👋🏽", "é", "▁"]), max_size=20))
def test_word_pieces_and_byte_fallback_join_to_the_decoded_whole(parts):
    names = {"▁the": [257], "▁fox": [258], "es": [259], "▁": [260]}
    ids = [i for part in parts for i in names.get(part, [byte + 1 for byte in part.encode()])]
    assert "".join(pieces(WORDS, ids)) == WORDS.decode(ids)


def test_a_character_is_printed_once_its_last_byte_is_there():
    ids = BYTES.encode("x🦊")
    printed = pieces(BYTES, ids)
    assert printed[0] == "x"
    assert "\ufffd" not in "".join(printed)
    assert printed[-2] == "🦊"


def test_bytes_that_never_become_text_do_not_pile_up():
    lone = next(i for i in range(300) if BYTES.decode([i]) == "\ufffd")
    stream = TextStream(BYTES)
    text = "".join(stream.push(lone) for _ in range(400)) + stream.flush()
    assert text == "\ufffd" * 400
    assert len(stream._ids) < 140


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=3))
def test_text_ends_before_the_first_stop_string(text, stop):
    joined = "".join(pieces(BYTES, BYTES.encode(text), stop))
    # A stop string is seen when it is complete, so the first to be complete decides.
    cut = len(text)
    for end in range(len(text) + 1):
        starts = [text[:end].find(s) for s in stop if s in text[:end]]
        if starts:
            cut = min(starts)
            break
    assert joined == text[:cut] or any(joined == text[: text.find(s)] for s in stop if s in text)


def test_without_a_stop_string_nothing_is_held_back_but_its_beginning():
    ids = BYTES.encode("zq#!")
    assert pieces(BYTES, ids, ["#!?"]) == ["z", "q", "", "", "#!"]


def test_a_prompt_that_has_its_special_tokens_gets_no_second_one():
    library = byte_tokenizer()
    library.add_special_tokens(["<|begin|>"])
    begin = library.token_to_id("<|begin|>")
    library.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    tokenizer = Tokenizer(library.to_str().encode())
    bare = BYTES.encode("the fox")
    assert tokenizer.encode("the fox") == [begin, *bare]
    assert tokenizer.encode("<|begin|>the fox") == [begin, begin, *bare]
    assert tokenizer.encode("<|begin|>the fox", special_tokens=False) == [begin, *bare]


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"null", b'{"model": {}}'])
def test_a_file_that_is_no_tokenizer_is_refused(data):
    with pytest.raises(BadTask, match="tokenizer"):
        Tokenizer(data)


def test_a_tokenizer_over_its_cap_is_not_parsed():
    with pytest.raises(TooLarge):
        Tokenizer(bytes(MAX_TOKENIZER_BYTES + 1))


def test_greedy_takes_the_largest_logit():
    assert choose(torch.tensor([0.1, 3.0, 2.9]), Sampling(1), 0) == 1


def test_samples_follow_the_probabilities():
    probabilities = torch.tensor([0.1, 0.6, 0.3])
    sampling = Sampling(1, temperature=1.0, seed=5)
    counts = torch.zeros(3)
    for pos in range(4_000):
        counts[choose(probabilities.log(), sampling, pos)] += 1
    assert (counts / 4_000 - probabilities).abs().max() < 0.03


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    logits = torch.tensor([0.1, 0.6, 0.3]).log()
    for top_p, kept in ((0.5, {1}), (0.7, {1, 2}), (0.95, {0, 1, 2}), (1e-9, {1})):
        sampling = Sampling(1, temperature=1.0, top_p=top_p, seed=5)
        assert {choose(logits, sampling, pos) for pos in range(300)} == kept


class Counting:
    """A tokenizer that notes the most ids that it was given at once."""

    def __init__(self, tokenizer):
        self._tokenizer, self.most = tokenizer, 0

    def decode(self, ids):
        self.most = max(self.most, len(ids))
        return self._tokenizer.decode(ids)


def test_tokens_that_print_nothing_are_not_decoded_again_and_again():
    """A bias may have a model say its special tokens alone: each costs what any other does."""
    library = byte_tokenizer()
    library.add_special_tokens(["<|pad|>"])
    pad = library.token_to_id("<|pad|>")
    tokenizer = Counting(Tokenizer(library.to_str().encode()))
    before, after = BYTES.encode("the fox "), BYTES.encode("jumps")
    assert "".join(pieces(tokenizer, [pad] * 1_000 + before + [pad] * 1_000 + after)) == "the fox jumps"
    assert tokenizer.most <= 130


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS], ids=["bytes", "words"])
@given(text=st.text(max_size=300))
def test_no_text_has_fewer_tokens_than_its_length_needs(tokenizer, text):
    assert len(text) <= tokenizer.longest * len(tokenizer.encode(text, special_tokens=False))
