"""A draft model beside a driver: a small whole decoder from a folder that the operator names, and a few lanes of it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nodewire.errors import BadConfig, NodewireError
from nodewire.llm.checkpoint.checkpoint import Checkpoint, open_checkpoint
from nodewire.llm.checkpoint.loader import filler
from nodewire.llm.cuda_graphs.runner import Graphing, Graphs, StepEnds
from nodewire.llm.families import end_tensors, stage_tensors
from nodewire.llm.kv import static_buffers
from nodewire.llm.kv.sequence_cache import Lane, Lanes
from nodewire.llm.layers.embedding_head import Vocabulary
from nodewire.llm.layers.layers import Arithmetic, Layers
from nodewire.llm.programs import memory_estimate as footprint
from nodewire.llm.programs.memory_estimate import Footprint
from nodewire.llm.speculation.draft_proposer import SmallModel, SmallModelDrafter
from nodewire.llm.speculation.ngram_proposer import NgramDrafter
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.weights.derived_tensors import READING_BYTES
from nodewire.weights.tensorfile import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nodewire.llm.programs.programs import DriverProgram
    from nodewire.llm.speculation.proposer import Drafter
    from nodewire.llm.tokens.sampler import Sampler

BLOCK = 64
"""Positions of a text that are computed at once."""
MAX_LANES = 4
"""Sessions that keep what the draft model has computed of them; where there are more they take turns."""
_FIELD = "worker.draft"


class Draft:
    """What a folder holds, looked at and not loaded yet.

    Raises:
        BadConfig: the folder holds no decoder that can be read, or one of other tokens than the driver's.

    """

    def __init__(self, folder: Path, program: DriverProgram, tokenizer: bytes) -> None:
        try:
            self._checkpoint = open_checkpoint(folder)
        except (NodewireError, OSError) as error:
            raise BadConfig(_FIELD, f"{folder}: {error}"[:300]) from error
        config = self._checkpoint.config
        if config.vocab_size != program.config.vocab_size:
            said = f"a vocabulary of {config.vocab_size}, the model's is {program.config.vocab_size}"
            raise BadConfig(_FIELD, f"{folder}: {said}")
        self._compares = self._checkpoint.tokenizer != tokenizer
        self._folder, self._program = folder, program
        self._positions = min(program.positions, config.max_position_embeddings)
        self._lanes = min(program.slots, MAX_LANES)

    @property
    def footprint(self) -> Footprint:
        """What it will take beside the driver, which computes nothing meanwhile, but keeps what it has."""
        config, dtype = self._checkpoint.config, self._program.dtype
        count, positions = config.num_hidden_layers, self._positions
        layers = footprint.stage(config, 0, count, footprint.LaneSpec(self._lanes, positions, BLOCK, dtype))
        text = len(self._checkpoint.tokenizer) if self._compares else 0
        ends = footprint.driver(config, positions=positions, dtype=dtype, tokenizer_bytes=text)
        work = layers.work + ends.work + (READING_BYTES if self._checkpoint.is_drawn else 0)
        return Footprint(layers.weights + ends.weights, layers.caches, work, ends.tokenizer)

    def load(self, tokenizer: Tokenizer, device: torch.device, graphing: Graphing | None = None) -> Drafters:
        """The drafters of a session: what its text says, and this model, whose steps `graphing` captures, if given.

        Raises BadConfig: as above.
        """
        if self._compares and Tokenizer(self._checkpoint.tokenizer).vocabulary() != tokenizer.vocabulary():
            raise BadConfig(_FIELD, f"{self._folder}: its tokenizer has other tokens than the model's")
        model = SmallModel(*_loaded(self._checkpoint, self._program, self._positions, self._lanes, device, graphing))
        size = self._program.config.vocab_size
        return Drafters(model, size)


class Drafters:
    """Makes those of one session: what its text says, and a small model that all sessions share."""

    def __init__(self, model: SmallModel, vocab_size: int) -> None:
        self._model, self._vocab_size = model, vocab_size

    def __call__(self, sampler: Sampler) -> Sequence[Drafter[Any]]:
        return [NgramDrafter(), SmallModelDrafter(self._model, sampler, self._vocab_size)]


class _Decoder:
    """The whole model, with one lane of its own (small_model.Decoder)."""

    def __init__(self, vocabulary: Vocabulary, layers: Layers, lane: Lane, graphs: Graphs | None) -> None:
        self.positions = lane.positions
        self._graphs = graphs
        self._vocabulary, self._layers, self._lane = vocabulary, layers, lane

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], pos: int = 0) -> Tensor:
        """float32 [vocab] after `ids` at positions pos ..; what stood there is overwritten."""
        tokens = torch.tensor(ids, dtype=torch.int64)
        if self._graphs is not None:
            made = self._graphs.run(tokens, [static_buffers.chain(self._lane, pos, len(ids))])
            if made is not None:
                return made
        hidden = self._vocabulary.embed(tokens)
        return self._vocabulary.logits(self._layers.forward(hidden, pos, self._lane, only_last=True))


def _loaded(
    checkpoint: Checkpoint,
    program: DriverProgram,
    positions: int,
    lanes: int,
    device: torch.device,
    graphing: Graphing | None,
) -> list[_Decoder]:
    config, dtype = checkpoint.config, DTYPES[program.dtype]
    count = config.num_hidden_layers
    fill = filler(checkpoint.pick(chain(end_tensors(config), stage_tensors(config, 0, count))))
    vocabulary = Vocabulary(config, dtype, device, fill)
    layers = Layers(
        config, 0, count, positions=positions, block=BLOCK, arithmetic=Arithmetic(dtype=dtype, device=device), fill=fill
    )
    pool = Lanes(config, count, lanes, positions, dtype, device, beyond=graphing is not None)
    graphs = graphing(layers, pool, _around(vocabulary, device)) if graphing is not None else None
    return [_Decoder(vocabulary, layers, pool.open(), graphs) for _ in range(lanes)]


def _around(vocabulary: Vocabulary, device: torch.device) -> StepEnds:
    """Ids in, the last row's logits out."""
    return StepEnds(
        inputs=lambda rows: torch.zeros(rows, dtype=torch.int64, device=device),
        enter=lambda ids: vocabulary.embed(ids)[0],
        leave=lambda y: vocabulary.logits(y[None, -1:]),
        rowwise=False,
    )
