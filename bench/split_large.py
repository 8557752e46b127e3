"""A full-size configuration analysed without its weights, in a process of its own: `python -m bench.split_large NAME`.

Prints one JSON object: seconds from the first import to the last task, the process's peak memory, and what was found.
"""

from __future__ import annotations

import time

STARTED_S = time.monotonic()

import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from nodewire.graph.decompose import decompose, memory_bytes  # noqa: E402
from nodewire.graph.families.building import build  # noqa: E402
from nodewire.graph.families.inputs import Largest  # noqa: E402
from nodewire.graph.format import Program  # noqa: E402
from nodewire.graph.reading import Traced  # noqa: E402
from nodewire.graph.register import normalized  # noqa: E402
from nodewire.graph.split_directory import trace_built  # noqa: E402


@dataclass(frozen=True, slots=True)
class Large:
    config: Mapping[str, Any]
    largest: Largest
    target_bytes: int


LARGE: Mapping[str, Large] = {
    "clip": Large(
        {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "projection_dim": 512,
            "text_config": {"eos_token_id": 2},
            "vision_config": {"patch_size": 32},
        },
        Largest(batch=8),
        512 * 10**6,
    ),
    "llama-70b": Large(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "dtype": "bfloat16",
            "vocab_size": 128_256,
            "hidden_size": 8_192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8_192,
        },
        Largest(batch=1, length=512),
        12 * 2**30,
    ),
}


_TIMES = 5


def main(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    large = LARGE[name]
    built = build(large.config, large.largest)
    built_s = time.monotonic()
    traced = trace_built(built)
    exported_s = time.monotonic()
    whole = normalized(traced)
    done = decompose(whole, traced.shapes, large.target_bytes, built.called.least)
    ended_s = time.monotonic()
    analysis_ms = [_analysis_ms(whole, traced, large, built.called.least) for _ in range(_TIMES)]
    seconds = {"build_s": built_s - STARTED_S, "export_s": exported_s - built_s, "split_s": ended_s - exported_s}
    tasks = [made.program for made in done.tasks.values()]
    takes = {name: memory_bytes(made, large.target_bytes) for name, made in done.tasks.items()}
    beside = min(takes[name] - made.weight_bytes for name, made in done.tasks.items())
    weights = sum(w.nbytes for w in whole.weights)
    inner = [edge for task in tasks for edge in {i.edge for i in task.inputs if not i.edge.startswith("driver.")}]
    return {
        "seconds": round(ended_s - STARTED_S, 2),
        **{what: round(took, 2) for what, took in seconds.items()},
        "analysis_ms": analysis_ms,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024,
        "nodes": len(whole.nodes),
        "weights_bytes": weights,
        "graph_bytes": sum(len(task.encode()) for task in tasks),
        "tasks": len(tasks),
        "target_bytes": large.target_bytes,
        "largest_task_bytes": max(takes.values()),
        # No cut can do with fewer: each task takes this much beside weights, and all weights are in some task.
        "least_tasks": -(-weights // (large.target_bytes - beside)),
        "volume": done.volume,
        "most_tensors_on_a_boundary": max(
            (sum(i.edge == edge for task in tasks for i in task.inputs) for edge in inner), default=0
        ),
    }


def _analysis_ms(whole: Program, traced: Traced, large: Large, least: int) -> float:
    """The cut alone: from the normalized program to tasks whose memory is known."""
    began = time.perf_counter()
    decompose(whole, traced.shapes, large.target_bytes, least)
    return round((time.perf_counter() - began) * 1e3, 1)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
