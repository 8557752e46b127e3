"""Tokens that a judge excuses just so, and others that it just does not: nips/28-generation.md.

`python -m tests.llm.excused_vectors` writes tests/vectors/excused1.json anew.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from nodewire.llm.tokens.leeway import could_be, gap
from nodewire.llm.tokens.sampling_params import Sampling, point_of

VECTORS = Path(__file__).parent.parent / "vectors" / "excused1.json"
CASES = 120
NEAR = 0.02
"""Of the least e that excuses a token: a case's own e is so much more, or less."""


def vectors() -> list[dict[str, Any]]:
    """Cases as JSON; null is a logit that may not be chosen."""
    random, found = Random(1), []
    while len(found) < CASES:
        case = _case(random)
        if case is not None:
            found.append(case)
    return found


def excuses(case: dict[str, Any]) -> bool:
    """Whether this software excuses the token of a case."""
    return could_be(_logits(case), _sampling(case), case["pos"], case["token"], case["e"])


def _case(random: Random) -> dict[str, Any] | None:
    size = random.choice([3, 8, 24])
    logits = [None if random.random() < 0.1 else random.randrange(-512, 512) / 256 for _ in range(size)]
    likeliest = sorted(range(size), key=lambda one: logits[one] or 0.0)[-6:]
    case: dict[str, Any] = {
        "logits": logits,
        "temperature": random.choice([0.0, 0.5, 1.0, 1.5]),
        "top_p": random.choice([1.0, 0.75, 0.5]),
        "top_k": random.choice([0, 0, 3]),
        "min_p": random.choice([0.0, 0.125, 0.25]),
        "seed": random.randrange(2**32),
        "pos": random.randrange(4_096),
        "token": random.choice(likeliest),
    }
    if all(one is None for one in logits):
        return None
    case["u"] = point_of(_sampling(case), case["pos"])
    least = gap(_logits(case), _sampling(case), case["pos"], case["token"])
    if not 1e-3 < least < 4:
        return None
    more, less = round(least * (1 + NEAR), 6), round(least * (1 - NEAR), 6)
    if excuses({**case, "e": less}) or not excuses({**case, "e": more}):
        return None
    is_excused = random.random() < 0.5
    return {**case, "e": more if is_excused else less, "excused": is_excused}


def _logits(case: dict[str, Any]) -> Tensor:
    return torch.tensor([-math.inf if one is None else one for one in case["logits"]])


def _sampling(case: dict[str, Any]) -> Sampling:
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    return Sampling(max_tokens=1, **{name: case[name] for name in names})


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, sort_keys=True) + "\n")
