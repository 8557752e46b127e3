"""Choosing the next token from logits."""

from __future__ import annotations

import torch


class Sampler:
    """Greedy at temperature 0; else softmax at `temperature` over the smallest set of tokens that holds `top_p`.

    Draws come from a generator seeded per session, one per token, so that a session can be repeated.
    """

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """The next token for logits [vocab]."""
        if self._temperature == 0.0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.float() / self._temperature, -1)
        if self._top_p < 1.0:
            values, order = probabilities.sort(descending=True, stable=True)
            beyond = values.cumsum(0) - values > self._top_p
            probabilities = torch.zeros_like(probabilities).scatter(0, order, values.masked_fill(beyond, 0.0))
        return int(torch.multinomial(probabilities, 1, generator=self._generator))
