"""A process on one core with a decoder larger than the cache, of `bench.decode`: prints tokens a second as JSON.

python -m bench.decode.decode_blocks MODEL ROUNDS TOKENS

MODEL/plain is the decoder, MODEL/int8, MODEL/w8a8 and MODEL/int4 are the same quantized.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch

from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params

CONTEXT = 256
PROMPT = list(range(40, 60))


def main() -> None:
    folder, rounds, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    arms = {
        "float32": LocalDecoder(folder / "plain", context=CONTEXT, dtype="float32", threads=1),
        "bfloat16": LocalDecoder(folder / "plain", context=CONTEXT, dtype="bfloat16", threads=1),
        "int8": LocalDecoder(folder / "int8", context=CONTEXT, threads=1),
        "w8a8": LocalDecoder(folder / "w8a8", context=CONTEXT, threads=1),
        "int4": LocalDecoder(folder / "int4", context=CONTEXT, threads=1),
    }
    sampling = parse_params({"max_tokens": tokens}, CONTEXT)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, whole in arms.items():
            steps = whole.tokens(PROMPT, sampling)
            next(steps)  # the prompt goes in, which is another matter
            began_s = time.perf_counter()
            made = sum(1 for _ in steps)
            if number:  # the first warms up
                rates[name].append(made / (time.perf_counter() - began_s))
    print(json.dumps({f"{name}_per_s": round(median(of), 3) for name, of in rates.items()}))


if __name__ == "__main__":
    main()
