"""A customer's reading of tokens: how many a second, whether a long text's cost more, and what a large file costs.

python -m bench.decode.detokenizer [--quick] [--json]

The text is the demo's model's, at random. The large file has the size of the largest that are in use: 262,144 tokens.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson

from bench.report import Report, run
from nodewire.customer.models.text import ModelText
from nodewire.customer.tokens.reader import TokenReader
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.model.text_rules import TextRules
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.text.detokenizer import Detokenizer

FILE = Path(__file__).parents[2] / "demo" / "model" / "pycoder" / "tokenizer.json"
VOCABULARY = 3_072
SHORT = 1_000


def _us_per_token(text: ModelText, count: int, rng: random.Random) -> float:
    params = {"stop": ["no text has this"], "max_tokens": count + 1, "positions": 2 * count + 2}
    frames = [
        Frame(
            "tokens",
            number,
            (Array("int64", (1,), np.int64(rng.randrange(1, VOCABULARY)).tobytes()),),
            {"pos": 1 + number, "end": False},
        )
        for number in range(count)
    ]
    reader = TokenReader(text, params, (), 1)
    began_ns = time.process_time_ns()
    for frame in frames:
        reader.piece(frame)
    return (time.process_time_ns() - began_ns) / 1_000 / count


def _large() -> bytes:
    names = [f"token{number}" for number in range(262_144)]
    merges = [[one, other] for one, other in pairwise(names)] * 2
    model = {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": merges}
    return orjson.dumps({"version": "1.0", "added_tokens": [], "decoder": None, "model": model})


async def measure(report: Report, options: argparse.Namespace) -> None:
    rng, data = random.Random(options.seed), FILE.read_bytes()
    rules = TextRules(BlobRef(sha256="00" * 32, bytes=len(data)), frozenset(), VOCABULARY)
    text, long = ModelText(rules, Detokenizer(data)), 10 * SHORT if report.quick else 100 * SHORT
    short_us, long_us = [], []
    for _ in range(5):
        short_us.append(_us_per_token(text, SHORT, rng))
        long_us.append(_us_per_token(text, long, rng))
    report.arms["reading"] = {
        "tokens_per_cpu_s": round(1e6 / min(long_us)),
        "us_a_token": {str(SHORT): round(min(short_us), 2), str(long): round(min(long_us), 2)},
    }
    report.line("long_over_short_cost_of_a_token", round(min(long_us) / min(short_us), 3), "<=", 1.5)
    large = _large()
    began_ns = time.process_time_ns()
    Detokenizer(large)
    cpu_s = (time.process_time_ns() - began_ns) / 1e9
    tracemalloc.start()
    Detokenizer(large)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report.arms["large_file"] = {"bytes": len(large), "cpu_s": round(cpu_s, 2), "python_peak_bytes": most}
    report.line("python_bytes_over_the_files", round(most / len(large), 2), "<=", 24)


if __name__ == "__main__":
    run("detokenizer", __doc__, measure)
