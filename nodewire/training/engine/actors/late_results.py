"""Results that come after their round's step, in the customer's worker.

They are judged by the weights of their own round, and held until the next step, where they may count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, BadInput
from nodewire.training.engine import state
from nodewire.training.engine.actors.pieces import HEADER_BYTES, IncomingBytes, Tensors, number
from nodewire.training.engine.update import carried_state, compression

if TYPE_CHECKING:
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

Key = tuple[str, int]
"""The request that it answers, and its shard."""
MAX_HELD = 256
"""Results at a time; a customer has at most one late one of every provider."""


@dataclass(slots=True)
class Result:
    round: int
    index: int
    steps: int
    delta: State
    packed: bytes
    is_judged: bool = False


class LateResults:
    """One training's; the weights of one earlier round at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._results: dict[Key, Result] = {}
        self._incoming: dict[Key, IncomingBytes] = {}
        self._theta_in = IncomingBytes(3 * recipe.state_bytes() + HEADER_BYTES)
        self._theta: tuple[int, State] | None = None

    def take_theta(self, frame: Tensors) -> None:
        """The weights that a round began with, piece by piece."""
        if (whole := self._theta_in.feed(frame)) is not None:
            tensors = state.unpack(whole, state.types(self._recipe.shapes()), field="theta")
            self._theta = number(frame, "round"), tensors

    def feed(self, frame: Tensors) -> bool:
        """A packed update, piece by piece; whether it is whole. Raises NodewireError: it is none of this recipe."""
        key = _key(frame)
        try:
            most = compression.most_bytes(self._recipe.shapes(), self._recipe.compression)
            whole = self._incoming.setdefault(key, IncomingBytes(most)).feed(frame)
            if whole is None:
                return False
            if len(self._results) >= MAX_HELD:
                raise BadFrame("late", f"{MAX_HELD} are held")
            delta = carried_state.received(self._recipe, number(frame, "round"), whole)
        except BaseException:
            self._incoming.pop(key, None)
            raise
        del self._incoming[key]
        self._results[key] = Result(number(frame, "round"), key[1], number(frame, "steps"), delta, whole)
        return True

    def to_judge(self, frame: Tensors) -> tuple[State, Result]:
        """A result, and what its round began with; they must have come."""
        result = self._results.get(_key(frame))
        if result is None or self._theta is None or self._theta[0] != result.round:
            raise BadInput("late", "the result and its round's weights come first")
        result.is_judged = True
        return self._theta[1], result

    def drop(self, frame: Tensors) -> None:
        """It was rejected."""
        self._results.pop(_key(frame), None)

    def counted(self, request: str, index: int, round_: int) -> Result:
        """A result that counts in the step of a round. Raises BadInput: it is not here, or not of the round before."""
        result = self._results.get((request, index))
        if result is None or result.round != round_ - 1:
            raise BadInput("counted", f"shard {index} of {request[:8]} is no late result of the round before")
        return result

    def forget(self, round_: int) -> None:
        """After the step of `round_`, what was judged and cannot count any more."""
        self._results = {k: one for k, one in self._results.items() if one.round >= round_ or not one.is_judged}


def _key(frame: Tensors) -> Key:
    return str(frame.meta["request"]), number(frame, "index")
