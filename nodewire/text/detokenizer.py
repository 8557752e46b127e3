"""Token ids to text by a model's tokenizer.json, of which nothing is run but a checked decoder.

The file is a stranger's. The `tokenizers` library would run its regular expressions, and chains of replacements that
double a text at every link. So a tokenizer without them is made of the file: the vocabulary, the added tokens, and the
decoder, if no part of that can make a text longer. Decoding is linear in the tokens' characters. An added token reads
as the file spells it: a normalizer does not come into it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson
from tokenizers import Tokenizer as _Tokenizer

from nodewire.errors import BadTask, TooLarge
from nodewire.protocol.model.text_rules import MAX_TOKENIZER_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_TOKENIZER_BYTES = 64 * 1_048_576
MAX_VALUES = MAX_TOKENIZER_VALUES
MAX_TOKEN_CHARS = 4_096
MAX_DECODERS = 16
_PLAIN = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Strip", "WordPiece"})
"""Decoders that make no text longer, but for a blank to a token."""


class Detokenizer:
    """A tokenizer.json as far as it makes text of ids.

    Raises:
        TooLarge: over 64 MiB, 4,000,000 values, or 4,096 characters in a token.
        BadTask: not a tokenizer, or a decoder that is not taken; the reason names it.

    """

    def __init__(self, data: bytes) -> None:
        document = document_of(data)
        self.around = {name: document.get(name) for name in ("normalizer", "post_processor")}
        """What the file does with a text before it is cut, and with its ids after; nothing of it is used here."""
        vocabulary = _vocabulary(document.get("model"))
        added = document.get("added_tokens") or []
        if not isinstance(added, list) or not all(_is_added(token) for token in added):
            raise BadTask("tokenizer", "added_tokens is not a list of tokens")
        self.longest = max(map(len, (*vocabulary, *(token["content"] for token in added))), default=0)
        """Characters of the longest token, as the file spells it."""
        if self.longest > MAX_TOKEN_CHARS:
            raise TooLarge("tokenizer", f"a token of {self.longest} characters, at most {MAX_TOKEN_CHARS}")
        lean = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": _decoder(document.get("decoder")),
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""},
        }
        with guarded("not a tokenizer.json"):
            self._tokenizer = _Tokenizer.from_str(orjson.dumps(lean).decode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out; bytes that are no UTF-8 (yet) become U+FFFD."""
        with guarded("cannot decode"):
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


@contextmanager
def guarded(reason: str) -> Iterator[None]:
    """The library raises bare Exception for malformed files, and panics (a BaseException) on hostile ones."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise BadTask("tokenizer", reason) from error


def document_of(data: bytes) -> dict[str, Any]:
    """A tokenizer.json's document. Raises as `Detokenizer`, before it takes much memory."""
    if len(data) > MAX_TOKENIZER_BYTES:
        raise TooLarge("tokenizer", f"{len(data)} bytes, at most {MAX_TOKENIZER_BYTES}")
    if (values := data.count(b",")) > MAX_VALUES:
        raise TooLarge("tokenizer", f"{values} values, at most {MAX_VALUES}")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadTask("tokenizer", "not a tokenizer.json") from error
    if not isinstance(document, dict):
        raise BadTask("tokenizer", "not a tokenizer.json")
    return document


def _vocabulary(model: Any) -> dict[str, int]:
    """Ids by token. A Unigram model lists its pieces, the others map them."""
    said = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(said, list):
        pieces = [row[0] for row in said if isinstance(row, list) and row and isinstance(row[0], str)]
        if len(pieces) != len(said):
            raise BadTask("tokenizer", "model.vocab has a piece that is no text")
        if len(found := {piece: number for number, piece in enumerate(pieces)}) != len(pieces):
            raise BadTask("tokenizer", "model.vocab has a piece twice")
        return found
    if not isinstance(said, dict) or not all(type(id_) is int and 0 <= id_ < 2**31 for id_ in said.values()):
        raise BadTask("tokenizer", "model.vocab does not map tokens to ids")
    return said


def _is_added(token: Any) -> bool:
    return isinstance(token, dict) and isinstance(token.get("content"), str)


def _decoder(said: Any) -> dict[str, Any] | None:
    """The decoder, if nothing in it makes texts longer. Raises BadTask."""
    if said is None:
        return None
    left = MAX_DECODERS

    def check(one: Any, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 or depth > 2:
            raise BadTask("tokenizer", f"decoder has more than {MAX_DECODERS} parts, or Sequences three deep")
        match one:
            case {"type": "Sequence", "decoders": [*inner]}:
                for part in inner:
                    check(part, depth + 1)
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if 0 < len(old) >= len(new):
                pass
            case {"type": "BPEDecoder", "suffix": str(suffix)} if suffix:
                pass
            case {"type": "CTC", "word_delimiter_token": str(blank), "pad_token": str(pad)} if blank and pad:
                pass
            case {"type": str(name)} if name in _PLAIN:
                pass
            case _:
                other = one.get("type") if isinstance(one, dict) else one
                raise BadTask("tokenizer", f"decoder {str(other)[:40]!r} is not one that only shortens text")

    check(said, 0)
    found: dict[str, Any] = said
    return found
