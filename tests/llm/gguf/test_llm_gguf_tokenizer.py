"""A GGUF file's tokenizer makes the ids that the model's own makes, and one that does not fit is refused."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from bench.fuzz import hostile_gguf as hostile
from bench.fuzz.hostile_gguf import ARRAY, BOOL, F32, I32, TEXT, U32
from bench.tasks.tiny_decoders import byte_tokenizer
from nodewire.chat.folder import chat_template
from nodewire.errors import BadTask, NodewireError, TooLarge, Unsupported
from nodewire.gguf.model import open_model
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.gguf import tokenizer as gguf_tokenizer
from nodewire.llm.gguf.pre_tokenizers import WAYS
from nodewire.llm.gguf.tokenizer import converted
from nodewire.llm.tokens.tokenizer import Tokenizer as Ours

TEXTS = (
    "the quick brown fox's 123456 DON'T  stop\n\n\tnow, żółw 你好 👋🏽 don't",
    "",
    " leading",
    "HTTPServer/2 éÉß\r\nx",
    "    four  spaces   ",
)
SMALL = hostile.small()


def file(tmp_path, tokens, kinds, **said):
    made = SMALL.saying("tokenizer.ggml.tokens", ARRAY, (TEXT, tokens))
    made = made.saying("tokenizer.ggml.token_type", ARRAY, (I32, kinds))
    for key, (kind, value) in said.items():
        made = made.saying(f"tokenizer.ggml.{key}", kind, value)
    path = tmp_path / "model.gguf"
    path.write_bytes(made.encode())
    return open_model(path)


def pieces_of(tokenizer):
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return [token for token, _ in sorted(vocabulary.items(), key=lambda one: one[1])]


@pytest.mark.parametrize("pre", WAYS)
def test_byte_pairs_make_the_ids_of_the_tokenizer_that_they_are_of(tmp_path, pre):
    theirs = byte_tokenizer()
    theirs.pre_tokenizer = WAYS[pre].made()
    tokens = pieces_of(theirs)
    merges = [" ".join(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    model = file(
        tmp_path,
        tokens,
        [3] + [1] * (len(tokens) - 1),
        merges=(ARRAY, (TEXT, merges)),
        pre=(TEXT, pre),
        add_bos_token=(BOOL, False),
    )
    ours = Ours(converted(model, len(tokens))[0])
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("<|end|>the") == theirs.encode("<|end|>the").ids


CUTS = {
    "gpt-2": ["don", "'t", "Ġ12345", "Ġ", "Ġx"],
    "smollm": ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"],
    "llama-bpe": ["don", "'t", "Ġ", "123", "45", "Ġ", "Ġx"],
    "qwen2": ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"],
    "gpt-4o": ["don't", "Ġ", "123", "45", "Ġ", "Ġx"],
    "tekken": ["don", "'t", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx"],
}


@pytest.mark.parametrize("pre", CUTS)
def test_a_text_is_cut_as_its_name_says(pre):
    assert [part for part, _ in WAYS[pre].made().pre_tokenize_str("don't 12345  x")] == CUTS[pre]


def scored(has_prefix):
    """A sentencepiece-like tokenizer over bytes, as `transformers` would have Llama's or Gemma's, and its scores."""
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts = ["\u2581", *"theqickbrownfxjmpsvlazydg"]
    words = ["th", "he", "the", "\u2581the", "qu", "ck", "\u2581q", "own", "br", "ow", "\u2581\u2581"]
    tokens = [*letters, *dict.fromkeys([*texts, *words])]
    scores = [0.0] * len(letters) + [-float(n) for n in range(len(tokens) - len(letters))]
    ids = {token: number for number, token in enumerate(tokens)}
    merges = sorted(
        (-scores[ids[a + b]], ids[a], ids[b]) for a in ids for b in ids if a + b in ids and ids[a + b] >= len(letters)
    )
    pairs = [(tokens[a], tokens[b]) for _, a, b in merges]
    made = Tokenizer(models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaced = normalizers.Replace(" ", "\u2581")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaced]) if has_prefix else spaced
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if has_prefix else parts)
    made.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    return made, tokens, scores, kinds


@pytest.mark.parametrize("has_prefix", [True, False], ids=["as Llama's", "as Gemma's"])
def test_scores_make_the_ids_of_the_tokenizer_that_they_are_of(tmp_path, has_prefix):
    theirs, tokens, scores, kinds = scored(has_prefix)
    model = file(
        tmp_path,
        tokens,
        kinds,
        model=(TEXT, "llama"),
        scores=(ARRAY, (F32, scores)),
        add_space_prefix=(BOOL, has_prefix),
        bos_token_id=(U32, 1),
        eos_token_id=(U32, 2),
    )
    data, ends = converted(model, len(tokens))
    ours = Ours(data)
    assert ends == [2]
    for text in (*TEXTS, "the quick brown the  the</s>the"):
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text).ids)


def test_what_a_text_begins_and_ends_with_is_as_the_file_says(tmp_path):
    path = tmp_path / "m.gguf"

    def ids(**said):
        made = SMALL.without("tokenizer.ggml.add_bos_token")
        for key, value in said.items():
            made = made.saying(f"tokenizer.ggml.{key}", BOOL if isinstance(value, bool) else TEXT, value)
        path.write_bytes(made.encode())
        return Ours(converted(open_model(path), hostile.TOKENS)[0]).encode("a")

    a = ids()[0]
    assert ids() == [a]  # of gpt-2's way of cutting a text
    assert ids(pre="llama-bpe") == [0, a]
    assert ids(add_bos_token=True, add_eos_token=True) == [0, a, 1]


def test_tokens_that_end_an_answer_are_found_by_their_texts(tmp_path):
    said = {key: value for key, _, value in SMALL.metadata}
    tokens = list(said["tokenizer.ggml.tokens"][1])
    tokens[-4:] = ["<|im_end|>", "<|return|>", "<|call|>", "<|end|>"]
    kinds = [*said["tokenizer.ggml.token_type"][1][:-4], 3, 3, 3, 3]
    model = file(tmp_path, tokens, kinds, eot_token_id=(U32, 5))
    assert converted(model, hostile.TOKENS)[1] == [1, 5, *range(hostile.TOKENS - 4, hostile.TOKENS - 1)]
    kinds[-4] = 1
    assert hostile.TOKENS - 4 not in converted(file(tmp_path, tokens, kinds), hostile.TOKENS)[1]


TOKENS = next(value[1] for key, _, value in SMALL.metadata if key == "tokenizer.ggml.tokens")
FAULTS = {
    "more tokens than rows": (
        lambda one: one.saying("tokenizer.ggml.tokens", ARRAY, (TEXT, [*TOKENS, "more"])),
        BadTask,
        "301 tokens, the embedding has 300 rows",
    ),
    "no tokens": (lambda one: one.without("tokenizer.ggml.tokens"), BadTask, "has no tokenizer"),
    "a token twice": (
        lambda one: one.saying("tokenizer.ggml.tokens", ARRAY, (TEXT, [*TOKENS[:-1], "e"])),
        BadTask,
        "stands twice",
    ),
    "a long token": (
        lambda one: one.saying("tokenizer.ggml.tokens", ARRAY, (TEXT, [*TOKENS[:-1], "x" * 513])),
        TooLarge,
        "a token of 513 characters",
    ),
    "kinds of others": (
        lambda one: one.saying("tokenizer.ggml.token_type", ARRAY, (I32, [1])),
        BadTask,
        "not a whole number for each of 300",
    ),
    "no such end": (
        lambda one: one.saying("tokenizer.ggml.eos_token_id", U32, 300),
        BadTask,
        "eos_token_id: 300 is none of 300",
    ),
    "no way of cutting": (lambda one: one.without("tokenizer.ggml.pre"), Unsupported, "pre: missing.*folder"),
    "another way": (
        lambda one: one.saying("tokenizer.ggml.pre", TEXT, "viking"),
        Unsupported,
        "viking: no known cut",
    ),
    "another kind": (
        lambda one: one.saying("tokenizer.ggml.model", TEXT, "t5"),
        Unsupported,
        "t5 is not gpt2",
    ),
    "no kind": (lambda one: one.without("tokenizer.ggml.model"), BadTask, "model: missing"),
    "merge of three": (
        lambda one: one.saying("tokenizer.ggml.merges", ARRAY, (TEXT, ["e n d"])),
        BadTask,
        "no two tokens",
    ),
    "merge that makes none": (
        lambda one: one.saying("tokenizer.ggml.merges", ARRAY, (TEXT, ["e e"])),
        BadTask,
        "makes none",
    ),
    "no scores": (lambda one: one.saying("tokenizer.ggml.model", TEXT, "llama"), BadTask, "scores: not a number for"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path, fault):
    change, error, said = FAULTS[fault]
    path = tmp_path / "m.gguf"
    path.write_bytes(change(SMALL).encode())
    with pytest.raises(error, match=said):
        open_checkpoint(path)


def test_tokens_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_tokenizer, "MAX_CHARS", 400)
    (tmp_path / "m.gguf").write_bytes(SMALL.encode())
    with pytest.raises(TooLarge, match="characters in all tokens, at most 400"):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_template_and_its_tokens_are_the_files(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(SMALL.encode())
    found = chat_template(path)
    assert found.template.startswith("{{ bos_token }}") and found.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    path.write_bytes(SMALL.without("tokenizer.chat_template").encode())
    assert chat_template(path) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda one: one.saying("tokenizer.chat_template", TEXT, "x" * 65_537), TooLarge),
        (lambda one: one.saying("tokenizer.chat_template", U32, 7), BadTask),
        (lambda one: one.saying("tokenizer.ggml.bos_token_id", U32, 300), BadTask),
    ],
)
def test_a_template_that_is_too_long_or_none_is_refused(tmp_path, change, error):
    path = tmp_path / "m.gguf"
    path.write_bytes(change(SMALL).encode())
    with pytest.raises(error):
        chat_template(path)


async def test_a_template_that_would_escape_is_rendered_where_it_cannot(tmp_path):
    from nodewire.chat.renderer import Renderer

    path = tmp_path / "m.gguf"
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    path.write_bytes(SMALL.saying("tokenizer.chat_template", TEXT, evil).encode())
    renderer = Renderer()
    try:
        with pytest.raises(NodewireError, match="chat_template"):
            await renderer.render(chat_template(path), [{"role": "user", "content": "hi"}])
    finally:
        await renderer.close()
