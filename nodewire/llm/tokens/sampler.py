"""A session's tokens from logits: what came before changes them (penalties, a grammar), then `choose` takes one.

All of it follows from the parameters, the accepted tokens and the position, so that a replay says what was said.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadInput
from nodewire.llm.tokens.leeway import is_excused
from nodewire.llm.tokens.sampling_params import Sampling, choose
from nodewire.text.stream import text_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.llm.tokens.grammar import Grammar
    from nodewire.llm.tokens.tokenizer import Tokenizer

MAX_TOLD_BYTES = 2_560
"""Of what is told of one token's log-probabilities: a frame's header has 4,096."""
_CUTS = (64, 16, 4, 0)
"""Characters that a token's text is cut to, the first with which all of them fit."""


class Sampler:
    """One session's. `vocab_size` is that of the logits."""

    def __init__(self, sampling: Sampling, vocab_size: int, grammar: Grammar | None = None) -> None:
        """Raises BadInput: a bias for a token that the model has not."""
        self.sampling = sampling
        self.grammar = grammar
        if any(token >= vocab_size for token, _ in sampling.logit_bias):
            raise BadInput("logit_bias", f"a token beyond the vocabulary of {vocab_size}")
        counts = sampling.presence_penalty or sampling.frequency_penalty
        self._generated = torch.zeros(vocab_size) if counts else None  # how often
        self._came = torch.zeros(vocab_size, dtype=torch.bool) if sampling.repetition_penalty != 1 else None
        self._bias = torch.zeros(vocab_size) if sampling.logit_bias else None
        for token, bias in sampling.logit_bias:
            assert self._bias is not None
            self._bias[token] = bias

    def begin(self, prompt: Tensor) -> None:
        """`prompt`, int64 [n], comes before what is generated."""
        if self._came is not None:
            self._came[prompt] = True

    def accept(self, token: int) -> None:
        """`token` was generated. Raises BadInput: the session's schema does not have it here."""
        if self._generated is not None:
            self._generated[token] += 1
        if self._came is not None:
            self._came[token] = True
        if self.grammar is not None:
            self.grammar.accept(token)

    @property
    def ended(self) -> bool:
        """Whether the text is whole by its schema."""
        return self.grammar is not None and self.grammar.ended

    def choose(self, logits: Tensor, pos: int) -> int:
        """The token for position `pos`, from float32 logits [vocab] after all that was accepted."""
        return choose(self._open(logits), self.sampling, pos)

    def excuses(self, logits: Tensor, pos: int, token: int, dtype: torch.dtype) -> bool:
        """Whether another machine may honestly have chosen `token` where `choose` takes a token by these logits.

        A head of this dtype made them.
        """
        penalty = self.sampling.repetition_penalty
        scale = float(logits.abs().max()) * max(penalty, 1 / penalty)
        return is_excused(self._open(logits), self.sampling, pos, token, scale, dtype)

    def _open(self, logits: Tensor) -> Tensor:
        """The logits that are chosen from."""
        found = self.bent(logits)
        if self.grammar is not None:
            found = found.masked_fill(~self.grammar.allowed().to(found.device), -torch.inf)
        return found

    def bent(self, logits: Tensor, path: Sequence[int] = ()) -> Tensor:
        """The logits with biases and penalties, as if the tokens of `path` had been generated, too."""
        sampling = self.sampling
        if self._bias is not None:
            logits = logits + self._bias.to(logits.device)
        if self._came is not None:
            came = self._came
            if path:
                came = came.clone()
                came[list(path)] = True
            came = came.to(logits.device)
            penalty = sampling.repetition_penalty
            logits = torch.where(came, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        if self._generated is not None:
            times = self._generated
            if path:
                times = times + torch.bincount(torch.tensor(path), minlength=len(times))
            times = times.to(logits.device)
            logits = logits - sampling.frequency_penalty * times - sampling.presence_penalty * (times > 0)
        return logits

    def format_logprobs(self, logits: Tensor, token: int, before: int, tokenizer: Tokenizer) -> str:
        """The model's own log-probabilities of `token` and of the likeliest tokens, before anything bent them.

        JSON: [[id, log-probability, text], ...], the chosen token first; `before` is the token before it. Where that
        is more than `MAX_TOLD_BYTES` the texts are cut.
        """
        chances = logits.log_softmax(0)
        top = chances.topk(min(self.sampling.logprobs or 0, len(chances)))
        rows = [(token, float(chances[token]))]
        rows += zip(top.indices.tolist(), top.values.tolist(), strict=True)
        context = tokenizer.decode([before])
        texts = [text_after(context, tokenizer.decode([before, one])) for one, _ in rows]
        found = ""
        for cut in _CUTS:
            said = [
                [one, round(max(chance, -9999.0), 6), text[:cut]]
                for (one, chance), text in zip(rows, texts, strict=True)
            ]
            found = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
            if len(found.encode()) <= MAX_TOLD_BYTES:
                break
        return found
