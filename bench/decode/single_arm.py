"""An arm of `bench.decode.single` in a process of its own: a model that decodes as often as it is told.

python -m bench.decode.single_arm ours|transformers MODEL DTYPE|- THREADS

It says with which kernels it multiplies, then of each line {"prompt": ids, "tokens": count} on standard input what was
made, how long the first token took, and how long the others, in wall and in processor time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params

CONTEXT = 512
Decode = Callable[[list[int], int, Callable[[int], None]], object]
"""Ids and a count in; each token is told as it is made."""


def main() -> None:
    arm, model, dtype, threads = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(threads)
    decode, kernels = _ours(model, dtype, threads) if arm == "ours" else _transformers(model)
    print(json.dumps({"isa": torch.backends.cpu.get_cpu_capability(), "kernels": kernels}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_timed(decode, asked["prompt"], asked["tokens"])), flush=True)


def _timed(decode: Decode, prompt: list[int], count: int) -> dict[str, Any]:
    made, first = list[int](), list[float]()

    def note(token: int) -> None:
        made.append(token)
        if len(made) == 1:
            first.extend((time.perf_counter(), time.process_time()))

    began_s = time.perf_counter()
    decode(prompt, count, note)
    rest_s, cpu_s = time.perf_counter() - first[0], time.process_time() - first[1]
    return {"made": made, "first_s": first[0] - began_s, "rest_s": rest_s, "cpu_s": cpu_s}


def _ours(model: Path, dtype: Any, threads: int) -> tuple[Decode, dict[str, str]]:
    whole = LocalDecoder(model, context=CONTEXT, dtype=None if dtype == "-" else dtype, threads=threads, alone=True)

    def decode(prompt: list[int], count: int, note: Callable[[int], None]) -> None:
        for token in whole.tokens(prompt, parse_params({"max_tokens": count}, CONTEXT)):
            note(token)

    return decode, whole.kernels


def _transformers(model: Path) -> tuple[Decode, dict[str, str]]:
    import transformers
    from transformers.generation.streamers import BaseStreamer

    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    class Told(BaseStreamer):
        """What `generate` gives its tokens to, the prompt first."""

        def __init__(self, note: Callable[[int], None]) -> None:
            self._note, self._began = note, False

        def put(self, value: Any) -> None:
            if self._began:
                self._note(int(value))
            self._began = True

        def end(self) -> None:
            pass

    def decode(prompt: list[int], count: int, note: Callable[[int], None]) -> None:
        ids = torch.tensor([prompt])
        theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, streamer=Told(note)
        )

    return decode, {"all": f"transformers {transformers.__version__}"}


if __name__ == "__main__":
    main()
