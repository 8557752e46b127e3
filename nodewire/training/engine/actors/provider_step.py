"""An outer step that a provider has made, in the customer's worker: read, and compared with what it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadFrame, BadHash, BadInput, BadUpdate
from nodewire.training.engine import state
from nodewire.training.engine.actors.pieces import HEADER_BYTES, IncomingBytes, Tensors
from nodewire.training.engine.update import fragments, outer_step, step_proof

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.aggregate import Results
    from nodewire.training.protocol.recipe import Recipe


class BoughtStep:
    """One training's; one step at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        types = state.types(recipe.shapes())
        rows = outer_step.prefixes(recipe.outer)
        self._types = {
            "theta": types,
            "momenta": {prefix + name: kind for prefix in rows for name, kind in types.items()},
        }
        self._incoming: dict[str, IncomingBytes] = {}
        self._whole: dict[str, bytes] = {}

    def feed(self, frame: Tensors) -> None:
        """Theta or momenta after the step, piece by piece."""
        what = str(frame.meta.get("what"))
        if what not in self._types:
            raise BadFrame("bought", "neither theta nor momenta")
        most = 2 * self._recipe.state_bytes() + HEADER_BYTES
        if (whole := self._incoming.setdefault(what, IncomingBytes(most)).feed(frame)) is not None:
            del self._incoming[what]
            self._whole[what] = whole

    def checked(
        self,
        round_: int,
        before: tuple[State, State],
        results: Results,
        said: Mapping[str, Any],
        loss: Callable[[State], float],
        loss_before: float,
    ) -> tuple[State, State, float]:
        """Theta and momenta after the step, and the held-out loss.

        Computed again are the pieces that `seed` draws; all of them where the loss did not fall, for a few wrong
        numbers can do that, and so can an honest round.

        Raises:
            BadData, TooLarge, BadUpdate: malformed, or not finite.
            BadHash: not what it was committed to.
            BadUpdate: a piece is not what the step makes.

        """
        seed, committed = said.get("seed"), bytes.fromhex(str(said.get("root")))
        if not isinstance(seed, bytes) or "theta" not in self._whole:
            raise BadInput("check", "a seed and theta come first")
        whole, self._whole = self._whole, {}
        rule = self._recipe.outer_of(round_)
        theta = state.unpack(whole["theta"], self._types["theta"], field="theta")
        momenta: State = {}
        if self._types["momenta"]:
            momenta = state.unpack(whole.get("momenta", b""), self._types["momenta"], field="momenta")
        if any(state.pack(what) != whole[name] for name, what in (("theta", theta), ("momenta", momenta)) if what):
            raise BadUpdate("theta", "not packed as states are")  # and so of another hash than its numbers have
        bad = next((name for name, tensor in {**theta, **momenta}.items() if not state.is_finite(tensor)), None)
        if bad is not None:
            raise BadUpdate(bad, "a number is not finite")
        if step_proof.root(rule, theta, momenta) != committed:
            raise BadHash("x", "not the step that was committed to")
        # Of a round that steps a part of the model all else stays as it was.
        fragment = fragments.of_round(self._recipe, round_)
        made, was = (
            (fragment.select(theta), fragment.select(momenta)),
            (fragment.select(before[0]), fragment.select(before[1])),
        )
        for part, whole_before, whole_after in ((made[0], before[0], theta), (made[1], before[1], momenta)):
            if state.digest(fragment.into(part, whole_before)) != state.digest(whole_after):
                raise BadUpdate("theta", "what the round does not step has changed")
        parts = [(weight, fragment.select(delta)) for weight, delta in results]
        pieces = step_proof.count(made[0])
        drawn = step_proof.drawn(seed, committed, pieces, float(self._recipe.audit.outer))
        wrong = step_proof.wrong(rule, was, parts, made, drawn)
        after = loss(theta)
        if wrong is None and not after < loss_before and len(drawn) < pieces:
            wrong = step_proof.wrong(rule, was, parts, made, range(pieces))
        if wrong is not None:
            raise BadUpdate("theta", f"piece {wrong} of {pieces} is not what the step makes")
        return theta, momenta, after
