"""nodewire's engines in a worker, with one cheat around the actors that they load."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from nodewire.graph import entry as graph
from nodewire.kind import Actor, Limits, Params
from nodewire.llm import entry as llm
from nodewire.llm.layers.attention import Attention
from nodewire.protocol.tensors.frame import Frame
from nodewire_faults import choice
from nodewire_faults.cheats import Cheat
from nodewire_faults.strike import say_choices, say_frame, say_struck

ORDERS = "nodewire_faults"
_LAYER = re.compile(r"\.layers?\.(\d+)\.")
_BRANCH_END = re.compile(r"\.(o_proj|down_proj|output\.dense)\.(weight|bias)")

Load = Callable[[str, bytes, Sequence[Path], Limits], Actor]


def load_with(cheat: Callable[[], Cheat]) -> Load:
    """A worker entry's `load` whose actors corrupt what they put out, with a cheat of its own for each session."""

    def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
        honest = (llm.load if engine.startswith("decoder.") else graph.load)(engine, program, weights, limits)
        return Faulty(honest, cheat)

    return load


class Faulty:
    """An honest Actor (nodewire.kind) whose outputs are corrupted in sessions that say so."""

    def __init__(self, honest: Actor, cheat: Callable[[], Cheat]) -> None:
        self._honest, self._cheat = honest, cheat
        self._sessions: dict[str, tuple[Cheat, int]] = {}
        """The cheat, and from which seq on."""
        self._jobs: set[str] = set()
        """Sessions of jobs; a verifier's have no orders."""

    def open(self, session: str, params: Params) -> None:
        orders: dict[str, Any] = dict(params.get(ORDERS, {"tasks": [], "after": 0, "task": ""}))
        self._honest.open(session, {name: value for name, value in params.items() if name != ORDERS})
        if ORDERS in params:
            self._jobs.add(session)
        if not orders["tasks"] or orders["task"] in orders["tasks"]:
            self._sessions[session] = (self._cheat(), int(orders["after"]))

    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        choice.is_job = session in self._jobs
        outs = self._honest.receive(session, frame)
        say_choices(session, outs)
        if session not in self._sessions:
            return outs
        cheat, after = self._sessions[session]
        return [_struck(session, out, cheat.corrupt(frame, out)) if out.seq >= after else out for out in outs]

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)
        self._jobs.discard(session)
        self._honest.close(session)


def _struck(session: str, honest: Frame[Any], sent: Frame[Any]) -> Frame[Any]:
    """`sent`; the provider's log says if it is not the honest frame."""
    pairs = zip(honest.tensors, sent.tensors, strict=True)
    if any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs):
        say_frame(session, sent)
    return sent


Change = Callable[[str, torch.Tensor], None]
"""What is done in place to a tensor of a name."""


class Exchange:
    """Other weights than the files hold: `change` alters each tensor whole, however an engine reads it."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._name, self._whole = "", torch.empty(0)
        self.altered: set[str] = set()
        """The names of tensors that the change altered."""

    def install(self) -> None:
        """From now on the engines of this process read the other weights."""
        opened, read = llm.open_weights, graph._read

        def open_weights(files: Any, table: Any) -> Any:
            fill = opened(files, table)

            def filled(name: str, target: torch.Tensor, first: int = 0) -> None:
                fill(name, target, first)
                if target.is_floating_point():
                    self._read(fill, name, tuple(table[name].shape), target, first)

            return filled

        def read_all(program: Any, files: Any, device: str) -> dict[str, torch.Tensor]:
            tensors = read(program, files, device)
            for name, tensor in tensors.items():
                self._alter(name, tensor)
            return tensors

        llm.open_weights, graph._read = open_weights, read_all

    def _read(self, fill: Any, name: str, shape: tuple[int, ...], target: torch.Tensor, first: int) -> None:
        """Put the part of the altered tensor into `target` that begins with its element `first`."""
        if self._name != name or self._whole.shape != shape or self._whole.dtype != target.dtype:
            self._name, self._whole = name, torch.empty(shape, dtype=target.dtype)
            fill(name, self._whole)
            self._alter(name, self._whole)
        target.view(-1).copy_(self._whole.view(-1)[first : first + target.numel()])

    def _alter(self, name: str, tensor: torch.Tensor) -> None:
        before = tensor.clone()
        self._change(name, tensor)
        if name not in self.altered and not torch.equal(before, tensor):
            self.altered.add(name)
            say_struck(f"weights {name}")


def exchange_weights(change: Change) -> Exchange:
    """From now on the engines read other weights than the files hold: each tensor is changed in place."""
    exchange = Exchange(change)
    exchange.install()
    return exchange


def noisy(part: float) -> Change:
    """Every matrix with noise of `part` of its spread: a fine-tuned model."""
    random = torch.Generator().manual_seed(3)

    def change(name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and tensor.ndim > 1:
            noise = torch.randn(tensor.shape, generator=random) * tensor.float().std() * part
            tensor.add_(noise.to(tensor.dtype))

    return change


def rounded(bits: int) -> Change:
    """Every matrix's rows rounded to `bits` bits with one scale for a row: a cheaper, quantized model."""

    def change(name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and tensor.ndim > 1:
            exact = tensor.float()
            scale = exact.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
            tensor.copy_(((exact / scale).round() * scale).to(tensor.dtype))

    return change


def in_blocks(bits: int, size: int = 32) -> Change:
    """Every matrix's rows rounded to `bits` bits with one scale for each `size` numbers, as files of 8 bits have it."""

    def change(name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and tensor.ndim > 1 and tensor.shape[-1] % size == 0:
            exact = tensor.float().view(*tensor.shape[:-1], -1, size)
            scale = exact.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
            tensor.copy_(((exact / scale).round() * scale).view(tensor.shape).to(tensor.dtype))

    return change


def eight_bit_floats(_: int) -> Change:
    """Every matrix's rows in float8 (e4m3) with one scale for a row."""

    def change(name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and tensor.ndim > 1:
            exact = tensor.float()
            scale = exact.abs().amax(-1, keepdim=True).clamp_min(1e-12) / torch.finfo(torch.float8_e4m3fn).max
            tensor.copy_(((exact / scale).to(torch.float8_e4m3fn).float() * scale).to(tensor.dtype))

    return change


def cast(dtype: str) -> Change:
    """Every matrix rounded to a narrower dtype, in which a file may have held it anyway."""

    def change(name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and tensor.ndim > 1:
            tensor.copy_(tensor.to(getattr(torch, dtype)).to(tensor.dtype))

    return change


def pruned(part: float) -> Change:
    """Every matrix without the `part` of its numbers that are nearest to zero."""

    def change(name: str, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point() and tensor.ndim > 1:
            sizes = tensor.float().abs()
            tensor[sizes <= sizes.flatten().kthvalue(max(1, int(sizes.numel() * part))).values] = 0

    return change


def shorten_window(positions: int) -> set[str]:
    """From now on decoders that are loaded attend to the last `positions` alone."""
    built = Attention.__init__

    def short(self: Attention, *args: Any, **named: Any) -> None:
        built(self, *args, **named)
        self.how = replace(self.how, window=positions)

    Attention.__init__ = short  # type: ignore[method-assign]
    return {"window"}


def narrow_cache() -> set[str]:
    """From now on keys and values are attended to as if they were kept in 8 bits, one scale for a position and head, by
    prompts and by single tokens."""
    honest, altered = F.scaled_dot_product_attention, set[str]()

    def narrowed(x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        scale = exact.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
        found = ((exact / scale).round() * scale).to(x.dtype)
        if not altered and not torch.equal(found, x):
            altered.add("cache")
            say_struck("keys and values")
        return found

    def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        return honest(q, narrowed(keys), narrowed(values), *rest, **named)

    F.scaled_dot_product_attention = attend
    return altered


def without(layers: Collection[int]) -> Change:
    """These layers add nothing to what comes in: the matrices and biases that their two branches end with are zero."""

    def change(name: str, tensor: torch.Tensor) -> None:
        layer = _LAYER.search(name)
        if layer and int(layer[1]) in layers and _BRANCH_END.search(name):
            tensor.zero_()

    return change
