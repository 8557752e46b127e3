"""What a provider takes from a round into the next one of its shard: its own, but committed to. nips/31.

    drift      with fragments: how far it has gone from theta in what was not sent; its round begins at theta + drift
    residual   with error feedback: what packing lost; what it packs is delta + error_feedback x residual

Both are of the whole model's shapes, and all that decides the next round besides what everybody has. Who takes over a
shard begins with nothing. As bytes it is a safetensors file of `drift.NAME` and `residual.NAME`; nothing is no bytes.
All is float32, number by number, so whoever has the last snapshot gets the same bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nodewire.errors import BadData, BadHash, BadUpdate, Withheld
from nodewire.training.engine import state
from nodewire.training.engine.update import compression, fragments
from nodewire.training.protocol import recipe as recipes

if TYPE_CHECKING:
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

NOTHING = bytes.fromhex(recipes.NOTHING)
"""What is committed to where nothing is carried."""
EMPTY = state.pack({})
"""What is shown for nothing: a file without tensors, for messages have bytes."""
_DRIFT, _RESIDUAL = "drift.", "residual."


@dataclass(frozen=True, slots=True)
class CarriedState:
    """Either is None where the recipe has no such thing."""

    drift: State | None
    residual: State | None

    def pack(self) -> bytes:
        """As bytes; equal ones for equal tensors."""
        return state.pack(self.named())

    def named(self) -> State:
        """The tensors of those bytes."""
        named = {_DRIFT + name: tensor for name, tensor in (self.drift or {}).items()}
        return named | {_RESIDUAL + name: tensor for name, tensor in (self.residual or {}).items()}


def digest(data: bytes) -> bytes:
    """32 bytes: what a provider commits to."""
    return hashlib.sha256(data).digest() if data else NOTHING


def packed(carried: CarriedState | None) -> bytes:
    return b"" if carried is None else carried.pack()


def most_bytes(recipe: Recipe) -> int:
    """The most that it takes, header included."""
    expected = types(recipe)
    rows = len(expected) // max(1, len(recipe.shapes()))
    return 8 + state.most_header_bytes(expected) + 4 * recipe.trained() * rows


def unpack(data: bytes, recipe: Recipe) -> CarriedState | None:
    """What is carried, from bytes.

    Raises:
        TooLarge, BadUpdate: it is not of this recipe, or a number in it is not finite, or above 2^64.

    """
    if not data:
        return None
    try:
        tensors = state.unpack(data, types(recipe), field="carried")
    except BadData as error:
        raise BadUpdate(error.field, error.reason) from error
    return from_tensors(tensors, recipe)


def from_tensors(tensors: State, recipe: Recipe) -> CarriedState:
    """What is carried, of the tensors of its bytes (`types`). Raises BadUpdate: not finite, or above 2^64."""
    for name, tensor in tensors.items():
        if not compression.is_small(tensor):
            raise BadUpdate(f"carried.{name}", "a number that is not finite, or above 2^64")
    names = list(recipe.shapes())
    drift = {name: tensors[_DRIFT + name] for name in names} if recipe.compression.fragments > 1 else None
    feedback = float(recipe.compression.error_feedback) > 0
    return CarriedState(drift, {name: tensors[_RESIDUAL + name] for name in names} if feedback else None)


def shown(data: bytes | None, recipe: Recipe, committed: bytes) -> CarriedState | None:
    """What a provider says that it began a round with, if that is what it had committed to.

    Raises:
        Withheld: nothing is shown.
        BadHash: it is not.
        TooLarge, BadUpdate: it is none of this recipe.

    """
    if data is None:
        raise Withheld("carried", "it is not shown")
    data = b"" if data == EMPTY else data
    if digest(data) != committed:
        raise BadHash("carried", "not what was committed to in the round before")
    return unpack(data, recipe)


def check_residual(carried: CarriedState | None, before: bytes, recipe: Recipe) -> None:
    """That packing `before`, the same provider's update of the round before, can have lost so much.

    Only where every round sends all: of a fragment the update is an older one's.

    Raises:
        BadUpdate: a number of the residual is larger than what its block's form can lose.

    """
    if carried is None or carried.residual is None or recipe.compression.fragments > 1:
        return
    most = compression.most_lost(before, recipe.shapes(), recipe.compression)
    for name, tensor in carried.residual.items():
        if bool((tensor.abs() > most[name]).any()):
            raise BadUpdate(f"carried.residual.{name}", "more than packing can lose")


def start_of_round(theta: State, carried: CarriedState | None) -> State:
    """Where a provider's round begins."""
    if carried is None or carried.drift is None:
        return theta
    return {name: tensor + carried.drift[name] for name, tensor in theta.items()}


def moved(theta: State, end: State) -> State:
    """A round's delta: its end less what everybody has."""
    return {name: end[name] - tensor for name, tensor in theta.items()}


def send(recipe: Recipe, round: int, delta: State, carried: CarriedState | None) -> tuple[bytes, CarriedState | None]:
    """The packed update of a round, and what is carried from it. Raises BadUpdate as `compression.pack`."""
    sent, after = send_as_tensors(recipe, round, delta, carried)
    return state.pack(sent), after


def send_as_tensors(
    recipe: Recipe, round: int, delta: State, carried: CarriedState | None
) -> tuple[State, CarriedState | None]:
    """`send`, but the update as the tensors of its file; they may be those of `delta`."""
    fragment = fragments.of_round(recipe, round)
    sent, residual = compression.coded(fragment.select(delta), recipe.compression, _residual(fragment, carried))
    return sent, _after(recipe, fragment, delta, residual, carried)


def carry_over(
    recipe: Recipe, round: int, delta: State, carried: CarriedState | None, sent: bytes
) -> CarriedState | None:
    """What is carried from a round whose packed update is `sent`. Raises BadUpdate as `compression.unpack`."""
    fragment, residual = fragments.of_round(recipe, round), None
    if float(recipe.compression.error_feedback):
        whole = compression.fed(fragment.select(delta), recipe.compression, _residual(fragment, carried))
        gone = compression.unpack(sent, fragment.shapes(recipe.shapes()), recipe.compression)
        residual = {name: tensor - gone[name] for name, tensor in whole.items()}
    return _after(recipe, fragment, delta, residual, carried)


def received(recipe: Recipe, round: int, sent: bytes) -> State:
    """A round's update from bytes, of the whole model's shapes: zeros where nothing was sent. Raises as `unpack`."""
    fragment = fragments.of_round(recipe, round)
    part = compression.unpack(sent, fragment.shapes(recipe.shapes()), recipe.compression)
    return part if fragment.spans is None else fragment.into(part, fragments.zeros(recipe.shapes()))


def _residual(fragment: fragments.Fragment, carried: CarriedState | None) -> State | None:
    return None if carried is None or carried.residual is None else fragment.select(carried.residual)


def _after(
    recipe: Recipe, fragment: fragments.Fragment, delta: State, residual: State | None, carried: CarriedState | None
) -> CarriedState | None:
    """None where all of it would be zeros."""
    drift = None
    if recipe.compression.fragments > 1:
        still = {name: torch.zeros_like(tensor) for name, tensor in fragment.select(delta).items()}
        drift = fragment.into(still, delta)
    if residual is not None and fragment.spans is not None:
        before = carried.residual if carried is not None else None
        residual = fragment.into(residual, before or fragments.zeros(recipe.shapes()))
    some = [*(drift or {}).values(), *(residual or {}).values()]
    return CarriedState(drift, residual) if any(bool(tensor.any()) for tensor in some) else None


def types(recipe: Recipe) -> state.Types:
    """The tensors that are carried."""
    prefixes = [_DRIFT] if recipe.compression.fragments > 1 else []
    if float(recipe.compression.error_feedback):
        prefixes.append(_RESIDUAL)
    return {
        prefix + name: (torch.float32, tuple(shape)) for prefix in prefixes for name, shape in recipe.shapes().items()
    }
