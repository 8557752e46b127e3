"""The engine "outer" of kind 8842, at a provider: a session is one outer step.

theta*, momenta*                      as they were before; momenta may be left out: zeros
update {at, weight}*                  packed; `at` is its place in the request
step                                  -> stepped {root}
after {what: theta | momenta}         -> after*
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, BadInput, Busy, NotFound
from nodewire.protocol.tensors.frame import Frame
from nodewire.training.engine import state
from nodewire.training.engine.actors.pieces import HEADER_BYTES, IncomingBytes, IncomingTensors, Pieces, Tensors, number
from nodewire.training.engine.update import compression, fragments, outer_step, step_proof
from nodewire.training.protocol.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.kind import Limits, Params
    from nodewire.training.engine.state import State

MAX_SESSIONS = 2
"""Steps that are open at a time; a slot has one worker."""
MAX_UPDATES = 128
"""Of one step; a request has fewer."""


class OuterActor:
    """Sessions by id. Theta, momenta and updates are checked against the recipe as they come."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: dict[str, _OuterSession] = {}

    def open(self, session: str, params: Params) -> None:
        if len(self._sessions) >= MAX_SESSIONS:
            raise Busy("sessions", f"{MAX_SESSIONS} are open")
        self._sessions[session] = _OuterSession(Recipe.unpack(params["recipe"]), int(params["round"]))

    def receive(self, session: str, frame: Tensors) -> Sequence[Tensors]:
        if session not in self._sessions:
            raise NotFound("session", "not open")
        return self._sessions[session].receive(frame)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)


class _OuterSession:
    def __init__(self, recipe: Recipe, round_: int) -> None:
        self._recipe = recipe
        self._round = round_
        types, size = state.types(recipe.shapes()), recipe.state_bytes()
        rows = outer_step.prefixes(recipe.outer)
        momenta = {prefix + name: kind for prefix in rows for name, kind in types.items()}
        self._theta_in = IncomingTensors(types, size + HEADER_BYTES, "theta")
        self._momenta_in = IncomingTensors(momenta, len(rows) * size + HEADER_BYTES, "momenta")
        self._fragment = fragments.of_round(recipe, round_)
        self._sent = self._fragment.shapes(recipe.shapes())
        self._update_in = IncomingBytes(compression.most_bytes(self._sent, recipe.compression))
        self._theta: State | None = None
        self._momenta: State | None = None
        self._updates: dict[int, tuple[int, State]] = {}
        """By place, the weight and what was sent: of the round's fragment, where there are several."""
        self._after: dict[str, State] | None = None

    def receive(self, frame: Tensors) -> Sequence[Tensors]:
        match frame.edge:
            case "theta":
                if (theta := self._theta_in.feed(frame)) is not None:
                    self._theta = theta
                return []
            case "momenta":
                if (momenta := self._momenta_in.feed(frame)) is not None:
                    self._momenta = momenta
                return []
            case "update":
                return self._update(frame)
            case "step":
                return [self._step()]
            case "after":
                what = str(frame.meta.get("what"))
                if self._after is None or what not in self._after:
                    raise BadFrame("after", "there is none yet")
                return Pieces("after", state.parts(self._after[what]))
        raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")

    def _update(self, frame: Tensors) -> list[Tensors]:
        at, weight = number(frame, "at"), number(frame, "weight")
        if at not in self._updates and len(self._updates) >= MAX_UPDATES:
            raise BadInput("update", f"more than {MAX_UPDATES}")
        if (whole := self._update_in.feed(frame)) is not None:
            self._updates[at] = weight, compression.unpack(whole, self._sent, self._recipe.compression)
        return []

    def _step(self) -> Tensors:
        if self._theta is None:
            raise BadFrame("step", "theta comes first")
        rule = self._recipe.outer
        momenta = outer_step.start(rule, self._theta) if self._momenta is None else self._momenta
        results = [result for _, result in sorted(self._updates.items(), key=lambda row: row[0])]
        theta, momenta = fragments.step_parts(self._recipe, self._round, self._theta, momenta, results)
        self._updates.clear()
        self._after = {"theta": theta, "momenta": momenta} if momenta else {"theta": theta}
        return Frame("stepped", 0, (), {"root": step_proof.root(rule, theta, momenta).hex()})
