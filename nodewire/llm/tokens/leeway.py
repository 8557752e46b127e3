"""How far a token was from being the choice. A judge of a driver excuses what its own arithmetic leaves open.

Two honest machines make logits that differ in their last bits, and where two tokens are about as likely, one chooses
this and the other that. The gap of a token is the least error of the logits' differences with which it is the choice.
nips/28-generation.md, has the formula.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nodewire.llm.tokens.sampling_params import Sampling, point_of

ROUNDED = {torch.float32: -16, torch.float16: -10, torch.bfloat16: -7}
"""By the dtype of the head: the last bit of a logit that is between 1 and 2, as a power of 2. Of float32 a bit that no
order of sums reaches. Measured in docs/reference/measurement-history.md."""
_STEPS = 40


def is_excused(logits: Tensor, sampling: Sampling, pos: int, token: int, scale: float, dtype: torch.dtype) -> bool:
    """Whether machines of this dtype may differ about `token` being the choice for position `pos`.

    `logits` are float32 [vocab] as they are chosen from, biased, penalized and masked; `scale` is the largest absolute
    logit before that.
    """
    return could_be(logits, sampling, pos, token, excused_gap(scale, dtype))


def excused_gap(scale: float, dtype: torch.dtype) -> float:
    """Two last bits of the largest logit: two machines may round each of two logits apart."""
    return 2.0 ** (math.floor(math.log2(max(scale, 1e-9))) + ROUNDED[dtype] + 1)


def gap(logits: Tensor, sampling: Sampling, pos: int, token: int) -> float:
    """The least error of differences between logits with which `token` is the choice; infinite if it may never be."""
    if not 0 <= token < len(logits) or not bool(torch.isfinite(logits[token])):
        return math.inf
    if sampling.temperature == 0:
        return float(logits.max() - logits[token])
    low, high = 0.0, 1.0
    if could_be(logits, sampling, pos, token, 0.0):
        return 0.0
    while not could_be(logits, sampling, pos, token, high):
        high *= 2
        if high > 1e6:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if could_be(logits, sampling, pos, token, middle) else (middle, high)
    return high


def could_be(logits: Tensor, sampling: Sampling, pos: int, token: int, error: float) -> bool:
    """Whether `token` may be the choice by logits of which no two have a difference that is off by more than `error`.

    Never false of what such logits choose; it may be true of a token a little beyond. With x = error / temperature the
    odds of a set of tokens are off by e^x at most, and who comes before whom is open within `error`. So each bound of
    `sampling_params.ranked` is taken at both of its ends.
    """
    if not 0 <= token < len(logits) or not bool(torch.isfinite(logits[token])):
        return False
    own = logits.double()
    behind = float(own.max() - own[token])
    if sampling.temperature == 0:
        return behind <= error
    x = error / sampling.temperature
    ordered, _ = own.cpu().sort(descending=True)
    cumulative = (ordered / sampling.temperature).softmax(0).cumsum(0).clamp(max=1.0)
    before = int((ordered > float(own[token]) + error).sum())  # that many come before it in any case
    until = int((ordered >= float(own[token]) - error).sum())  # and no more than these, with it
    fewest, most = _left(ordered, sampling, x)
    if before >= most:
        return False
    share = sampling.top_p if sampling.top_p < 1 else 1.0
    least = share * _odds(float(cumulative[fewest - 1]), -x)
    largest = share * _odds(float(cumulative[most - 1]), x)
    shifted_down, shifted_up = _all_odds(cumulative, -x), _all_odds(cumulative, x)
    # of what is left, the fewest that reach the share are kept
    shortest = min(int((shifted_up < least).sum()) + 1, fewest)
    longest = min(int((shifted_down < largest).sum()) + 1, most)
    if before >= longest:
        return False
    point = point_of(sampling, pos)
    lowest = point * max(min(least, 1.0), float(shifted_down[shortest - 1]))
    highest = point * float(shifted_up[longest - 1])
    first = float(shifted_down[before - 1]) if before else 0.0
    last = 1.0 if until >= longest else float(shifted_up[until - 1])
    return highest >= first and lowest <= last


def _left(ordered: Tensor, sampling: Sampling, x: float) -> tuple[int, int]:
    """How many tokens `min_p` and `top_k` leave, at least and at most."""
    fewest = most = int(torch.isfinite(ordered).sum())
    if sampling.min_p:
        below = (ordered - ordered[0]) / sampling.temperature
        bound = math.log(sampling.min_p)
        fewest = min(fewest, int((below - x >= bound).sum()))
        most = min(most, int((below + x >= bound).sum()))
    if sampling.top_k:
        fewest, most = min(fewest, sampling.top_k), min(most, sampling.top_k)
    return max(fewest, 1), max(most, 1)


def _odds(share: float, x: float) -> float:
    """A share whose odds are e^x times as large."""
    return share / (share + (1 - share) * math.exp(min(-x, 700.0))) if share > 0 else 0.0


def _all_odds(shares: Tensor, x: float) -> Tensor:
    return shares / (shares + (1 - shares) * math.exp(min(-x, 700.0)))
