"""One process on one core of `bench.decode`: prints tokens a second of each arm as JSON.

python -m bench.decode.decode_one MODEL ROUNDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params

TOKENS = 128
PROMPT = list(range(40, 60))


def main() -> None:
    from transformers import AutoModelForCausalLM

    model, rounds = Path(sys.argv[1]), int(sys.argv[2])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    whole = LocalDecoder(model, threads=1)
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)  # in eval mode, as it says
    sampling = parse_params({"max_tokens": TOKENS}, whole.positions)
    matrices = [
        p.detach() for p in theirs.parameters() if p.ndim == 2 and p is not theirs.get_input_embeddings().weight
    ]
    turned = [m.t().contiguous().t() if m.shape[1] <= m.shape[0] else m for m in matrices]
    inputs = [torch.randn(1, m.shape[1]) for m in matrices]
    made: dict[str, list[int]] = {}

    def ours() -> None:
        made["ours"] = list(whole.tokens(PROMPT, sampling))

    @torch.inference_mode()
    def transformers() -> None:
        ids = torch.tensor([PROMPT])
        found = theirs.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        made["theirs"] = found[0, len(PROMPT) :].tolist()

    @torch.inference_mode()
    def products(of: Sequence[torch.Tensor]) -> None:
        for _ in range(TOKENS):
            for x, matrix in zip(inputs, of, strict=True):
                F.linear(x, matrix)

    arms: dict[str, Callable[[], None]] = {
        "ours": ours,
        "transformers": transformers,
        "in_rows": partial(products, matrices),
        "in_columns": partial(products, turned),
    }
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, arm in arms.items():
            began_s = time.perf_counter()
            arm()
            if number:  # the first warms up
                rates[name].append(TOKENS / (time.perf_counter() - began_s))
    differ = sum(a != b for a, b in zip(made["ours"], made["theirs"], strict=True))
    found = {f"{name}_per_s": round(median(of), 2) for name, of in rates.items()}
    print(json.dumps({**found, "tokens_that_differ": differ}))


if __name__ == "__main__":
    main()
