"""Text that is an instance of a JSON schema and nothing else: which tokens may be next, by the llguidance library.

https://github.com/guidance-ai/llguidance (MIT), an optional dependency: `nodewire[json]`. Schemas come from customers,
so what a grammar may take is bounded, in memory and in work for each token. What a schema admits is what that library
says, and who computes a generation again must be told the same: so its minor version is fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor

from nodewire.errors import BadInput, Busy, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.llm.tokens.tokenizer import Tokenizer

try:  # now or never: a worker opens no files later
    import llguidance
except ImportError:
    llguidance = None

MAX_GRAMMARS = 8
"""Under way at a time: their memory, up to 10 MB each, is no part of a driver's footprint."""
RELEASE = "1.9."
"""Of llguidance, whose grammars nips/28-generation.md means."""
_END = "<|end of the schema|>"
_WHITE = r"[ \t\n\r]{0,32}"
"""In one place: a model that says nothing else would be paid for it to the end of its tokens."""
_MAX_LEXER_STATES = 5_000  # of 1 to 2 KiB
_MAX_GRAMMAR_SIZE = 100_000
_FUEL = 500_000  # some 10 ms
_FUEL_A_TOKEN = 100_000
_ITEMS_A_TOKEN = 25_000


class Grammars:
    """What sessions of one driver share: the tokenizer as llguidance knows it, made when the first schema comes."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        self._text, self._size, self._ends = tokenizer, vocab_size, list(ends)
        self._tokenizer: Any = None
        self._live: WeakSet[Grammar] = WeakSet()
        self._end: int | None = None
        """What stands for an end token where the tokenizer has none of the model's: no model may say it."""

    def grammar(self, schema: str) -> Grammar:
        """Raises Unsupported: llguidance is not installed, or cannot use the tokenizer.

        BadInput: not such a schema. Busy: as many texts under schemas are under way as may be.
        """
        if llguidance is None or not llguidance.__version__.startswith(RELEASE):
            raise Unsupported("json_schema", f"this provider has no llguidance {RELEASE}x")
        if self._tokenizer is None:
            self._tokenizer = self._known()
        if len(self._live) >= MAX_GRAMMARS:
            raise Busy("json_schema", f"{MAX_GRAMMARS} texts under schemas are under way")
        made = Grammar(self._tokenizer, schema, self._size, self._end)
        self._live.add(made)
        return made

    def _known(self) -> Any:
        vocabulary = self._text.vocabulary()
        document, ends = self._text.document(), [end for end in self._ends if end < len(vocabulary)]
        if not ends:
            document, self._end = self._text.with_token(_END)
            ends = [self._end]
        try:
            size = max(self._size, len(vocabulary) + 1)
            return llguidance.LLTokenizer(document, n_vocab=size, eos_token=ends)
        except ValueError as error:
            raise Unsupported("json_schema", "not with this model's tokenizer") from error


class Grammar:
    """Where one session's text stands in its schema."""

    def __init__(self, tokenizer: Any, schema: str, vocab_size: int, never: int | None = None) -> None:
        """`never`: a token that may not follow, whatever the schema says."""
        limits = llguidance.LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES,
            max_grammar_size=_MAX_GRAMMAR_SIZE,
            initial_lexer_fuel=_FUEL,
            step_lexer_fuel=_FUEL_A_TOKEN,
            step_max_items=_ITEMS_A_TOKEN,
            verbose_errors=False,
        )
        try:
            rules = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": _WHITE})
            self._matcher = llguidance.LLMatcher(tokenizer, rules, log_level=0, limits=limits)
        except ValueError as error:
            raise BadInput("json_schema", str(error)[:200]) from error
        self._size, self._never = vocab_size, never
        self._check()

    @property
    def ended(self) -> bool:
        """Whether the text is whole, and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def accept(self, token: int) -> None:
        """Raises BadInput: the token was not one that may follow (of a history, say)."""
        if not self.ended:
            self._matcher.consume_token(token)
            self._check()

    def allowed(self) -> Tensor:
        """Which tokens may follow, bool [vocab]. Raises BadInput: the schema takes more work than one token may."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        self._check()
        found = (bits[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()[: self._size]
        if self._never is not None:
            found[self._never : self._never + 1] = False
        return found

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadInput("json_schema", str(self._matcher.get_error())[:200])
