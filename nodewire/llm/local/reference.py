"""The unsplit reference: one process, all layers, one sequence. Layers and sampling are shared with the actors.

`nodewire generate --local` runs this, and the split model is compared with it token by token.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from nodewire.errors import BadFrame, BadInput, BadTask, TooLarge
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.loader import filler
from nodewire.llm.families import end_tensors, stage_tensors
from nodewire.llm.kv.sequence_cache import Lanes
from nodewire.llm.layers import frame_checks
from nodewire.llm.layers.embedding_head import Vocabulary
from nodewire.llm.layers.layers import Arithmetic, Layers
from nodewire.llm.local.arithmetic import arithmetic_here, positions_here
from nodewire.llm.programs.needs import BLOCK
from nodewire.llm.quant import kernel_choice
from nodewire.llm.tokens.grammar import Grammars
from nodewire.llm.tokens.sampler import Sampler
from nodewire.llm.tokens.sampling_params import Sampling, parse_params
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.text.stream import TextStream
from nodewire.weights.tensorfile import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class LocalDecoder:
    """A whole decoder in memory.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: see checkpoint.open_checkpoint.

    """

    def __init__(
        self,
        directory: Path,
        *,
        context: int | None = None,
        dtype: Literal["float32", "bfloat16"] | None = None,
        device: str = "cpu",
        threads: int | None = None,
        alone: bool = False,
    ) -> None:
        """`dtype`: of the arithmetic, what `arithmetic.arithmetic_here` says, unless given.

        `alone`: whether it need not say what a market's stages say to the last bit: then matrices in blocks whose
        inputs are rounded go to ONNX Runtime's kernels, where they are quicker (quant/kernel_choice.py).

        `threads`: CPU threads of this process from now on (torch's own choice unless given). ONNX Runtime has them
        where it may multiply.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        checkpoint = open_checkpoint(directory)
        self.config = config = checkpoint.config
        self.tokenizer = Tokenizer(checkpoint.tokenizer)
        self.positions = positions_here(config, context)
        where, count = torch.device(device), config.num_hidden_layers
        if alone:
            kernel_choice.prepare_alone(config.quantization, where)
        kind = DTYPES[dtype or arithmetic_here(checkpoint, where)]
        fill = filler(checkpoint.pick(chain(end_tensors(config), stage_tensors(config, 0, count))))
        self.vocabulary = Vocabulary(config, kind, where, fill)
        self._layers = Layers(
            config,
            0,
            count,
            positions=self.positions,
            block=BLOCK,
            arithmetic=Arithmetic(dtype=kind, device=where, alone=alone),
            fill=fill,
        )
        self._grammars = Grammars(self.tokenizer, config.vocab_size, config.eos_token_id)
        self._lanes = Lanes(config, count, 1, self.positions, kind, where)
        self._lane = self._lanes.open()
        self._held: list[int] = []
        """The ids whose keys and values stand in the lane."""

    @property
    def kernels(self) -> dict[str, str]:
        """Of each role and shape of a matrix, what multiplies a row with it."""
        assert self.vocabulary.row is not None
        head = self.vocabulary.row
        return {**self._layers.kernels, f"head {list(head.matrix.shape)}": head.name}

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], pos: int = 0) -> Tensor:
        """float32 [vocab] after `ids` at positions pos ..; what stood there is overwritten.

        Raises BadTask: the tokenizer has more tokens than the embedding rows, or numbers run over.
        """
        size = self.config.vocab_size
        if (beyond := next((one for one in ids if not 0 <= one < size), None)) is not None:
            raise BadTask(
                "tokenizer", f"token {beyond} has no row in an embedding of {size}: take all files of one model"
            )
        del self._held[pos:]
        hidden = self.vocabulary.embed(torch.tensor(ids, dtype=torch.int64))
        logits = self.vocabulary.logits(self._layers.forward(hidden, pos, self._lane, only_last=True))
        try:
            frame_checks.check_finite(logits)
        except BadFrame:
            raise BadTask(
                "weights",
                "the numbers that they make are not finite: take the files anew, or compute in --dtype float32",
            ) from None
        self._held += ids
        return logits

    def sampler(self, sampling: Sampling) -> Sampler:
        """Of one generation. Raises BadInput, Unsupported: a bias or a schema that cannot be."""
        schema = sampling.json_schema
        return Sampler(sampling, self.config.vocab_size, self._grammars.grammar(schema) if schema else None)

    def tokens(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        sampler: Sampler | None = None,
        told: Callable[[str], None] = lambda said: None,
        *,
        reuse: bool = False,
    ) -> Iterator[int]:
        """The generated ids, up to and with an end token, `max_tokens`, the end of the context or of a schema's text.

        `sampler`: a fresh one of the same sampling, for who wants to look at it; `told` is given
        `Sampler.format_logprobs` of each id, if log-probabilities are asked for. With `reuse` the beginning that the
        prompt has in common with what was computed last is not computed again (last bits may differ: sums are made in
        other batches).
        """
        if not prompt:
            raise BadInput("prompt", "empty")
        if len(prompt) >= self.positions:
            raise TooLarge("prompt", f"{len(prompt)} tokens, the context is {self.positions}")
        sampler = sampler or self.sampler(sampling)
        sampler.begin(torch.tensor(prompt, dtype=torch.int64))
        self._reach(len(prompt) + sampling.max_tokens)
        start = min(_in_common(self._held, prompt), len(prompt) - 1) if reuse else 0
        feed = prompt[start:]
        for pos in range(len(prompt), min(len(prompt) + sampling.max_tokens, self.positions)):
            logits = self.logits(feed, start)
            token = sampler.choose(logits, pos)
            sampler.accept(token)
            if sampling.logprobs is not None:
                told(sampler.format_logprobs(logits, token, feed[-1], self.tokenizer))
            yield token
            if token in self.config.eos_token_id or sampler.ended:
                return
            feed, start = [token], pos

    def _reach(self, most: int) -> None:
        """Have a lane for a session of so many positions: one that stays within the first context turns otherwise."""
        short = self.config.short_positions(self.positions)
        if (most > short) != (self._lane.positions > short):
            self._lanes.close(self._lane)
            self._lane = self._lanes.open(self.positions if most > short else short)
            self._held.clear()

    def steps(
        self,
        prompt: str,
        sampling: Sampling,
        told: Callable[[str], None] = lambda said: None,
        *,
        reuse: bool = False,
    ) -> Iterator[tuple[int, str]]:
        """Each generated id with the text that it makes printable, last the rest (`told`, `reuse`: see `tokens`)."""
        stream = TextStream(self.tokenizer, sampling.stop)
        ids = self.tokenizer.encode(prompt, special_tokens=sampling.special_tokens)
        sampler = self.sampler(sampling)
        for i, token in enumerate(self.tokens(ids, sampling, sampler, told, reuse=reuse), start=1):
            text = "" if token in self.config.eos_token_id else stream.push(token)
            last = i == sampling.max_tokens or token in self.config.eos_token_id or sampler.ended
            yield token, text + (stream.flush() if last else "")
            if stream.stopped:
                return

    def generate(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The generated text in printable pieces."""
        for _, text in self.steps(prompt, sampling):
            yield text


def _in_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def generate(directory: Path, prompt: str, max_tokens: int, **params: object) -> Iterator[str]:
    """The pieces of text that follow `prompt`; `params` as in a session (temperature, top_p, seed, stop).

    Raises:
        BadInput, TooLarge, NotFound, BadTask: the directory, the prompt or a parameter cannot be used.

    """
    whole = LocalDecoder(directory)
    yield from whole.generate(prompt, parse_params({"max_tokens": max_tokens, **params}, whole.positions))
