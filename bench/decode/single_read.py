"""What memory gives: `python -m bench.decode.single_read THREADS` prints how many GB a second so many threads read.

Each thread adds up a part of its own of 256 MB, which no cache holds. The best of some rounds counts: other work only
lengthens them.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch

BYTES, ROUNDS = 2**28, 12


def read_gb_s(threads: int) -> float:
    """The best of the rounds. Threads are the interpreter's, for a sum leaves its lock."""
    torch.set_num_threads(1)
    parts = list(torch.ones(BYTES // 4).chunk(threads))
    best_s = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(1 + ROUNDS):
            began_s = time.perf_counter()
            list(pool.map(_added, parts))
            best_s = min(best_s, time.perf_counter() - began_s)
    return round(BYTES / best_s / 1e9, 1)


def _added(part: torch.Tensor) -> float:
    return float(part.sum())


if __name__ == "__main__":
    print(read_gb_s(int(sys.argv[1])))
