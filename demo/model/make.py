"""Trains the demo's decoder and its draft model on the sources of Python's standard library.

    python demo/model/make.py --out demo/model/pycoder --minutes 40

Writes an ordinary Hugging Face directory (config.json, model.safetensors in bf16, tokenizer.json) and, below it in
`draft/`, a smaller model over the same vocabulary. Needs `transformers` (extra `register`). Two CPU cores take the
given minutes; loss on held-out files is printed and stored in `training.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, CONTEXT, END = 3072, 512, "<|endoftext|>"
SHAPES = {
    "main": dict(hidden_size=256, intermediate_size=576, num_hidden_layers=6, num_attention_heads=8),
    "draft": dict(hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4),
}


def sources() -> list[str]:
    """The text of every standard-library module, tests left out, in a fixed order."""
    root = Path(os.__file__).parent
    skip = ("site-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "__pycache__")
    paths = sorted(p for p in root.rglob("*.py") if not set(p.relative_to(root).parts) & set(skip))
    return [text for p in paths if (text := p.read_text("utf-8", errors="ignore")).strip()]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    end = tokenizer.token_to_id(END)
    return torch.tensor([i for e in tokenizer.encode_batch(texts) for i in [end, *e.ids]], dtype=torch.int64)


def batches(tokens: torch.Tensor, size: int, seed: int) -> Iterator[torch.Tensor]:
    """Random windows of CONTEXT + 1 tokens, [size, CONTEXT + 1] int64, for ever."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1)
    while True:
        starts = torch.randint(len(tokens) - CONTEXT - 1, (size, 1), generator=generator)
        yield tokens[starts + window]


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokens: torch.Tensor) -> float:
    windows = tokens[: (len(tokens) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)[:32]
    return sum(loss_of(model, w[None]).item() for w in windows) / len(windows)


def train(
    name: str, train_tokens: torch.Tensor, held_out: torch.Tensor, minutes: float
) -> tuple[LlamaForCausalLM, dict]:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[name],
        vocab_size=VOCAB,
        num_key_value_heads=SHAPES[name]["num_attention_heads"] // 2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(hidden, lr=2e-2, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [g["lr"] for o in optimizers for g in o.param_groups]
    started, steps, seen = time.monotonic(), 0, 0
    stream = batches(train_tokens, 12, seed=1)
    while (done := (time.monotonic() - started) / 60 / minutes) < 1:
        scale = min(1.0, (steps + 1) / 50) * max(0.02, min(1.0, (1 - done) / 0.6))
        for group, peak in zip((g for o in optimizers for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * scale
        batch = next(stream)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        steps, seen = steps + 1, seen + batch[:, 1:].numel()
        if steps % 50 == 0:
            speed = seen / (time.monotonic() - started)
            print(
                f"{name}: {done:4.0%} step {steps} loss {loss.item():.3f} {speed:.0f} tok/s",
                file=sys.stderr,
                flush=True,
            )
    final = held_out_loss(model, held_out)
    print(f"{name}: held-out loss {final:.3f} nats/token, perplexity {math.exp(final):.1f}", file=sys.stderr)
    return model, {"steps": steps, "tokens": seen, "held_out_loss": round(final, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=40, help="for the main model; the draft takes a fifth more")
    options = parser.parse_args()
    texts = sources()
    random.Random(0).shuffle(texts)
    tokenizer = train_tokenizer(texts)
    held_out, train_tokens = encode(tokenizer, texts[:16]), encode(tokenizer, texts[16:])
    print(f"{len(texts)} files, {len(train_tokens)} tokens", file=sys.stderr, flush=True)
    report = {"python": sys.version.split()[0], "torch": torch.__version__, "train_tokens": len(train_tokens)}
    for name, folder, minutes in (
        ("main", options.out, options.minutes),
        ("draft", options.out / "draft", options.minutes / 5),
    ):
        model, report[name] = train(name, train_tokens, held_out, minutes)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save(str(options.out / "tokenizer.json"))
        (options.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
