"""What a decoder takes of a process's memory, for `bench.decode`: prints bytes as JSON.

python -m bench.decode_memory MODEL

`taken` is the most that the process has held while it loaded the model and decoded to the end of its context, above
what it held with everything imported. `weights` and `kv` are what it cannot do without.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from nodewire.llm.checkpoint import open_checkpoint
from nodewire.llm.sampling import parse_params
from nodewire.llm.whole import Whole

CONTEXT = 2_048
PROMPT = [40 + k % 200 for k in range(1_920)]


def main() -> None:
    model = Path(sys.argv[1])
    torch.set_num_threads(1)
    F.linear(torch.randn(1, 64), torch.randn(64, 64))  # what libraries keep for themselves
    open_checkpoint(model)
    before = _bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    whole = Whole(model, context=CONTEXT, threads=1)
    made = sum(1 for _ in whole.tokens(PROMPT, parse_params({"max_tokens": CONTEXT - len(PROMPT)}, CONTEXT)))
    assert made == CONTEXT - len(PROMPT)
    config, item = whole.config, 4
    kv = 2 * config.num_hidden_layers * CONTEXT * config.num_key_value_heads * config.head_dim * item
    weights = sum(stored.nbytes for stored in open_checkpoint(model).tensors.values())
    print(json.dumps({"taken": _bytes("VmHWM") - before, "weights": weights, "kv": kv}))


def _bytes(field: str) -> int:
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    return 1_024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
