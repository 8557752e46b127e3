"""The engine "outer" of kind 8842, at a provider: a session is one outer step.

theta*, momenta*                      as they were before; momenta may be left out: zeros
update {at, weight}*                  packed; `at` is its place in the request
step                                  -> stepped {root}
after {what: theta | momenta}         -> after*
"""

from __future__ import annotations

from nodewire.errors import BadFrame, BadInput, Busy, NotFound
from nodewire.kind import Limits, Params
from nodewire.protocol.frame import Frame
from nodewire.protocol.recipe import Recipe
from nodewire.train import carried, compress, fragments, outer, state, stepped
from nodewire.train.actors.pieces import HEADER_BYTES, Incoming, Tensors, number, pieces
from nodewire.train.state import State

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

    def receive(self, session: str, frame: Tensors) -> list[Tensors]:
        if session not in self._sessions:
            raise NotFound("session", "not open")
        return self._sessions[session].receive(frame)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)


class _OuterSession:
    def __init__(self, recipe: Recipe, round_: int) -> None:
        self._recipe = recipe
        self._round = round_
        self._types = state.types(recipe.shapes())
        self._incoming: dict[str, Incoming] = {}
        self._theta: State | None = None
        self._momenta: State | None = None
        self._updates: dict[int, tuple[int, State]] = {}
        """Weight and delta by place."""
        self._after: dict[str, State] | None = None

    def receive(self, frame: Tensors) -> list[Tensors]:
        match frame.edge:
            case "theta":
                if (whole := self._whole("theta", self._recipe.state_bytes(), frame)) is not None:
                    self._theta = state.unpack(whole, self._types, field="theta")
                return []
            case "momenta":
                prefixes = outer.prefixes(self._recipe.outer)
                if (whole := self._whole("momenta", len(prefixes) * self._recipe.state_bytes(), frame)) is not None:
                    expected = {prefix + name: kind for prefix in prefixes for name, kind in self._types.items()}
                    self._momenta = state.unpack(whole, expected, field="momenta")
                return []
            case "update":
                return self._update(frame)
            case "step":
                return [self._step()]
            case "after":
                what = str(frame.meta.get("what"))
                if self._after is None or what not in self._after:
                    raise BadFrame("after", "there is none yet")
                return list(pieces("after", state.pack(self._after[what])))
        raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")

    def _whole(self, what: str, most: int, frame: Tensors) -> bytes | None:
        whole = self._incoming.setdefault(what, Incoming(most + HEADER_BYTES)).take(frame)
        if whole is not None:
            del self._incoming[what]
        return whole

    def _update(self, frame: Tensors) -> list[Tensors]:
        at, weight = number(frame, "at"), number(frame, "weight")
        if at not in self._updates and len(self._updates) >= MAX_UPDATES:
            raise BadInput("update", f"more than {MAX_UPDATES}")
        shapes, how = self._recipe.shapes(), self._recipe.compression
        incoming = self._incoming.setdefault("update", Incoming(compress.most_bytes(shapes, how)))
        if (whole := incoming.take(frame)) is not None:
            self._updates[at] = weight, carried.received(self._recipe, self._round, whole)
        return []

    def _step(self) -> Tensors:
        if self._theta is None:
            raise BadFrame("step", "theta comes first")
        rule = self._recipe.outer
        momenta = outer.start(rule, self._theta) if self._momenta is None else self._momenta
        results = [result for _, result in sorted(self._updates.items(), key=lambda row: row[0])]
        theta, momenta = fragments.step(self._recipe, self._round, self._theta, momenta, results)
        self._updates.clear()
        self._after = {"theta": theta, "momenta": momenta} if momenta else {"theta": theta}
        return Frame("stepped", 0, (), {"root": stepped.root(rule, theta, momenta).hex()})
