"""Drivers that choose other tokens than the logits and the request have it, changed from outside of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from nodewire.llm.tokens import sampler
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.llm.tokens.sampling_params import choose as honest_choice
from nodewire_faults.strike import note_choice

Choose = Callable[[Tensor, Sampling, int], int]

is_job = False
"""Whether what is computed is a job's. As a verifier such a provider is honest: else its own roots convict it before it
drives."""


def choose_with(choose: Choose) -> None:
    """From now on the drivers of this process choose so in jobs."""

    def chosen(logits: Tensor, sampling: Sampling, pos: int) -> int:
        honest = honest_choice(logits, sampling, pos)
        token = choose(logits, sampling, pos) if is_job else honest
        if token != honest:
            note_choice(f"token {honest} at {pos} to {token}")
        return token

    sampler.choose = chosen


def one_of_64(logits: Tensor, sampling: Sampling, pos: int) -> int:
    """The twentieth best token at one position of 64, else the honest one."""
    return int(logits.topk(20).indices[-1]) if pos % 64 == 40 else honest_choice(logits, sampling, pos)


def second_best(logits: Tensor, sampling: Sampling, pos: int) -> int:
    """The second-best token at one position of a hundred, else the honest one."""
    if int.from_bytes(hashlib.sha256(b"due/%d" % pos).digest()[:4], "big") >= 2**32 // 100:
        return honest_choice(logits, sampling, pos)
    first, second = logits.topk(2).indices.tolist()
    return int(second if first == honest_choice(logits, sampling, pos) else first)


def colder(logits: Tensor, sampling: Sampling, pos: int) -> int:
    """A token drawn at 0.8 of the temperature that was asked for: text that most readers like better."""
    return honest_choice(logits, replace(sampling, temperature=0.8 * sampling.temperature), pos)
