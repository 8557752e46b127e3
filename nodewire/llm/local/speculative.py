"""A generation in this process that runs ahead by guess: a ring's driver, and one stage that has all layers.

`nodewire generate --local --lookahead` runs this; the plain loop is `reference.py`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import torch

from nodewire.llm.checkpoint.checkpoint import Checkpoint, open_checkpoint
from nodewire.llm.checkpoint.loader import filler
from nodewire.llm.driver import Driver
from nodewire.llm.families import end_tensors, stage_tensors
from nodewire.llm.local.arithmetic import arithmetic_here, positions_here
from nodewire.llm.programs.needs import BLOCK
from nodewire.llm.programs.programs import DriverProgram, StageProgram, TensorType, stored_type
from nodewire.llm.speculation.draft_model import Draft
from nodewire.llm.stage import Stage
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.protocol.tensors.frame import Frame
from nodewire.text.stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from nodewire.weights.tensorfile import StoredTensor

_SESSION = "alone"


class LocalSpeculation:
    """One session at a time.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: see checkpoint.open_checkpoint.
        BadConfig: the draft's folder holds no decoder, or one of other tokens.

    """

    def __init__(
        self,
        directory: Path,
        *,
        draft: Path | None = None,
        dtype: Literal["float32", "bfloat16"] | None = None,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        """`draft`: a model's folder to guess by, beside what the text itself says.

        `dtype`: of the arithmetic, what `arithmetic.arithmetic_here` says, unless given. `threads`: CPU threads of this
        process from now on (torch's own choice unless given).
        """
        if threads is not None:
            torch.set_num_threads(threads)
        checkpoint, where = open_checkpoint(directory), torch.device(device)
        config, count = checkpoint.config, checkpoint.config.num_hidden_layers
        ends, layers = checkpoint.pick(end_tensors(config)), checkpoint.pick(stage_tensors(config, 0, count))
        common = _common(checkpoint, dtype or arithmetic_here(checkpoint, where))
        driver = DriverProgram.from_document(
            common
            | {
                "chunk": BLOCK,
                "edge_prompt": "prompt",
                "edge_return": "return",
                "edge_hidden": "hidden.0",
                "edge_tokens": "tokens",
                "tokenizer": {
                    "sha256": hashlib.sha256(checkpoint.tokenizer).hexdigest(),
                    "bytes": len(checkpoint.tokenizer),
                },
                "tensors": _table(ends),
            }
        )
        stage = StageProgram.from_document(
            common
            | {
                "first": 0,
                "last": count,
                "closes": True,
                "block": BLOCK,
                "edge_in": "hidden.0",
                "edge_out": "return",
                "tensors": _table(layers),
            }
        )
        tokenizer = Tokenizer(checkpoint.tokenizer)
        drafters = Draft(draft, driver, checkpoint.tokenizer).load(tokenizer, where) if draft is not None else None
        self.turns = 0
        """How many frames the layers have computed."""
        self._tokenizer = tokenizer
        self._driver = Driver(driver, filler(ends), tokenizer, where, drafters)
        self._stage = Stage(stage, filler(layers), where)

    def steps(
        self, prompt: str, params: Mapping[str, Any], told: Callable[[str], None] = lambda said: None
    ) -> Iterator[tuple[int, str]]:
        """Each generated id with the text that it makes printable; the last has the rest.

        `params` are a session's (max_tokens, lookahead ...); `told` is given what is said of an id's log-probability,
        if that is asked for.

        Raises:
            BadInput, TooLarge, Unsupported: the prompt or a parameter cannot be used.

        """
        params = {"positions": self._positions(prompt, params), **params}
        self._driver.open(_SESSION, params)
        stream = TextStream(self._tokenizer, params.get("stop", ()))
        try:
            self._stage.open(_SESSION, {"positions": params["positions"]})
            onward = deque[Frame[Any]]()
            outs = self._driver.receive(_SESSION, Frame("prompt", 0, (), {"text": prompt}))
            while True:
                for out in outs:
                    if out.edge != "tokens":
                        onward.append(out)
                        continue
                    if isinstance(said := out.meta.get("logprobs"), str):
                        told(said)
                    token, reason = int(out.tensors[0][0]), out.meta.get("reason")
                    yield token, spoken(stream, token, reason)
                    if out.meta["end"]:
                        return
                self.turns += 1
                (back,) = self._stage.receive(_SESSION, onward.popleft())
                outs = self._driver.receive(_SESSION, back)
        finally:
            self._driver.close(_SESSION)
            self._stage.close(_SESSION)

    def _positions(self, prompt: str, params: Mapping[str, Any]) -> int:
        """What a session takes at most: LongRoPE turns by it."""
        most, tokens = self._stage.program.positions, params.get("max_tokens")
        size = len(self._tokenizer.encode(prompt)) + tokens if type(tokens) is int else most
        return max(1, min(size, most))


def spoken(stream: TextStream, token: int, reason: object) -> str:
    """The text that a driver's `token` makes known; `reason` is why it is the last, or None."""
    text = stream.push(token) if reason != "eos" else ""
    return text if reason is None or stream.stopped else text + stream.flush()


def _common(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "v": 1,
        "config": config.document(),
        "dtype": dtype,
        "slots": 1,
        "positions": positions_here(config),
    }


def _table(stored: Mapping[str, StoredTensor]) -> dict[str, Any]:
    kinds = {name: stored_type(one) for name, one in stored.items()}
    return {name: TensorType.from_document({"dtype": k[0], "shape": k[1]}).document() for name, k in kinds.items()}
