"""A process that runs a model's tasks with its own threads, instruction set, weights: `python -m bench.recompute JOB`.

JOB is a JSON file: {"record": [[edge, text, params] ...]} runs a model from its inputs and writes down every frame that
a task took and gave; {"replay": true} gives every task the frames that were written down and writes down what it gives
now, so that differences are one task's and do not add up along the model. Both name `manifest`, `blobs`, `transcript`
(the file written down), `out`; `threads`; and `weights`: {} or {"noise": part} or {"bits": n}, another model's.
What chooses the instruction set stands in the environment (see bench.honest), before torch is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from nodewire.graph import actor as graph
from nodewire.kind import Actor, Limits
from nodewire.llm import actor as llm
from nodewire.protocol.frame import Frame
from nodewire.protocol.manifest import CUSTOMER, Manifest

FAULTS = Path(__file__).parent.parent / "tests" / "faults"
_ROOM_BYTES = 2 * 10**9
Call = dict[str, Any]
"""{"session", "task", "params", "frame": head, "outs": [head ...]}; head: {"edge", "seq", "meta", "tensors": keys}."""


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    if job["weights"]:
        _exchange(job["weights"])
    manifest = Manifest.unpack(Path(job["manifest"]).read_bytes())
    actors = load(manifest, Path(job["blobs"]), job["threads"])
    out = Path(job["out"])
    if "record" in job:
        record(manifest, actors, job["record"], out)
    else:
        replay(actors, Path(job["transcript"]), out)


def load(manifest: Manifest, blobs: Path, threads: int) -> dict[str, Actor]:
    limits = Limits(memory_bytes=_ROOM_BYTES, threads=threads)
    actors = {}
    for task in manifest.tasks:
        engine = llm.load if task.engine.startswith("decoder.") else graph.load
        weights = [blobs / weight.sha256 for weight in task.weights]
        actors[task.name] = engine(task.engine, (blobs / task.program.sha256).read_bytes(), weights, limits)
    return actors


def record(manifest: Manifest, actors: Mapping[str, Actor], inputs: list[list[Any]], out: Path) -> None:
    """Run every input as a session of its own, from the customer's edge to the customer's edge."""
    target = {edge.name: edge.target for edge in manifest.edges}
    pages = _Pages()
    for number, (edge, text, params) in enumerate(inputs):
        session = f"s{number}"
        for actor in actors.values():
            actor.open(session, params)
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        waiting: list[Frame[Any]] = [Frame(edge, 0, (data,), {"chunk": 0})]
        while waiting:
            frame = waiting.pop(0)
            if (task := target[frame.edge]) != CUSTOMER:
                outs = actors[task].receive(session, frame)
                pages.add(session, task, params, frame, outs)
                waiting += outs
        for actor in actors.values():
            actor.close(session)
    pages.write(out)


def replay(actors: Mapping[str, Actor], transcript: Path, out: Path) -> None:
    """Each task's sessions again, from the frames that it took then."""
    calls, tensors = read(transcript)
    pages = _Pages(inputs=False)
    open_: set[tuple[str, str]] = set()
    for call in calls:
        session, task = call["session"], call["task"]
        if (session, task) not in open_:
            actors[task].open(session, call["params"])
            open_.add((session, task))
        frame = frame_of(call["frame"], tensors)
        pages.add(session, task, call["params"], frame, actors[task].receive(session, frame))
    pages.write(out)


def read(path: Path) -> tuple[list[Call], dict[str, torch.Tensor]]:
    """What `record` or `replay` wrote: the calls, and their tensors by key."""
    return json.loads(path.with_suffix(".json").read_text()), load_file(path.with_suffix(".safetensors"))


def frame_of(head: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Frame[torch.Tensor]:
    return Frame(head["edge"], head["seq"], tuple(tensors[key] for key in head["tensors"]), head["meta"])


class _Pages:
    def __init__(self, *, inputs: bool = True) -> None:
        self._calls: list[Call] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._inputs = inputs

    def add(self, session: str, task: str, params: Any, frame: Frame[Any], outs: list[Frame[Any]]) -> None:
        number = len(self._calls)
        taken = self._head(frame, f"{number}.in") if self._inputs else {}
        given = [self._head(out, f"{number}.{k}") for k, out in enumerate(outs)]
        self._calls.append({"session": session, "task": task, "params": params, "frame": taken, "outs": given})

    def _head(self, frame: Frame[Any], key: str) -> dict[str, Any]:
        keys = [f"{key}.{i}" for i in range(len(frame.tensors))]
        self._tensors.update({k: t.clone().contiguous() for k, t in zip(keys, frame.tensors, strict=True)})
        return {"edge": frame.edge, "seq": frame.seq, "meta": dict(frame.meta), "tensors": keys}

    def write(self, path: Path) -> None:
        path.with_suffix(".json").write_text(json.dumps(self._calls))
        save_file(self._tensors, path.with_suffix(".safetensors"))


def _exchange(weights: Mapping[str, float]) -> None:
    sys.path.append(str(FAULTS))
    from nodewire_faults.engine import exchange_weights, noisy, rounded

    exchange_weights(noisy(weights["noise"]) if "noise" in weights else rounded(int(weights["bits"])))


if __name__ == "__main__":
    main()
