"""Which models are accepted, and whether they say what their authors' do: `python -m bench.tasks.support [--json]
[--quick]`.

`configs/` holds the config.json of models that people have, as `transformers` or their authors wrote them. Each goes
the way of `nodewire register --dry-run`, at three targets; where a target is too small, one of the size that the
refusal names must do. Tiny random models of every family are compared with the library's own class: decoders by
their logits and greedy tokens, encoders by the vectors of texts, others by what they put out.

A refusal must name what the cause is, and what can be done. `--table FILE` writes what is accepted as Markdown.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.report import Report, run
from bench.tasks import support_table, support_tiny
from nodewire.cli.model.cut import CutOptions, cut
from nodewire.errors import NodewireError, OverMemory
from nodewire.kind import Registration
from nodewire.protocol.encoding.byte_sizes import parse_size
from processes.progress import say

CONFIGS = Path(__file__).parents[1] / "configs"
TARGETS = {"4GB": 4 * 10**9, "16GB": 16 * 10**9, "64GB": 64 * 10**9}
QUICK = (
    *("llama-3.2-1b", "gemma-2-9b", "gemma-3-4b", "gpt2", "falcon-rw-1b", "bloom-560m", "deepseek-v2-lite"),
    *("all-minilm-l6-v2", "mamba-130m", "rwkv-4-169m"),
)
_REMEDIES = re.compile(
    r"would (do|fit)`?$|needs a target of|leave it out|may be left out|take (it|the model) unquantized"
    r"|nodewire\.register|without --as-tensors|--as-tensors cuts"
)
"""What tells somebody what to do."""
_WOULD_DO = re.compile(r"(?:--target-vram|needs a target of) ([\d.]+ ?[kMGT]?B)")


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    names = sorted(path.stem for path in CONFIGS.glob("*.json"))
    for name in [one for one in names if one in QUICK] if report.quick else names:
        report.arms[name] = found = _tried(name)
        say(f"{name}: {found['said']}")
    configs = dict(report.arms)
    tiny = support_tiny.measured(quick=report.quick, seen=say)
    report.arms |= tiny
    _lines(report, configs, tiny)
    if options.table is not None:
        options.table.write_text(support_table.table(configs, tiny, list(TARGETS)))


def _lines(report: Report, configs: dict[str, Any], tiny: dict[str, Any]) -> None:
    quick = report.quick
    accepted = [one for one in configs.values() if one["accepted"]]
    refusals = [said for one in (*configs.values(), *tiny.values()) for said in one["refusals"]]
    report.line("configurations", len(configs), ">=", 6 if quick else 40)
    report.line("configurations_accepted", len(accepted), ">=", 5 if quick else 36)
    report.line("targets_named_by_a_refusal_that_do_not_do", sum(one["misled"] for one in configs.values()), "==", 0)
    report.line("tiny_models", len(tiny), ">=", 10 if quick else 40)
    report.line("tiny_models_accepted", sum(one["accepted"] for one in tiny.values()), ">=", 10 if quick else 36)
    report.line("wrong_numbers", sum(one["wrong"] for one in tiny.values()), "==", 0)
    report.line("largest_difference", max(one["off"] for one in tiny.values() if one["accepted"]), "<=", 1e-4)
    report.line("refusals", len(refusals), ">=", 2)
    report.line("refusals_without_remedy", sum(not _REMEDIES.search(said) for said in refusals), "==", 0)
    report.line("refusals_without_cause", sum(not re.match(r"[\w.\- ]+: \S", said) for said in refusals), "==", 0)


def _tried(name: str) -> dict[str, Any]:
    """What comes of a configuration at each target."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copy(CONFIGS / f"{name}.json", folder / "config.json")
        said = json.loads((folder / "config.json").read_text())
        found: dict[str, Any] = {"class": said["architectures"][0], "at": {}, "refusals": [], "misled": 0}
        for target, size in TARGETS.items():
            try:
                made = _dry(folder, name, size)
            except NodewireError as error:
                found["refusals"].append(f"{error.field}: {error.reason}")
                if not isinstance(error, OverMemory):
                    break  # at any other target, too
                found["at"][target] = None
                found["misled"] += not _does(folder, name, error)
            else:
                found["at"][target] = _kept(made)
                found["mode"] = made.manifest.mode
                found["weights_bytes"] = sum(blob.bytes for task in made.manifest.tasks for blob in task.weights)
        found["accepted"] = any(found["at"].values())
        parts = [f"{one['tasks']} pieces" if one else "too small" for one in found["at"].values()]
        found["said"] = ", ".join(parts) if found["accepted"] else found["refusals"][-1]
        return found


def _dry(folder: Path, name: str, target: int) -> Registration:
    return cut(folder, CutOptions(target, name), None)


def _does(folder: Path, name: str, error: OverMemory) -> bool:
    """Whether the target that a refusal names is one that does."""
    named = _WOULD_DO.search(error.reason)
    if named is None:
        return False
    try:
        _dry(folder, name, parse_size(named[1]))
    except OverMemory:
        return False
    return True


def _kept(made: Registration) -> dict[str, int]:
    tasks = made.manifest.tasks
    return {"tasks": len(tasks), "largest_bytes": max(task.memory_bytes for task in tasks)}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=Path, help="where to write what is accepted, as Markdown")


if __name__ == "__main__":
    run("support", __doc__, measure, add=_options)
