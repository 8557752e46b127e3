"""Tiny random Llamas as Hugging Face directories, and a ring of actors routed by the manifest's edges."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.tasks.tiny_decoders import byte_tokenizer
from nodewire.kind import Limits
from nodewire.llm.entry import load
from nodewire.llm.local.speculative import spoken
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.tensors.frame import Frame
from nodewire.text.stream import TextStream

PLAIN = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = {
    "grouped, untied, float32": (PLAIN, torch.float32),
    "tied, bfloat16": (PLAIN | {"tie_word_embeddings": True, "num_key_value_heads": 4}, torch.bfloat16),
    "one kv head, own head_dim, llama3 rope, float16": (
        PLAIN | {"num_key_value_heads": 1, "head_dim": 24, "rope_parameters": LLAMA3},
        torch.float16,
    ),
}
ROOMY = Limits(memory_bytes=2**30)


def make_model(folder: Path, shape: dict, dtype: torch.dtype, **save) -> Path:
    """A random Llama over `byte_tokenizer`, whose logits differ enough for greedy decoding to wander."""
    torch.manual_seed(7)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(**shape, vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=0)
    config.initializer_range = 0.2
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder, **save)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Ring:
    """Every task of a registration in this process; frames go where the manifest's edges lead, first in first out."""

    def __init__(self, registration, limits: Limits = ROOMY) -> None:
        self.manifest = registration.manifest
        self.target = {edge.name: edge.target for edge in self.manifest.edges}
        self.actors = {}
        for task in self.manifest.tasks:
            program = registration.blobs[task.program.sha256].read_bytes()
            weights = [registration.blobs[blob.sha256] for blob in task.weights]
            self.actors[task.name] = load(task.engine, program, weights, limits)
        self.tokenizer = Tokenizer(registration.blobs[self.manifest.driver.weights[-1].sha256].read_bytes())

    def open(self, session: str, **params) -> None:
        for actor in self.actors.values():
            actor.open(session, params)

    def close(self, session: str) -> None:
        for actor in self.actors.values():
            actor.close(session)

    def step(self, session: str, frame: Frame) -> list[Frame]:
        return self.actors[self.target[frame.edge]].receive(session, frame)

    def frames(self, session: str, prompt, history=None):
        """The frames that reach the customer, as they come."""
        queue = deque([prompt_frame(prompt, history)])
        while queue:
            frame = queue.popleft()
            if self.target[frame.edge] == CUSTOMER:
                yield frame
            else:
                queue.extend(self.step(session, frame))

    def generate(self, prompt, session: str = "s", history=None, **params):
        """(ids, text, reason) of one session."""
        self.open(session, **params)
        try:
            frames = list(self.frames(session, prompt, history))
        finally:
            self.close(session)
        ids = [int(i) for frame in frames for i in frame.tensors[0]]
        stream = TextStream(self.tokenizer, params.get("stop", ()))
        for token in history or ():
            stream.push(token)
        texts = [spoken(stream, token, frame.meta.get("reason")) for token, frame in zip(ids, frames, strict=True)]
        return ids, "".join(texts), frames[-1].meta["reason"]


def prompt_frame(prompt, history=None) -> Frame:
    if history is not None:
        text = torch.tensor(list(prompt.encode()), dtype=torch.uint8)
        return Frame("prompt", 0, (text, torch.tensor(history, dtype=torch.int64)))
    if isinstance(prompt, str):
        return Frame("prompt", 0, (), {"text": prompt})
    return Frame("prompt", 0, (torch.tensor(prompt, dtype=torch.int64),))


def hidden_frame(n: int, pos: int, width: int = 64, seed: int = 0, edge: str = "hidden.0") -> Frame:
    """Random hidden states [1, n, width] as if the driver had sent them."""
    states = torch.randn(1, n, width, generator=torch.Generator().manual_seed(seed))
    return Frame(edge, 0, (states,), {"pos": pos, "chunk": 0, "tokens": n})
