"""What `bench.tasks.support` found, as a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = """# Models

`python -m bench.tasks.support --table docs/reference/models.md` writes this page. It has the results of
`nodewire register --dry-run` for the configurations of models that people have (`bench/configs`). It compares tiny
random models of every family with `transformers`. Pieces are counted at a target of so much memory, for 4 sessions of
8192 positions each. A model with fewer positions gets sessions of its own length. Weights are served in bfloat16 if
most are stored so or in few bits, else in float32. A smaller context, fewer sessions or keys in 8 bits make fewer
pieces.

A model *generates* text, *embeds* it, or is called with *tensors*. A class that is in neither table, and any module of
one's own, is cut from Python by `nodewire.register`.
"""
_MODES = {"generate": "generates", "embed": "embeds", "run": "tensors"}


def table(configs: Mapping[str, Any], tiny: Mapping[str, Any], targets: Sequence[str]) -> str:
    parts = [_HEAD, "## Accepted\n", _accepted(configs, targets)]
    refused = {name: one for name, one in configs.items() if not one["accepted"]}
    parts += ["\n## Refused\n", "| model | class | why, and what can be done |\n|---|---|---|"]
    parts += [f"| {name} | {one['class']} | {_short(one['refusals'][-1])} |" for name, one in refused.items()]
    parts += ["\n## Tiny random models beside `transformers`\n", _HELD, _compared(tiny)]
    return "\n".join(parts) + "\n"


_HELD = """Decoders by logits and 40 greedy tokens, encoders by normalized vectors, others by all that they put out.
"""


def _accepted(configs: Mapping[str, Any], targets: Sequence[str]) -> str:
    lines = [
        f"| model | class | | weights as served | {' | '.join(f'pieces of {target}' for target in targets)} |",
        f"|---|---|---|---|{'---|' * len(targets)}",
    ]
    for name, one in configs.items():
        if one["accepted"]:
            counts = [
                str(at["tasks"]) if (at := one["at"].get(target)) else "needs a larger target" for target in targets
            ]
            size = f"{one['weights_bytes'] / 1e9:.2f} GB"
            lines.append(f"| {name} | {one['class']} | {_MODES[one['mode']]} | {size} | {' | '.join(counts)} |")
    return "\n".join(lines)


def _compared(tiny: Mapping[str, Any]) -> str:
    lines = ["| | model | largest difference |", "|---|---|---|"]
    for name, one in tiny.items():
        way, _, model = name.partition(": ")
        said = f"{one['off']:.1e}" if one["accepted"] else _short(one["refusals"][0])
        lines.append(f"| {way} | {model} | {said if not one['wrong'] else f'WRONG: {said}'} |")
    return "\n".join(lines)


def _short(refusal: str) -> str:
    """A refusal without its lists of classes."""
    said = refusal if len(refusal) <= 200 else f"{refusal[:120]} ... {refusal[-75:]}"
    return said.replace("|", "\\|")
