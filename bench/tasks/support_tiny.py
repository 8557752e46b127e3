"""Tiny random models of every family, registered and compared with the library's own class."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.tasks import architectures, tiny_checkpoints, tiny_decoders, tiny_encoders
from bench.tools.task_chain import Carved
from nodewire.cli.model.cut import CutOptions, cut
from nodewire.errors import NodewireError
from nodewire.graph.families.inputs import Largest
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import Sampling

CLOSE = {"generate": 1e-4, "embed": 1e-5, "tensors": 5e-6}
"""How far logits, normalized vectors and others' outputs may be off."""
TIED = 1e-5
"""By how much the library's best logit may be above another one that is chosen."""
_PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(70)]
_TOKENS = 40
_LARGEST = Largest(batch=4, length=40)
_QUICK = (
    "llama, yarn",
    "mistral in awq",
    "olmo2",
    "granite",
    "cohere2",
    "gpt2",
    "falcon, in groups",
    "falcon, alibi",
    "deepseek_v2, lite",
    "deepseek_v3",
    "bloom",
    "mpt",
    "gemma3, seeing",
    "mpnet",
    "bert",
)


def measured(*, quick: bool, seen: Callable[[str], None]) -> dict[str, Any]:
    """By what it is: whether it is accepted, whether a number is wrong, and how far it is off."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found: dict[str, Any] = {}
    decoders = {**tiny_decoders.FAMILIES, **tiny_decoders.SEEING}
    ways: list[tuple[str, Any, Callable[[str, Path], tuple[float, bool]]]] = [
        ("generate", decoders, _generated),
        ("generate", [f"mistral in {way}" for way in tiny_checkpoints.WAYS], _packed),
        ("embed", tiny_encoders.ENCODERS, _embedded),
        ("tensors", architectures.CONFIGS, _called),
    ]
    for way, names, compared in ways:
        for name in names:
            if not quick or name in _QUICK:
                found[f"{way}: {name}"] = one = _tried(way, name, compared)
                seen(f"{way}: {name}: {one['refusals'] or one['off']}")
    return found


def _tried(way: str, name: str, compared: Callable[[str, Path], tuple[float, bool]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode(way == "generate"):
        try:
            off, same = compared(name, Path(scratch) / "model")
        except NodewireError as error:
            said = [f"{error.field}: {error.reason}"]
            return {"way": way, "accepted": False, "wrong": False, "off": 0.0, "refusals": said}
    return {"way": way, "accepted": True, "wrong": off > CLOSE[way] or not same, "off": off, "refusals": []}


def _generated(name: str, folder: Path) -> tuple[float, bool]:
    """How far logits are off, and whether all greedy tokens are the library's, up to where it is undecided."""
    sees = name in tiny_decoders.SEEING
    (tiny_decoders.make_seeing if sees else tiny_decoders.make_family)(folder, name)
    kind: Any = tiny_decoders.seeing_class(name) if sees else tiny_decoders.classes(tiny_decoders.FAMILIES[name][0])[1]
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    return _beside(model, folder)


def _packed(name: str, folder: Path) -> tuple[float, bool]:
    """As `_generated`, of a checkpoint whose numbers, multiplied out, the library has."""
    plain = tiny_decoders.make_family(folder / "plain", "mistral")
    packed, wide = tiny_checkpoints.write(plain, folder, tiny_checkpoints.WAYS[name.removeprefix("mistral in ")][0])
    kind: Any = tiny_decoders.classes("Mistral")[1]
    return _beside(kind.from_pretrained(wide, dtype=torch.float32).eval(), packed)


def _beside(model: Any, folder: Path) -> tuple[float, bool]:
    split_decoder(folder, None, None, slots=1, split=2)  # as a registration says it
    whole = LocalDecoder(folder, dtype="float32")
    wanted = model(torch.tensor([_PROMPT])).logits[0]
    off = max(float((whole.logits(_PROMPT[:n]) - wanted[n - 1]).abs().max()) for n in (20, len(_PROMPT)))
    ours = list(whole.tokens(_PROMPT, Sampling(_TOKENS)))
    logits = model(torch.tensor([_PROMPT + ours])).logits[0, len(_PROMPT) - 1 : -1]
    gaps = logits.amax(-1) - logits.gather(1, torch.tensor(ours)[:, None])[:, 0]
    return off, bool((gaps <= TIED).all())


def _embedded(name: str, folder: Path) -> tuple[float, bool]:
    tiny_encoders.make_encoder(folder, name)
    with tempfile.TemporaryDirectory() as out:
        made = cut(folder, CutOptions(60_000, "one"), Path(out))
        carved = Carved(made)
        off = 0.0
        for rows, length in ((1, 24), (3, 7), (4, 6)):
            ids, mask = tiny_encoders.batch(name, rows, length)
            vectors = carved({"input_ids": ids, "attention_mask": mask})["vectors"]
            off = max(off, float((vectors - tiny_encoders.eager(folder, name, ids, mask)).abs().max()))
    return off, made.manifest.mode == "embed"


def _called(name: str, folder: Path) -> tuple[float, bool]:
    folder.mkdir()
    model = architectures.make(name, folder)
    with tempfile.TemporaryDirectory() as out:
        found = architectures.cut(folder, Path(out), _LARGEST)
        carved = Carved(found.made)
    off = 0.0
    for batch, length in ((2, 12), (3, 31)):
        sizes = architectures.sizes(found.called, batch, length)
        given = architectures.inputs(found.called, sizes, architectures.VOCABULARY)
        with torch.no_grad():
            wanted = found.called.call(model, given)
        off = max(off, *(float((tensor - wanted[key]).abs().max()) for key, tensor in carved(given).items()))
    return off, True
