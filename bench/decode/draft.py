"""What a draft model is worth beside a text's own guesses: python -m bench.decode.draft [--json] [--quick]

The demo's decoder guessed for by the demo's draft model, over a ring whose frames take an emulated time: 158 ms
around, 3 ms at the slowest stage, 6.4 % more for each further row (the Shard ring of bench.decode). Tokens,
guesses and the time that drafting takes are real, on one core; the clock that the driver sees is the emulation's plus
its own CPU time. Prompts are pieces of this repository's files, which the models were not trained on. All arms say the
same.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.report import Report, run
from nodewire.kind import Actor, Limits
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.driver import Driver, MakeDrafters
from nodewire.llm.entry import load
from nodewire.llm.programs.programs import DriverProgram
from nodewire.llm.speculation.draft_model import Draft
from nodewire.llm.speculation.ngram_proposer import NgramDrafter
from nodewire.llm.tokens.sampler import Sampler
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.protocol.tensors.frame import Frame
from processes.progress import say

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demo" / "model" / "pycoder"
FILES = ("nodewire/errors.py", "nodewire/kind.py", "relay/__init__.py", "nodewire/llm/driver.py", "bench/report.py")
PROMPT_CHARS, LOOKAHEAD = 400, 32
TURN_NS, STAGE_NS, ROW = 158e6, 3e6, 0.064
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 1}


class Ring:
    """A driver and all layers in this process, under a clock of their own."""

    def __init__(self, folder: Path) -> None:
        found = split_decoder(MODEL, 200_000_000, folder, slots=1, options=DecoderOptions(dtype="float32"))
        driver, *stages = found.manifest.tasks
        room = Limits(memory_bytes=2**31)
        path = found.blobs[driver.program.sha256]
        self.program = DriverProgram.unpack(path.read_bytes())
        self._files = [found.blobs[blob.sha256] for blob in driver.weights]
        self.tokenizer = Tokenizer(self._files[-1].read_bytes())
        self._stages: list[Actor] = [
            load(t.engine, found.blobs[t.program.sha256].read_bytes(), [found.blobs[w.sha256] for w in t.weights], room)
            for t in stages
        ]
        self.now_ns = self._began_ns = 0.0
        self._computing = False

    def draft(self) -> MakeDrafters:
        return Draft(MODEL / "draft", self.program, self._files[-1].read_bytes()).load(
            self.tokenizer, torch.device("cpu")
        )

    def _clock_ns(self) -> int:
        return int(self.now_ns + (time.thread_time_ns() - self._began_ns if self._computing else 0))

    def generate(self, prompt: str, make: MakeDrafters, **params: Any) -> tuple[list[int], float]:
        """The ids, and the seconds from the first to the last of them."""
        fill = open_weights(self._files[:-1], self.program.tensors)
        driver = Driver(self.program, fill, self.tokenizer, torch.device("cpu"), make, self._clock_ns)
        for actor in (driver, *self._stages):
            actor.open("s", params)
        ids, times, under_way, free_ns = [], [], list[tuple[float, int, Frame[Any]]](), 0.0
        self.now_ns = 0.0
        coming: Frame[Any] = Frame(self.program.edge_prompt, 0, (), {"text": prompt})
        while True:
            self._computing, self._began_ns = True, time.thread_time_ns()
            outs = driver.receive("s", coming)
            self.now_ns, self._computing = float(self._clock_ns()), False
            for out in outs:
                if out.edge == self.program.edge_tokens:
                    ids.append(int(out.tensors[0]))
                    times.append(self.now_ns)
                    if out.meta["end"]:
                        for actor in self._stages:
                            actor.close("s")
                        return ids, (times[-1] - times[0]) / 1e9
                    continue
                took_ns = STAGE_NS * (1 + ROW * (out.tensors[0].shape[1] - 1))
                free_ns = max(free_ns, self.now_ns) + took_ns
                heapq.heappush(under_way, (free_ns + TURN_NS - STAGE_NS, out.seq, self._around(out)))
            at_ns, _, coming = heapq.heappop(under_way)
            self.now_ns = max(self.now_ns, at_ns)

    def _around(self, frame: Frame[Any]) -> Frame[Any]:
        for stage in self._stages:
            (frame,) = stage.receive("s", frame)
        return frame


def agreement(ring: Ring, make: MakeDrafters, prompt: Sequence[int], ids: Sequence[int], params: Any) -> list[float]:
    """Of each drafter, the share of tokens that are what it says first."""
    sampler = Sampler(parse_params(params, ring.program.positions), ring.program.config.vocab_size)
    sampler.begin(torch.tensor(prompt))
    drafters = make(sampler)
    right = [0] * len(drafters)
    for drafter in drafters:
        for token in prompt:
            drafter.accept(token)
    for token in ids:
        for number, drafter in enumerate(drafters):
            said = drafter.candidates(drafter.root())
            right[number] += bool(said) and said[0].token == token
            drafter.accept(token)
        sampler.accept(token)
    return [count / len(ids) for count in right]


def prompts(quick: bool) -> Iterator[str]:
    for name in FILES[: 2 if quick else None]:
        text = (ROOT / name).read_text()
        yield text[len(text) // 3 :][:PROMPT_CHARS]


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    tokens = 64 if report.quick else 128
    with TemporaryDirectory() as folder:
        ring = Ring(Path(folder))
        arms: dict[str, tuple[MakeDrafters, int]] = {
            "plain": (lambda sampler: (), 1),
            "text": (lambda sampler: [NgramDrafter()], LOOKAHEAD),
            "text and draft": (ring.draft(), LOOKAHEAD),
        }
        same = True
        for how, params in (("greedy", {}), ("sampled", SAMPLED)):
            seconds, made, agreed = dict.fromkeys(arms, 0.0), 0, [0.0, 0.0]
            for prompt in prompts(report.quick):
                asked = {**params, "max_tokens": tokens}
                found = {}
                for name, (make, lookahead) in arms.items():
                    found[name], took_s = ring.generate(prompt, make, **asked, lookahead=lookahead)
                    seconds[name] += took_s
                same = same and len({tuple(ids) for ids in found.values()}) == 1
                ids = found["plain"]
                made += len(ids) - 1
                shares = agreement(ring, arms["text and draft"][0], ring.tokenizer.encode(prompt), ids, asked)
                agreed = [before + share * (len(ids) - 1) for before, share in zip(agreed, shares, strict=True)]
                say(f"{how}: {len(ids)} tokens")
            rates = {name: made / seconds[name] for name in arms}
            report.arms[how] = {
                "tokens": made,
                "tokens_per_s": {name: round(rate, 2) for name, rate in rates.items()},
                "first_guess_is_right": {"text": round(agreed[0] / made, 3), "draft": round(agreed[1] / made, 3)},
            }
            gain = rates["text and draft"] / rates["text"]
            report.line(f"{how}: with the draft model, of the text's own guesses", gain, ">=", 1.0)
        report.line("tokens are the same in all arms", float(same), "==", 1)


if __name__ == "__main__":
    run("draft", __doc__, measure)
