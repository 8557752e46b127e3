"""A process that runs a model's tasks in its own way: `python -m bench.verification.recompute JOB`.

JOB is a JSON file. {"record": [[edge, text, params] ...]} runs a model from its inputs and writes down every frame that
a task took and gave; without it every task is given the frames that were written down, and what it gives now is
written down: so differences are one task's and do not add up along the model. Both name `manifest`, `blobs`,
`transcript` (what was recorded), `out`, and how it computes:

    threads   of torch
    mkldnn    whether torch may use oneDNN
    frames    "single": one by one, as a provider takes them; "merged": what came before a chunk of a decoder's stage in
              frames of up to 512 positions, the chunk itself one by one; "whole": the chunk in one frame as well,
              where a stage gives every position
    weights   {}, or what is done to them: {"noise": part}, {"bits": n} of a row's scale, {"blocks": n} of a block's,
              {"fp8": 0}, {"cast": dtype}, {"pruned": part}, {"cache": 8} of keys and values, {"window": positions},
              {"skip": [layer ...]}
    reference whether its decoder's stages are computed in float32, as an oracle computes what it holds others against
    half      whether a model that was sold in float32 is computed in bfloat16
    head      "own", or "double": a driver's norm and head in float64, from the same weights
    engine    which engine's tasks alone are computed again; all if it is empty

Beside `out`, in OUT.leeway.json, stand the gaps of tokens that a driver here would not have chosen, as parts of what
is excused (`llm/tokens/leeway.py`).

What chooses the instruction set stands in the environment (see bench.verification.honest), before torch is imported.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from nodewire.errors import NodewireError
from nodewire.graph import entry as graph
from nodewire.graph.program import interpreter
from nodewire.kind import Actor, Limits
from nodewire.llm import entry as llm
from nodewire.llm.layers.embedding_head import Vocabulary
from nodewire.llm.programs.programs import DriverProgram, StageProgram
from nodewire.llm.tokens import sampler
from nodewire.llm.tokens.leeway import excused_gap, gap
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.job.chunk import chunk_of
from nodewire.protocol.model import token_list
from nodewire.protocol.model.manifest import CUSTOMER, REFERENCE_ENGINE, Manifest, Task
from nodewire.protocol.tensors.frame import Frame
from nodewire.protocol.verification import choices

FAULTS = Path(__file__).parents[2] / "tests" / "faults"
MERGED_POSITIONS = 512
_ROOM_BYTES = 2 * 10**9
NOTHING_ALTERED = "no tensor was altered by the cheat"
"""Said on standard error where a cheat does nothing, before the process ends with 1."""
Call = dict[str, Any]
"""{"session", "task", "params", "frame": head, "outs": [head ...]}; head: {"edge", "seq", "meta", "tensors": keys}.

Of a replay `frame` is {}; a session that could not be replayed to its end has a last call with `outs` None."""


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    torch.backends.mkldnn.set_flags(job["mkldnn"])
    altered = _exchange(job["weights"]) if job["weights"] else None
    if job["half"]:
        interpreter.check_values = lambda *_: None  # it refuses products of bfloat16 and float32
    manifest = Manifest.unpack(Path(job["manifest"]).read_bytes())
    how = {"half": job["half"], "reference": job["reference"]}
    engine = "decoder.stage" if job["reference"] else job["engine"]
    tasks = [task for task in manifest.tasks if engine in ("", task.engine)]
    actors = {task.name: _load(task, Path(job["blobs"]), job["threads"], **how) for task in tasks}
    if "record" in job:
        record(manifest, actors, job["record"], Path(job["out"]))
    else:
        gaps = _noted_gaps()
        if job["head"] == "double":
            Vocabulary.every_logits = double_logits  # type: ignore[method-assign]
        replay(manifest, actors, Path(job["transcript"]), Path(job["out"]), job["frames"])
        Path(job["out"]).with_suffix(".leeway.json").write_text(json.dumps(gaps))
    if altered is not None and not altered:
        print(NOTHING_ALTERED, job["weights"], file=sys.stderr)
        sys.exit(1)


def _load(task: Task, blobs: Path, threads: int, *, half: bool, reference: bool = False) -> Actor:
    limits = Limits(memory_bytes=_ROOM_BYTES, threads=threads)
    engine = llm.load if task.engine.startswith("decoder.") else graph.load
    program = (blobs / task.program.sha256).read_bytes()
    if half and task.engine.startswith("decoder."):
        read = StageProgram if task.engine == "decoder.stage" else DriverProgram
        program = read.unpack(program).model_copy(update={"dtype": "bfloat16"}).pack()
    name = REFERENCE_ENGINE if reference else task.engine
    actor = engine(name, program, [blobs / weight.sha256 for weight in task.weights], limits)
    return Half(actor, cast=task.engine.startswith("decoder.")) if half else actor


class Half:
    """An actor of a float32 model that computes in bfloat16: a decoder's task all of it, a graph its products."""

    def __init__(self, actor: Actor, *, cast: bool) -> None:
        self._actor, self._cast = actor, cast
        self.open, self.close = actor.open, actor.close

    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        if self._cast:
            return [_to(out, torch.float32) for out in self._actor.receive(session, _to(frame, torch.bfloat16))]
        with torch.autocast("cpu", torch.bfloat16):
            return [_to(out, torch.float32) for out in self._actor.receive(session, frame)]


def _to(frame: Frame[Any], dtype: torch.dtype) -> Frame[Any]:
    return replace(frame, tensors=tuple(t.to(dtype) if t.is_floating_point() else t for t in frame.tensors))


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


def replay(manifest: Manifest, actors: Mapping[str, Actor], transcript: Path, out: Path, how: str) -> None:
    """Each task's sessions again, from the frames that it took then. A driver judges the tokens that were said then."""
    calls, tensors = read(transcript)
    took: dict[tuple[str, str], list[Frame[Any]]] = {}
    said: dict[tuple[str, str], dict[int, int]] = {}
    params = {}
    for call in calls:
        if call["task"] not in actors:
            continue
        took.setdefault((call["session"], call["task"]), []).append(frame_of(call["frame"], tensors))
        params[call["session"]] = call["params"]
        edge = choices.tokens_edge(manifest, call["task"])
        tokens = [head for head in call["outs"] if head["edge"] == edge]
        numbers = {head["seq"]: int(tensors[head["tensors"][0]][0]) for head in tokens}
        said.setdefault((call["session"], call["task"]), {}).update(numbers)
    pages = _Pages(inputs=False)
    for (session, task), frames in took.items():
        stage = manifest.task(task).engine == "decoder.stage"
        whole = how == "whole" and not any(edge.back for edge in manifest.outputs(task))
        rounds = _by_chunk(manifest, frames, whole=whole) if stage and how != "single" else [([], frames)]
        judges = choices.tokens_edge(manifest, task) is not None
        told = {token_list.SAID: token_list.pack(said[session, task])} if judges else {}
        for before, sampled in rounds:
            actors[task].open(session, {**params[session], **told})
            try:
                for frame in before:
                    actors[task].receive(session, frame)
                for frame in sampled:
                    pages.add(session, task, None, frame, _apart(frame, actors[task].receive(session, frame)))
            except NodewireError:
                pages.broke(session, task)  # a driver that chose another end
            finally:
                actors[task].close(session)
    pages.write(out)


def _by_chunk(
    manifest: Manifest, frames: Sequence[Frame[Any]], *, whole: bool
) -> Iterator[tuple[list[Frame[Any]], list[Frame[Any]]]]:
    """For every chunk: all before it in few frames, and its own."""
    for chunk in sorted({chunk_of(manifest, frame.seq) for frame in frames}):
        before = [frame for frame in frames if chunk_of(manifest, frame.seq) < chunk]
        own = [frame for frame in frames if chunk_of(manifest, frame.seq) == chunk]
        yield list(_merged(before)), list(_merged(own)) if whole else own


def _merged(frames: Sequence[Frame[Any]]) -> Iterator[Frame[Any]]:
    run: list[Frame[Any]] = []
    for frame in frames:
        if run and sum(one.tensors[0].shape[1] for one in [*run, frame]) > MERGED_POSITIONS:
            yield _joined(run)
            run = []
        run.append(frame)
    if run:
        yield _joined(run)


def _joined(run: Sequence[Frame[Any]]) -> Frame[Any]:
    hidden = torch.cat([frame.tensors[0] for frame in run], dim=1)
    return Frame(run[0].edge, run[0].seq, (hidden,), {**run[0].meta, "tokens": hidden.shape[1], "parts": len(run)})


def _apart(taken: Frame[Any], outs: list[Frame[Any]]) -> list[Frame[Any]]:
    """The frames that a merged one stands for: one position each."""
    parts = taken.meta.get("parts", 1)
    if parts == 1:
        return outs
    (out,) = outs
    return [
        Frame(out.edge, out.seq + k, (one,), {"chunk": out.meta["chunk"]})
        for k, one in enumerate(out.tensors[0].split(1, dim=1))
    ]


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

    def broke(self, session: str, task: str) -> None:
        self._calls.append({"session": session, "task": task, "params": None, "frame": {}, "outs": None})

    def _head(self, frame: Frame[Any], key: str) -> dict[str, Any]:
        keys = [f"{key}.{i}" for i in range(len(frame.tensors))]
        self._tensors.update({k: t.clone().contiguous() for k, t in zip(keys, frame.tensors, strict=True)})
        return {"edge": frame.edge, "seq": frame.seq, "meta": dict(frame.meta), "tensors": keys}

    def write(self, path: Path) -> None:
        path.with_suffix(".json").write_text(json.dumps(self._calls))
        save_file(self._tensors, path.with_suffix(".safetensors"))


def double_logits(ends: Vocabulary, hidden: torch.Tensor) -> torch.Tensor:
    """As `Vocabulary.every_logits`, with nothing rounded on the way."""
    assert ends.norm is not None
    bias = None if ends.norm.bias is None else ends.norm.bias.double()
    norm = replace(ends.norm, weight=ends.norm.weight.double(), bias=bias)
    found = F.linear(norm(hidden.double()), ends.weights[ends._head].double()).float()
    if ends.logit_scale is not None:
        found.mul_(ends.logit_scale)
    return found if ends.softcap is None else found.div_(ends.softcap).tanh_().mul_(ends.softcap)


def _noted_gaps() -> list[float]:
    """Where a driver of this process notes the gap of each token that it is asked to excuse."""
    gaps: list[float] = []
    judged = sampler.is_excused  # type: ignore[attr-defined]

    def noted(logits: torch.Tensor, sampling: Sampling, pos: int, token: int, scale: float, dtype: torch.dtype) -> bool:
        gaps.append(gap(logits, sampling, pos, token) / excused_gap(scale, dtype))
        return judged(logits, sampling, pos, token, scale, dtype)

    sampler.is_excused = noted  # type: ignore[attr-defined]
    return gaps


def _exchange(weights: Mapping[str, Any]) -> set[str]:
    """The names of tensors that are altered from now on, as far as they are loaded."""
    sys.path.append(str(FAULTS))
    from nodewire_faults import engine

    (how, value), *_ = weights.items()
    if how == "cache":
        return engine.narrow_cache()
    if how == "window":
        return engine.shorten_window(value)
    changes = {
        "noise": engine.noisy,
        "bits": engine.rounded,
        "blocks": engine.in_blocks,
        "fp8": engine.eight_bit_floats,
        "cast": engine.cast,
        "pruned": engine.pruned,
        "skip": engine.without,
    }
    return engine.exchange_weights(changes[how](value)).altered


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
