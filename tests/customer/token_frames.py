"""A small model's tokens as its driver sends them, and as its customer reads them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from nodewire.customer.models.text import ModelText
from nodewire.customer.tokens.reader import TokenReader
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.model.text_rules import TextRules
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.text.detokenizer import Detokenizer

FILE = Path(__file__).parents[2] / "demo" / "model" / "pycoder" / "tokenizer.json"
EOS = 0
PROMPT_TOKENS = 5


@cache
def library():
    return Tokenizer.from_file(str(FILE))


@cache
def model_text():
    data = FILE.read_bytes()
    size = library().get_vocab_size()
    return ModelText(TextRules(BlobRef(sha256="00" * 32, bytes=len(data)), frozenset({EOS}), size), Detokenizer(data))


def reader(history=(), **params):
    asked = {"stop": [], "max_tokens": 64, "positions": 256} | params
    return TokenReader(model_text(), asked, history, 40 + len(history))


def ids_of(text):
    return library().encode(text, add_special_tokens=False).ids


def frame(token, number=0, *, history=0, **meta):
    """Token `number` of a job, and beside it what an honest driver says, but for what the test does."""
    said = {"pos": PROMPT_TOKENS + history + number, "chunk": 0, "end": False} | meta
    array = Array("int64", (1,), np.int64(token).tobytes())
    return Frame("tokens", number, (array,), {key: value for key, value in said.items() if value is not None})


def read(reading, ids, *, history=0, end=None, reason=None):
    """The pieces of `ids`, of which the driver calls the last its end if it gives a reason."""
    last = len(ids) - 1
    return [
        reading.piece(frame(token, n, history=history, end=n == last and reason is not None, reason=reason))
        for n, token in enumerate(ids)
    ]
