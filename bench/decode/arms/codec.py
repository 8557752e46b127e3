"""What a prompt costs on narrowed edges, for `bench.decode`: bytes and perplexity, on the demo's decoder.

Its tasks are those of the demo, in one process, in float32; what goes from one to the next is narrowed and widened
again, every edge alike: to bfloat16, to the wire's int8 blocks (`nodewire.worker.process.edge_codec`), and to float8
(e4m3, each row by its largest), which the wire does not carry. Codecs narrow each row by itself: a text that is fed
position by position is narrowed as it is when it enters at once.

`perplexity` is of the second half of each text, whose first half entered narrowed: what follows a prompt goes round in
the bfloat16 that decoding would use. `all_narrowed` is of the whole text with every position narrowed.
"""

from __future__ import annotations

import math
import statistics
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nodewire.kind import Limits
from nodewire.llm import entry
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.tensors.frame import MXINT8, Frame, bytes_of
from nodewire.worker.process.edge_codec import in_blocks, of_blocks
from processes.market import DECODER, DECODER_DTYPE, DECODER_TARGET
from processes.progress import say

WINDOW, TEXTS, QUICK_WINDOW, QUICK_TEXTS = 440, 12, 40, 1
_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_MOST = 448.0


def _int8(x: Tensor) -> Tensor:
    return of_blocks(in_blocks(x), x.shape, x.dtype)


def _float8(x: Tensor) -> Tensor:
    scale = (x.abs().amax(-1, keepdim=True) / _FLOAT8_MOST).clamp_min(torch.finfo(torch.float32).tiny)
    return (x / scale).to(_FLOAT8).to(x.dtype) * scale


Narrowed = Callable[[Tensor], Tensor]
"""To what travels and back."""
NARROWED: dict[str, Narrowed] = {
    "own": lambda x: x,
    "bf16": lambda x: x.bfloat16().to(x.dtype),
    "int8": _int8,
    "fp8": _float8,
}


def row_bytes(codec: str, width: int) -> int:
    """Of a position on an edge."""
    if codec == "fp8":
        return width + 4  # a scale a row
    return bytes_of({"own": "float32", "bf16": "bfloat16", "int8": MXINT8}[codec], (1, 1, width))


def prefilled(*, quick: bool) -> dict[str, Any]:
    """By codec: bytes of a position on an edge, and the perplexity of Python's library."""
    whole = LocalDecoder(DECODER, dtype=DECODER_DTYPE, threads=1)
    texts = _texts(whole, QUICK_TEXTS if quick else TEXTS, QUICK_WINDOW if quick else WINDOW)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nodewire-decode-") as folder:
        made = split_decoder(
            DECODER, parse_size(DECODER_TARGET), Path(folder), slots=1, options=DecoderOptions(dtype=DECODER_DTYPE)
        )
        stages = [
            entry.load(t.engine, made.blobs[t.program.sha256].read_bytes(), _paths(made.blobs, t), Limits(2**30))
            for t in made.manifest.tasks
            if t.engine == "decoder.stage"
        ]
        edges = {edge.target: edge.name for edge in made.manifest.edges if edge.target.startswith("stage")}
        names = [t.name for t in made.manifest.tasks if t.engine == "decoder.stage"]
        ring = [(edges[name], stage) for name, stage in zip(names, stages, strict=True)]
        for codec, narrowed in NARROWED.items():
            found[codec] = {
                "row_bytes": row_bytes(codec, whole.config.hidden_size),
                "perplexity": _perplexity(whole, ring, texts, narrowed, NARROWED["bf16"], len(texts[0]) // 2),
                "all_narrowed": _perplexity(whole, ring, texts, narrowed, narrowed),
            }
            say(f"{codec}: {found[codec]}")
    return {"texts": len(texts), "positions": len(texts[0]), "edges": len(ring) + 1, **found}


def _paths(blobs: Any, task: Any) -> list[Path]:
    return [blobs[weight.sha256] for weight in task.weights]


def _texts(whole: LocalDecoder, count: int, window: int) -> list[list[int]]:
    texts = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        ids = whole.tokenizer.encode(path.read_text())[:window]
        if len(ids) == window:
            texts.append(ids)
        if len(texts) == count:
            break
    return texts


def _perplexity(
    whole: LocalDecoder, ring: Any, texts: list[list[int]], prompt: Narrowed, answer: Narrowed, first: int = 0
) -> float:
    """Of texts whose halves travel so, from position `first` on."""
    losses = []
    for ids in texts:
        ways = [prompt if pos < len(ids) // 2 else answer for pos in range(len(ids))]
        losses += _losses(whole, ring, ids, ways)[first:]
    return round(math.exp(statistics.fmean(losses)), 4)


@torch.inference_mode()
def _losses(whole: LocalDecoder, ring: Any, ids: list[int], narrowed: Sequence[Narrowed]) -> list[float]:
    """Nats, of each token after the first; `narrowed` says how each position travels."""
    for _, stage in ring:
        stage.open("text", {})
    losses = []
    for pos, (token, after) in enumerate(pairwise(ids)):
        x = whole.vocabulary.embed(torch.tensor([token]))
        for edge, stage in ring:
            meta = {"pos": pos, "chunk": 0, "tokens": 1}
            [frame] = stage.receive("text", Frame(edge, pos, (narrowed[pos](x),), meta))
            [x] = frame.tensors
        losses.append(float(-whole.vocabulary.logits(narrowed[pos](x)).log_softmax(-1).flatten()[after]))
    for _, stage in ring:
        stage.close("text")
    return losses
