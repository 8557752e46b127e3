"""Honest providers on unlike machines, compared as verifiers compare: `python -m bench.honest [--json] [--quick]`.

A decoder (fp32, and bf16 arithmetic) and a sentence encoder (fp32) run once in one process, written down frame by
frame. Then every task is computed again from the very frames that it took, in processes with other thread counts and
other instruction sets (AVX-512, AVX2, none, by the environment variables of torch, oneDNN and MKL), as a verifier would
on another machine. Every floating-point tensor is compared by the product's own sketches and tolerances, and beside it
in full: relative L2 distance and one minus the cosine, of the whole tensor.

The same for cheats, each against an honest process on another configuration: what share of frames fails, is grey or
passes, and in how many chunks of 64 frames at least one frame fails. What passes is not detectable.

Lines: comparisons, false fails, and the largest honest distance as a part of the `fail` threshold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from bench import dag
from bench.jobs import PROMPTS
from bench.market import DECODER, DECODER_TARGET, ROOT
from bench.recompute import FAULTS, Call, frame_of, read
from bench.report import Report, run, say, spread
from nodewire.config import parse_size
from nodewire.graph.register import split_encoder
from nodewire.kind import Registration
from nodewire.llm.split import split_decoder
from nodewire.protocol.frame import Array
from nodewire.protocol.manifest import Edge, Manifest

CHUNK = 64
Outcome = Literal["pass", "grey", "fail"]
_ISA = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "none": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a process computes: threads, instruction set, and whose weights ({}: those that were sold)."""

    threads: int = 1
    isa: str = "native"
    weights: tuple[str, float] | None = None

    def __str__(self) -> str:
        weights = f" {self.weights[0]} {self.weights[1]:g}" if self.weights else ""
        return f"{self.threads} threads, {self.isa}{weights}"


SETTINGS = (
    *(Setting(threads) for threads in (2, 3, 4)),
    *(Setting(threads, isa) for isa in ("avx2", "none") for threads in (1, 2)),
)
QUICK = (Setting(2), Setting(1, "avx2"), Setting(2, "none"))
OTHER_WEIGHTS = (("noise", 0.1), ("noise", 0.01), ("noise", 0.001), ("bits", 4), ("bits", 8))
QUICK_WEIGHTS = (("noise", 0.1), ("noise", 0.01), ("bits", 8))
NOISE = (0.05, 0.01, 0.001)


@dataclass(frozen=True, slots=True)
class Model:
    """A registered model with its blobs in `folder`."""

    name: str
    folder: Path
    manifest: Manifest
    digest: str
    inputs: list[list[Any]]

    @classmethod
    def of(cls, name: str, folder: Path, made: Registration, inputs: list[list[Any]]) -> Model:
        (folder / "manifest").write_bytes(made.manifest.pack())
        return cls(name, folder, made.manifest, made.manifest.digest(), inputs)

    async def compute(self, setting: Setting, out: str, *, record: bool = False) -> Path:
        """Run bench.recompute; where it wrote."""
        job: dict[str, Any] = {
            "manifest": str(self.folder / "manifest"),
            "blobs": str(self.folder),
            "transcript": str(self.folder / "recorded"),
            "out": str(self.folder / out),
            "threads": setting.threads,
            "weights": dict([setting.weights]) if setting.weights else {},
        }
        job |= {"record": self.inputs} if record else {"replay": True}
        (self.folder / f"{out}.job").write_text(json.dumps(job))
        environment = {**os.environ, **_ISA[setting.isa], "OMP_NUM_THREADS": str(setting.threads)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.recompute", str(self.folder / f"{out}.job"),
            env=environment, cwd=ROOT, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self.name}, {setting}: {stderr.decode()[-1000:]}")
        return self.folder / out


class Judge:
    """The product's comparison of one tensor: sketches made apart, tolerances of the manifest's edge."""

    def __init__(self, model: Model) -> None:
        """Raises RuntimeError where the product has no sketches."""
        try:
            self._fingerprint: Any = import_module("nodewire.protocol.fingerprint")
        except ModuleNotFoundError as error:
            raise RuntimeError("this nodewire has no fingerprints; --raw measures without them") from error
        self._digest = model.digest
        self._edges: dict[str, Edge] = {edge.name: edge for edge in model.manifest.edges}

    def __call__(self, edge: str, index: int, mine: Array, theirs: Array) -> tuple[Outcome, float]:
        """The outcome, and the distance as a part of the threshold of `fail`."""
        declared = self._edges[edge]
        sketches = [self._fingerprint.sketch(self._digest, edge, index, one) for one in (mine, theirs)]
        distance_ppm = float(self._fingerprint.compare(declared, *sketches))
        tolerance = self._fingerprint.tolerance(declared, index)
        part = distance_ppm / tolerance.fail_ppm
        return ("pass" if distance_ppm <= tolerance.pass_ppm else "fail" if part >= 1 else "grey"), part


def pairs(
    one: tuple[list[Call], dict[str, torch.Tensor]], other: tuple[list[Call], dict[str, torch.Tensor]]
) -> Iterator[tuple[Call, str, int, int, torch.Tensor, torch.Tensor]]:
    """(call, edge, seq, index, mine, theirs) of every floating-point tensor that both put out."""
    for call, again in zip(one[0], other[0], strict=True):
        for head, back in zip(call["outs"], again["outs"], strict=False):
            mine, theirs = frame_of(head, one[1]), frame_of(back, other[1])
            for index, (a, b) in enumerate(zip(mine.tensors, theirs.tensors, strict=False)):
                if a.is_floating_point() and a.shape == b.shape:
                    yield call, mine.edge, mine.seq, index, a, b


def relative_l2(a: torch.Tensor, b: torch.Tensor) -> float:
    x, y = a.double().flatten(), b.double().flatten()
    return float((x - y).norm() / x.norm().clamp_min(1e-300))


def worst_row(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest relative L2 distance of a row (of the last dimension), rows of zeros left out."""
    x, y = (t.double().reshape(-1, t.shape[-1] if t.ndim else 1) for t in (a, b))
    norms = x.norm(dim=-1)
    rows = (x - y).norm(dim=-1)[norms > 0] / norms[norms > 0]
    return float(rows.max()) if rows.numel() else 0.0


def one_minus_cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    x, y = a.double().flatten(), b.double().flatten()
    return float(1 - (x @ y) / (x.norm() * y.norm()).clamp_min(1e-300))


def plain(tensor: torch.Tensor) -> Array:
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return Array(_NAMES[tensor.dtype], tuple(tensor.shape), data)


class Tally:
    """Comparisons of one kind: outcomes, distances, chunks with a fail."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.parts: list[float] = []
        self.l2: list[float] = []
        self.rows: list[float] = []
        self.cosine: list[float] = []
        self.chunks: dict[tuple[str, str, int], bool] = defaultdict(bool)
        self.same = 0

    def add(
        self, judge: Judge | None, call: Call, edge: str, seq: int, index: int, pair: Sequence[torch.Tensor]
    ) -> None:
        a, b = pair
        self.same += torch.equal(a, b)
        self.l2.append(relative_l2(a, b))
        self.rows.append(worst_row(a, b))
        self.cosine.append(one_minus_cosine(a, b))
        if judge is not None:
            outcome, part = judge(edge, index, plain(a), plain(b))
            self.outcomes[outcome] += 1
            self.parts.append(part)
            key = (call["session"], call["task"], (seq - 1) // CHUNK)
            self.chunks[key] = self.chunks[key] or outcome == "fail"

    def document(self) -> dict[str, Any]:
        scientific = {
            name: {k: v if v is None or k == "n" else float(f"{v:.3g}") for k, v in _spread(values).items()}
            for name, values in (
                ("relative_l2", self.l2),
                ("worst_row_relative_l2", self.rows),
                ("one_minus_cosine", self.cosine),
            )
        }
        return {
            "comparisons": len(self.l2),
            "bit_identical": self.same,
            "outcomes": dict(self.outcomes),
            "part_of_fail_threshold": spread(self.parts),
            "chunks": len(self.chunks),
            "chunks_with_a_fail": sum(self.chunks.values()),
            **scientific,
        }


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    ordered = sorted(values)
    if not ordered:
        return {"n": 0, "min": None, "p50": None, "max": None}
    return {"n": len(ordered), "min": ordered[0], "p50": ordered[len(ordered) // 2], "max": ordered[-1]}


def models(folder: Path, *, quick: bool) -> list[Model]:
    """The decoder in both dtypes and the encoder, cut as a market cuts them."""
    tokens = 40 if quick else 128
    params = {"max_tokens": tokens, "temperature": 0.0, "top_p": 1.0, "seed": 0, "stop": []}
    made = []
    for dtype in ("float32", "bfloat16"):
        where = folder / dtype
        where.mkdir()
        registered = split_decoder(DECODER, parse_size(DECODER_TARGET), where, slots=4, dtype=dtype)
        texts = [["prompt", prompt, params] for prompt in PROMPTS[: 2 if quick else None]]
        made.append(Model.of(f"decoder {dtype}", where, registered, texts))
    where = folder / "encoder"
    where.mkdir()
    registered = split_encoder(dag.make(folder / "bert"), parse_size(dag.TARGET), where)
    edge = next(e.name for e in registered.manifest.edges if e.source == "customer")
    texts = [[edge, json.dumps(list(sentences)), {}] for sentences in dag.SENTENCES]
    made.append(Model.of("encoder float32", where, registered, texts))
    return made


def cheats() -> dict[str, Any]:
    """Cheats on outputs, by name: what makes one for a session."""
    if str(FAULTS) not in sys.path:
        sys.path.append(str(FAULTS))
    from nodewire_faults.cheats import Scaled, Skipped, Stale, Wrong

    noise = {f"noise of {part:g}": (lambda part=part: Scaled(part)) for part in NOISE}
    return {"wrong": Wrong, "skipped": Skipped, "stale": Stale, **noise}


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    judges = not options.raw
    settings, weights = (QUICK, QUICK_WEIGHTS) if report.quick else (SETTINGS, OTHER_WEIGHTS)
    fails = total = 0
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="nodewire-honest-") as folder:
        for model in models(Path(folder), quick=report.quick):
            say(f"{model.name}: {len(model.manifest.tasks)} tasks")
            judge = Judge(model) if judges else None
            arm, tally = await _one(model, judge, settings, weights)
            report.arms[model.name] = arm
            total += len(tally.l2)
            fails += tally.outcomes["fail"]
            worst = max([worst, *tally.parts])
    report.line("comparisons", total, ">=", 500 if report.quick else 10_000)
    report.line("false_fails", fails if judges else None, "==", 0)
    report.line("largest_honest_part_of_fail_threshold", worst if judges else None, "<", 1)


async def _one(
    model: Model, judge: Judge | None, settings: Sequence[Setting], weights: Sequence[tuple[str, float]]
) -> tuple[dict[str, Any], Tally]:
    base = read(await model.compute(Setting(), "recorded", record=True))
    honest = Tally()
    arms: dict[str, Any] = {}
    last = base
    for number, setting in enumerate(settings):
        last = read(await model.compute(setting, f"again-{number}"))
        one = Tally()
        for call, edge, seq, index, a, b in pairs(base, last):
            for tally in (one, honest):
                tally.add(judge, call, edge, seq, index, (a, b))
        arms[str(setting)] = one.document()
        say(f"  {setting}: {_told(one)}")
    dishonest = {}
    for kind in weights:
        # The cheater computes as the base does; its verifier is the last of the honest ones.
        theirs = read(await model.compute(Setting(weights=kind), f"{kind[0]}-{kind[1]:g}"))
        dishonest[f"weights with {kind[0]} {kind[1]:g}"] = _cheated(judge, last, theirs, None)
    for name, cheat in cheats().items():
        dishonest[name] = _cheated(judge, last, base, cheat)
    for name, tally in dishonest.items():
        say(f"  {name}: {_told(tally)}")
    detail = {"settings": arms, "cheats": {name: tally.document() for name, tally in dishonest.items()}}
    return {"honest": honest.document(), **detail}, honest


def _cheated(judge: Judge | None, verifier: Any, provider: Any, cheat: Any) -> Tally:
    """A verifier's outputs against a provider's, the latter corrupted by `cheat` where given. Not the driver's."""
    tally = Tally()
    inputs = read_inputs(provider)
    sessions: dict[tuple[str, str], Any] = {}
    for call, edge, seq, index, a, b in pairs(verifier, provider):
        if call["task"] == "driver":
            continue
        theirs = b
        if cheat is not None:
            key = (call["session"], call["task"])
            if key not in sessions:
                sessions[key] = cheat()
            theirs = sessions[key].corrupt(*inputs[call["session"], call["task"], edge, seq]).tensors[index]
        tally.add(judge, call, edge, seq, index, (a, theirs))
    return tally


def read_inputs(recorded: tuple[list[Call], dict[str, torch.Tensor]]) -> dict[tuple[str, str, str, int], Any]:
    """(frame taken, frame given) by session, task, edge and seq; only of what was recorded, replays hold no inputs."""
    calls, tensors = recorded
    return {
        (call["session"], call["task"], head["edge"], head["seq"]): (
            frame_of(call["frame"], tensors),
            frame_of(head, tensors),
        )
        for call in calls
        if call["frame"]
        for head in call["outs"]
    }


def _told(tally: Tally) -> str:
    worst = f"relative L2 {max(tally.l2, default=0):.2e} at most, {min(tally.l2, default=0):.2e} at least"
    return f"{len(tally.l2)} comparisons, {tally.same} bit-identical, {worst}, {dict(tally.outcomes)}"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="only full distances, without the product's verdicts")


if __name__ == "__main__":
    run("honest", __doc__, measure, add=_options)
