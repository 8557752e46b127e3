"""A GGUF file's tokenizer as a tokenizer.json: byte pairs by merges ("gpt2"), or by scores as sentencepiece ("llama").

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from nodewire.errors import BadTask, TooLarge, Unsupported
from nodewire.llm.gguf.pre_tokenizers import WAYS
from nodewire.llm.tokens.sentencepiece import (
    CONTROL,
    MAX_CHARS,
    MAX_PIECE_CHARS,
    MAX_PIECES,
    NORMAL,
    UNKNOWN,
    USER,
    Piece,
    tokenizer_of,
)
from nodewire.text.detokenizer import guarded

if TYPE_CHECKING:
    from nodewire.gguf.model import Model

_AT = "tokenizer.ggml."
TOKENS = f"gguf.{_AT}tokens"
_ENDS = ("eos", "eot", "eom")
_END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"),
        *("<|return|>", "<|call|>", "<EOT>", "</s>"),
    }
)
"""Special tokens that end an answer, of which files name one or two."""


def converted(model: Model, rows: int) -> tuple[bytes, list[int]]:
    """A tokenizer.json, and the ids that end a text; `rows` are the embedding's.

    Raises:
        BadTask: it does not fit the embedding, or its parts contradict each other.
        Unsupported: another kind of tokenizer, or of cutting a text before, than those that are read.
        TooLarge: over 2^24 characters in all tokens, or 512 in one, or too many merges that scores stand for.

    """
    tokens = model.texts(f"{_AT}tokens")
    if not tokens:
        raise BadTask(TOKENS, "missing: the file has no tokenizer; take one of the model that has")
    if len(tokens) > min(rows, MAX_PIECES):
        raise BadTask(TOKENS, f"{len(tokens)} tokens, the embedding has {rows} rows")
    longest = max(map(len, tokens))
    if longest > MAX_PIECE_CHARS:
        raise TooLarge(TOKENS, f"a token of {longest} characters, at most {MAX_PIECE_CHARS}")
    if (size := sum(map(len, tokens))) > MAX_CHARS:
        raise TooLarge(TOKENS, f"{size} characters in all tokens, at most {MAX_CHARS}")
    kinds = _kinds(model, len(tokens))
    kind = model.read_value(f"{_AT}model", str)
    if kind == "gpt2":
        tokenizer, begins = _of_merges(model, tokens, kinds)
    elif kind == "llama":
        tokenizer, begins = _of_scores(model, tokens, kinds), True
    else:
        raise Unsupported(f"gguf.{_AT}model", f"{kind[:40]} is not gpt2 or llama")
    _around(tokenizer, model, tokens, begins)
    ends = {found for name in _ENDS if (found := special(model, name, len(tokens))) is not None}
    texts = {token: number for number, token in enumerate(tokens) if token in _END_TEXTS and kinds[number] != NORMAL}
    if "<|return|>" in texts and "<|call|>" in texts:  # gpt-oss's messages end so, and not its answers
        texts.pop("<|end|>", None)
    if kind == "gpt2":
        texts.pop("</s>", None)
    return tokenizer.to_str().encode(), sorted(ends | set(texts.values()))


def special(model: Model, name: str, count: int) -> int | None:
    """The id of a special token, such as eos; None if the file names none. Raises BadTask."""
    key = f"{_AT}{name}_token_id"
    if key not in model.metadata:
        return None
    found = model.read_value(key, int)
    if not 0 <= found < count:
        raise BadTask(f"gguf.{key}", f"{found} is none of {count} tokens")
    return found


def _kinds(model: Model, count: int) -> list[int]:
    found = model.numbers(f"{_AT}token_type")
    if found is None:
        return [NORMAL] * count
    if len(found) != count or found.dtype.kind not in "iu":
        raise BadTask(f"gguf.{_AT}token_type", f"not a whole number for each of {count} tokens")
    kinds: list[int] = found.tolist()
    return kinds


def _of_merges(model: Model, tokens: list[str], kinds: list[int]) -> tuple[Tokenizer, bool]:
    said = model.read_value(f"{_AT}pre", str, "")
    way = WAYS.get(said)
    if way is None:
        raise Unsupported(
            f"gguf.{_AT}pre",
            f"{said[:40] or 'missing'}: no known cut of a text. Known are {', '.join(WAYS)}. Take a newer "
            "file, or the model's folder",
        )
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise BadTask(TOKENS, "a token stands twice")
    merges: list[Any] = [tuple(merge.split(" ")) for merge in model.texts(f"{_AT}merges")]
    if any(len(pair) != 2 or not set(pair) <= ids.keys() or "".join(pair) not in ids for pair in merges):
        raise BadTask(f"gguf.{_AT}merges", "a merge that is no two tokens, or makes none")
    with guarded("its merges are none of its tokens'"):
        tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=way.whole))
    tokenizer.pre_tokenizer = way.made()
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    user = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user])
    return tokenizer, way.begins


def _of_scores(model: Model, tokens: list[str], kinds: list[int]) -> Tokenizer:
    scores = model.numbers(f"{_AT}scores")
    if scores is None or len(scores) != len(tokens):
        raise BadTask(f"gguf.{_AT}scores", f"not a number for each of {len(tokens)} tokens")
    pieces = [Piece(*one) for one in zip(tokens, map(float, scores), kinds, strict=True)]
    return tokenizer_of(pieces, TOKENS, has_prefix=model.read_value(f"{_AT}add_space_prefix", bool, True))


def _around(tokenizer: Tokenizer, model: Model, tokens: list[str], begins: bool) -> None:
    """What stands before and after every text."""
    named = {name: special(model, name, len(tokens)) for name in ("bos", "eos")}
    first = named["bos"] if model.read_value(f"{_AT}add_bos_token", bool, begins) else None
    last = named["eos"] if model.read_value(f"{_AT}add_eos_token", bool, False) else None
    if first is None and last is None:
        return
    before, after = ([tokens[one]] if one is not None else [] for one in (first, last))
    single: list[Any] = [*before, "$A", *after]
    pair = [*single, *before, "$B:1", *after]
    known = [(tokens[one], one) for one in {first, last} if one is not None]
    with guarded("a text cannot begin or end with its tokens"):
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
