"""Whether guessing, or company, loses anything, for `bench.decode`: generations on small random models of every
family and on the demo's decoder, beside what transformers' own `generate` says, greedy.

A family's driver and stages are actors in this process, for half of its runs with ends that are lent, and frames wait
for each of them as they do for a task of a job. Whose turn it is comes by chance; a stage takes frames of one session
or several, and answers those that others void without computing them. Generations begin and end at different times;
some are broken off with frames in flight and begun anew. Their drafters are told how often to be wrong, and how wide
the tree is.
"""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from bench.decode.emulation.known_text import Knowing
from bench.tasks.tiny_decoders import FAMILIES, make_family
from nodewire.errors import NodewireError
from nodewire.kind import Actor, Limits
from nodewire.llm import entry
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.driver import Driver
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.programs.programs import DriverProgram
from nodewire.llm.stage import Stage
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.speculation.frame_meta import Fences
from nodewire.protocol.tensors.frame import Frame
from processes.market import DECODER
from processes.progress import say

RUNS, QUICK_RUNS = 1_000, 30
PROMPTS = 10
"""Of a family; its runs share them."""
STAGES = 3
AT_ONCE = 4
LOOKAHEADS = (1, 2, 5, 16, 64)
RIGHT = (0.0, 0.3, 0.7, 0.9, 1.0)
WIDTHS = (1, 2, 4)
BROKEN_OFF = 0.2
"""Of the runs."""
NEAR = 1e-5
"""Two likeliest tokens of the reference that are as close as this may change places."""
DEMO = "the demo's decoder"
BEYOND: Mapping[str, Mapping[str, Any]] = {"phi3, longrope, long": {"original_max_position_embeddings": 2}}
"""Every text is longer than the first context. One that grows beyond it is turned otherwise from its beginning, which
transformers' `generate` does only from there on."""
DEMO_TEXTS = ("def main(", "import os\n", "class Reader:\n    def ", "for name in sorted(", "try:\n    return ")
SAMPLES, QUICK_SAMPLES = 400, 20
SAMPLED = {"temperature": 1.0, "top_p": 0.95}
SAMPLED_TOKENS = 4


@dataclass(frozen=True)
class Reference:
    """What transformers generates after a prompt, and how far its second choice was behind at each token."""

    prompt: list[int]
    ids: list[int]
    gaps: list[float]


@dataclass
class _Run:
    """A generation that is to be made; `params` are its session's."""

    reference: Reference
    params: dict[str, Any]
    right: float
    width: int
    breaks_after: int | None
    """Broken off, and begun anew, after so many tokens."""


class _Session:
    def __init__(self, run: _Run) -> None:
        self.run = run
        self.ids: list[int] = []
        self.is_over = False


class Ring:
    """The tasks of a model, and the frames that wait for each of them."""

    def __init__(self, manifest: Manifest, blobs: Any, chance: Random) -> None:
        self._chance = chance
        self._target = {edge.name: edge.target for edge in manifest.edges}
        self._edge_in = {edge.target: edge.name for edge in manifest.edges if edge.target.startswith("stage")}
        self._edge_out = {edge.source: edge.name for edge in manifest.edges if edge.source.startswith("stage")}
        self._actors: dict[str, Actor] = {}
        self._waiting: dict[tuple[str, str], deque[Frame[Any]]] = {}
        """By task and session."""
        self._fences: dict[tuple[str, str], Fences] = {}
        self._opens: _Run | None = None
        self.counts: Counter[str] = Counter()
        for task in manifest.tasks:
            program = blobs[task.program.sha256].read_bytes()
            weights = [blobs[blob.sha256] for blob in task.weights]
            if task.engine == "decoder.driver":
                self._vocabulary = DriverProgram.unpack(program).config.vocab_size
                self._actors[task.name] = self._driver(DriverProgram.unpack(program), weights)
            else:
                self._actors[task.name] = entry.load(task.engine, program, weights, Limits(2**30))

    def _driver(self, program: DriverProgram, weights: Sequence[Path]) -> Driver:
        *ends, text = weights
        fill = open_weights(ends, program.tensors)
        tokenizer = Tokenizer(text.read_bytes())
        return Driver(program, fill, tokenizer, torch.device("cpu"), lambda sampler: [self._drafter()])

    def _drafter(self) -> Knowing:
        assert self._opens is not None
        run, chance = self._opens, self._chance
        text = [*run.reference.prompt, *run.reference.ids]
        right, width = run.right, run.width
        return Knowing(
            text, lambda at: chance.random() < right, self._vocabulary, width, lambda at: chance.randrange(width)
        )

    def run(self, runs: Sequence[_Run]) -> list[list[int]]:
        """The tokens of each, some of them at a time."""
        left, sessions, made = deque(enumerate(runs)), dict[str, _Session](), dict[int, list[int]]()
        while left or sessions:
            if left and len(sessions) < AT_ONCE and (not sessions or self._chance.random() < 0.1):
                number, run = left.popleft()
                self._open(str(number), _Session(run), sessions)
            self._step(sessions)
            for name, session in list(sessions.items()):
                breaks = session.run.breaks_after
                if session.is_over:
                    made[int(name)] = session.ids
                    self._close(name, sessions)
                elif breaks is not None and len(session.ids) >= breaks:
                    session.run.breaks_after = None
                    self._close(name, sessions)
                    self._open(name, _Session(session.run), sessions)
                    self.counts["broken off"] += 1
        return [made[number] for number in range(len(runs))]

    def _open(self, name: str, session: _Session, sessions: dict[str, _Session]) -> None:
        self._opens = session.run
        self.counts["joined others"] += bool(sessions)
        for task, one in self._actors.items():
            params = session.run.params
            one.open(name, params if task == "driver" else {})
            self._waiting[task, name] = deque()
            self._fences[task, name] = Fences()
        prompt = torch.tensor(session.run.reference.prompt, dtype=torch.int64)
        self._put(name, Frame("prompt", 0, (prompt,), {"chunk": 0}))
        sessions[name] = session

    def _close(self, name: str, sessions: dict[str, _Session]) -> None:
        del sessions[name]
        for task, one in self._actors.items():
            one.close(name)
            del self._waiting[task, name], self._fences[task, name]

    def _put(self, name: str, frame: Frame[Any]) -> None:
        task = self._target[frame.edge]
        self._waiting[task, name].append(frame)
        self._fences[task, name].note(frame)

    def _step(self, sessions: dict[str, _Session]) -> None:
        """One task computes something."""
        task = self._chance.choice([task for (task, _), frames in self._waiting.items() if frames])
        ready = [name for (of, name), frames in self._waiting.items() if of == task and frames]
        names = self._chance.sample(ready, self._chance.randint(1, len(ready)))
        one = self._actors[task]
        if not isinstance(one, Stage):
            for frame in one.receive(names[0], self._waiting[task, names[0]].popleft()):
                self._told(names[0], frame, sessions)
            return
        calls = [(name, self._given(task, name)) for name in names]
        self.counts["together"] += len(calls) > 1
        for (name, _), answer in zip(calls, one.receive_together([(n, (f,)) for n, f in calls]), strict=True):
            if isinstance(answer, NodewireError):
                raise answer
            for frame in answer:
                self._put(name, frame)

    def _given(self, task: str, name: str) -> Frame[Any]:
        """The next frame of a session; without its rows if others behind it void them."""
        frame = self._waiting[task, name].popleft()
        if not self._fences[task, name].void(frame) or frame.meta.get("keep") is not None:
            self.counts["branches"] += "parents" in frame.meta
            return frame
        self.counts["void"] += 1
        (x,) = frame.tensors
        meta = {key: frame.meta[key] for key in ("pos", "chunk", "epoch") if key in frame.meta}
        return Frame(frame.edge, frame.seq, (x[:, :0],), {**meta, "tokens": 0})

    def _told(self, name: str, frame: Frame[Any], sessions: dict[str, _Session]) -> None:
        if self._target[frame.edge] != CUSTOMER:
            self._put(name, frame)
            return
        sessions[name].ids.append(int(frame.tensors[0][0]))
        sessions[name].is_over = bool(frame.meta["end"])


def measured(*, quick: bool, seed: int) -> dict[str, Any]:
    """By family, generations and how many differ; what all of them met; and sampled ones, with guesses and without."""
    logging.disable_progress_bar()
    chance = Random(seed)
    names = [*FAMILIES, DEMO]
    runs = QUICK_RUNS if quick else RUNS
    found: dict[str, Any] = {"families": {}, "met": Counter()}
    for number, name in enumerate(names):
        count = runs // len(names) + (number < runs % len(names))
        with tempfile.TemporaryDirectory(prefix="nodewire-lossless-") as folder:
            directory = DECODER if name == DEMO else make_family(Path(folder) / "model", name, **BEYOND.get(name, {}))
            references, difference = _references(directory, name, min(PROMPTS, count), chance)
            rings = [_ring(directory, Path(folder) / "tasks", chance, lend=lend) for lend in (False, True)]
            wanted = [_wanted(references[k % len(references)], chance) for k in range(count)]
            half = count - count // 2 if count > 3 else count * (number % 2)
            made = [*rings[0].run(wanted[:half]), *rings[1].run(wanted[half:])]
            found["families"][name] = {
                "runs": count,
                "tokens": sum(map(len, made)),
                **_differences(wanted, made),
                "logits_max_difference": difference,
            }
            found["met"] += rings[0].counts + rings[1].counts + Counter({"with lent ends": count - half})
            if name == next(iter(FAMILIES)):
                found["sampled"] = _sampled(rings[0], references[0], QUICK_SAMPLES if quick else SAMPLES)
        say(f"{name}: {found['families'][name]}")
    found["met"] = dict(found["met"])
    return found


def _ring(directory: Path, out: Path, chance: Random, *, lend: bool) -> Ring:
    """A model in a few stages, with a slot more than there are sessions."""
    low, high = 1, 2**30
    while high - low > 1_024:
        middle = (low + high) // 2
        try:
            many = (
                len(
                    split_decoder(
                        directory, middle, out, slots=AT_ONCE, options=DecoderOptions(dtype="float32", lend=lend)
                    ).manifest.tasks
                )
                - 1
                > STAGES
            )
        except NodewireError:
            many = True
        low, high = (middle, high) if many else (low, middle)
    made = split_decoder(directory, high, out, slots=AT_ONCE, options=DecoderOptions(dtype="float32", lend=lend))
    return Ring(made.manifest, made.blobs, chance)


@torch.inference_mode()
def _references(directory: Path, name: str, count: int, chance: Random) -> tuple[list[Reference], float]:
    """What transformers says of some prompts; and how far our logits after them are from its."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    whole = LocalDecoder(directory, dtype="float32")
    references, difference = [], 0.0
    for number in range(count):
        if name == DEMO:
            prompt = whole.tokenizer.encode(DEMO_TEXTS[number % len(DEMO_TEXTS)] * (1 + number // len(DEMO_TEXTS)))
        else:
            prompt = [chance.randrange(1, whole.config.vocab_size) for _ in range(chance.randint(3, 60))]
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=chance.randint(8, 40),
            output_logits=True,
            return_dict_in_generate=True,
        )
        tops = torch.cat(made.logits).float().topk(2, -1).values
        references.append(
            Reference(prompt, made.sequences[0, len(prompt) :].tolist(), (tops[:, 0] - tops[:, 1]).tolist())
        )
        text = [*prompt, *references[-1].ids[:-1]]
        theirs = model(torch.tensor([text])).logits[0, -1].float()
        difference = max(difference, float((whole.logits(text) - theirs).abs().max()))
    return references, difference


def _wanted(reference: Reference, chance: Random) -> _Run:
    tokens = len(reference.ids)
    params = {"max_tokens": tokens, "lookahead": chance.choice(LOOKAHEADS)}
    breaks = chance.randrange(tokens) if chance.random() < BROKEN_OFF and tokens > 1 else None
    return _Run(reference, params, chance.choice(RIGHT), chance.choice(WIDTHS), breaks)


def _differences(wanted: Sequence[_Run], made: Sequence[list[int]]) -> dict[str, Any]:
    differ, near = 0, 0
    for run, ids in zip(wanted, made, strict=True):
        of = run.reference
        if ids == of.ids:
            continue
        first = next((k for k, (one, other) in enumerate(zip(ids, of.ids, strict=False)) if one != other), None)
        if first is not None and of.gaps[first] < NEAR:
            near += 1
        else:
            differ += 1
            say(f"other tokens: {run.params}, right {run.right}, width {run.width}: {ids} instead of {of.ids}")
    return {"differ": differ, "differ_where_two_are_as_likely": near}


def _sampled(ring: Ring, reference: Reference, samples: int) -> dict[str, Any]:
    """Generations by seeds, plain and with guesses; the distributions' total variation, and that of other seeds."""

    def made(lookahead: int, first: int) -> list[tuple[int, ...]]:
        params = {**SAMPLED, "max_tokens": SAMPLED_TOKENS, "lookahead": lookahead}
        runs = [_Run(reference, {**params, "seed": first + k}, 0.7, 4, None) for k in range(samples)]
        return [tuple(ids) for ids in ring.run(runs)]

    plain, other, guessed = made(1, 0), made(1, samples), made(16, 0)
    return {
        "generations": samples,
        "differ": sum(one != two for one, two in zip(plain, guessed, strict=True)),
        "total_variation": _variation(guessed, other),
        "noise_floor": _variation(plain, other),
    }


def _variation(some: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]]) -> float:
    """Between the distributions of the last token."""
    one, two = (Counter(ids[-1] for ids in of) for of in (some, others))
    return round(sum(abs(one[t] / len(some) - two[t] / len(others)) for t in one | two) / 2, 4)
