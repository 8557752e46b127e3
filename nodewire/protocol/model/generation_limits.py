"""Within which bounds the parameters of a generation are, whoever reads them. nips/14-tickets.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NEW_TOKENS = 1_000_000
MAX_STOPS = 4
MAX_STOP_CHARS = 64
MAX_BIASES = 300
LEAST_TEMPERATURE = 0.001
"""Of those above 0, which is greedy."""

NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 10.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "logit_bias": (-100.0, 100.0),
}
"""The least and the most, both allowed; a `top_p` of 0 would leave no token. `logit_bias`: of each token's."""
INTEGERS: Mapping[str, tuple[int, int]] = {"seed": (0, 2**63 - 1), "top_k": (0, 2**31 - 1), "logprobs": (0, 20)}
