"""The "auditor" of kinds 8840 and 8841: a training computed again from its transcript, round by round.

Its `program` is the recipe; its weights files are the folder with the data that was trained on, and what the recipe's
model starts from, as far as they are at hand.

    begin*                       theta before the first round -> begun {initial}: whether the recipe begins with it
    own {index}                  -> owned {sha256}: of a shard of the data in the folder, which is used from now on
    shard {index}*               a shard from elsewhere; one is kept
    update {index, round, steps, weight}*   -> updated {fine, reason}: a result that the round counts
    shown {at, segment}*, segments {at, states, drawn, begun, carried}   -> audited {segment, reason}: of update number
                                 `at`, the first segment that is other work, or -1; what is drawn from what was shown,
                                 or the whole. Digests are of what was carried into the round (shown, too) and from it
    step                         -> stepped {sha256, loss}: theta after the round; a loss of -1 is unknown
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, BadInput, NodewireError
from nodewire.protocol.tensors.frame import Frame
from nodewire.training.engine import data, sample_files, segments, state, validation
from nodewire.training.engine.actors.pieces import HEADER_BYTES, IncomingBytes, Tensors, digest, micro, number
from nodewire.training.engine.data import Shard
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.models import initial_weights
from nodewire.training.engine.sums import distance, norm
from nodewire.training.engine.update import carried_state, compression, fragments, outer_step
from nodewire.training.engine.update.carried_state import NOTHING, CarriedState
from nodewire.training.protocol.initial_weights import find_weights as cited

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nodewire.kind import Params
    from nodewire.training.engine.families.weights import Batch
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe


class AuditorActor:
    """One training; `session` is ignored, for there is one. Theta of two rounds and one round's updates are kept."""

    def __init__(self, recipe: Recipe, files: Sequence[Path]) -> None:
        self._recipe = recipe
        self._files = tuple(files)
        self._initial: State | None = None
        self._trainer: Trainer
        self._theta: State = {}
        self._before: State = {}
        """What the round before began with: late results were trained from it."""
        self._momenta: State = {}
        self._round = 0
        self._mine: list[Shard] = []
        self._shard: tuple[int, Shard] | None = None
        self._measured: Batch | None = None
        self._updates: list[_Update] = []
        self._shown: dict[tuple[int, int], bytes] = {}
        self._incoming: dict[str, IncomingBytes] = {}

    def open(self, session: str, params: Params) -> None:
        """`shards`; whether the files are those of the `data`, then what the recipe's model has its `start` from."""
        recipe, files = self._recipe, iter(self._files)
        folder = next(files) if params["data"] else None
        start_at = next(files) if params["start"] else None
        begun = initial_weights.read(recipe, start_at) if start_at is not None else initial_weights.Start()
        self._trainer = Trainer(recipe, begun.tensors if recipe.adapter is not None else None)
        if begun.tensors is not None or cited(recipe) is None:
            self._initial = initial(recipe, begun.tensors)
        if folder is not None:
            dataset = sample_files.read(recipe, folder, begun.tokenizer)
            self._mine, held_out = data.split(dataset, int(params["shards"]), recipe)
            self._measured = data.samples(held_out, self._recipe, self._recipe.measured())

    def receive(self, session: str, frame: Tensors) -> list[Tensors]:
        match frame.edge:
            case "own":
                index = number(frame, "index")
                self._shard = index, self._mine[index]
                return [Frame("owned", 0, (), {"sha256": self._mine[index].digest})]
            case "segments":
                return [self._segments(frame)]
            case "step":
                return [self._step()]
        most = {
            "begin": self._recipe.state_bytes() + HEADER_BYTES,
            "shard": data.MAX_SHARD_BYTES,
            "update": compression.most_bytes(self._recipe.shapes(), self._recipe.compression),
            "shown": 3 * self._recipe.state_bytes() + HEADER_BYTES,
        }.get(frame.edge)
        if most is None:
            raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")
        whole = self._incoming.setdefault(frame.edge, IncomingBytes(most)).feed(frame)
        return [] if whole is None else self._took(frame, whole)

    def close(self, session: str) -> None:
        self._updates.clear()

    def _took(self, frame: Tensors, whole: bytes) -> list[Tensors]:
        recipe = self._recipe
        match frame.edge:
            case "begin":
                self._theta = state.unpack(whole, state.types(recipe.shapes()), field="theta")
                self._momenta = outer_step.start(recipe.outer, self._theta)
                return [Frame("begun", 0, (), {"initial": self._initial is None or whole == state.pack(self._initial)})]
            case "shard":
                self._shard = number(frame, "index"), Shard.unpack(whole, recipe)
                return []
            case "shown":
                self._shown[number(frame, "at"), number(frame, "segment")] = whole
                return []
        index, round_, steps, weight = (number(frame, name) for name in ("index", "round", "steps", "weight"))
        try:
            delta = carried_state.received(recipe, round_, whole)
        except NodewireError as error:
            return [Frame("updated", 0, (), {"fine": False, "reason": f"{error.code}: {error}"[:200]})]
        self._updates.append(_Update(index, round_, steps, weight, whole, delta))
        return [Frame("updated", 0, (), {"fine": True, "reason": ""})]

    def _segments(self, frame: Tensors) -> Tensors:
        at, states = number(frame, "at"), frame.meta["states"]
        update, self._shown = self._updates[at], {k: snapshot for k, snapshot in self._shown.items() if k[0] == at}
        if self._shard is None or self._shard[0] != update.index or not isinstance(states, bytes):
            raise BadInput("segments", "their shard comes first")
        leaves = tuple(states[at : at + 32] for at in range(0, len(states), 32))
        if len(leaves) != segments.count(self._recipe, update.steps):
            return _audited(0, f"{len(leaves)} states for {update.steps} steps")
        theta = self._theta if update.round == self._round else self._before
        try:
            begun = self._begun(frame, self._shown.get((at, len(leaves))))
        except NodewireError as error:
            return _audited(0, f"{error.code}: {error}")
        drawn = [int(one) for one in str(frame.meta["drawn"]).split(",") if one]
        if not drawn:
            return self._whole(update, theta, leaves, self._shard[1], begun)
        claim = segments.Claim(update.round, update.index, leaves, digest(frame, "carried"))

        def reveal(i: int) -> bytes | None:
            return self._shown.get((at, i))

        inputs = segments.RoundInputs(theta, self._shard[1], update.steps, begun)
        for segment in drawn:
            try:
                off = segments.recomputed(self._trainer, claim, inputs, segment, reveal, update.packed)
            except NodewireError as error:
                return _audited(segment, f"{error.code}: {error}")
            judged = validation.by_audit(self._recipe, off)
            if judged.outcome != "accept":
                return _audited(segment, judged.reason)
        return _audited(-1, "")

    def _begun(self, frame: Tensors, shown: bytes | None) -> CarriedState | None:
        committed = digest(frame, "begun") or NOTHING
        if not self._recipe.compression.carries or (shown is None and committed == NOTHING):
            return None
        return carried_state.shown(shown, self._recipe, committed)

    def _whole(
        self, update: _Update, theta: State, leaves: tuple[bytes, ...], shard: Shard, begun: CarriedState | None
    ) -> Tensors:
        """Train all of it: where the end is other work, the first state that differs is where it began."""
        recipe, other, begin = self._recipe, -1, carried_state.start_of_round(theta, begun)
        try:
            stretches = self._trainer.stretches(begin, shard, update.round, update.index, update.steps, since=theta)
            for at, done in enumerate(stretches):
                other = at if other < 0 and done.state != leaves[at] else other
                delta = done.update.delta if done.update is not None else {}
            mine, _ = carried_state.send(recipe, update.round, delta, begun)
        except NodewireError as error:
            return _audited(max(0, other), f"{error.code}: {error}")
        if mine == update.packed:
            return _audited(-1, "")
        expected = carried_state.received(recipe, update.round, mine)
        way = norm(expected)
        judged = validation.by_audit(recipe, distance(expected, update.delta) / way if way else float("inf"))
        if judged.outcome == "accept":
            return _audited(-1, "")
        return _audited(other if other >= 0 else len(leaves) - 1, judged.reason)

    def _step(self) -> Tensors:
        results = [(update.weight, update.delta) for update in self._updates if update.weight]
        before = self._theta
        self._theta, self._momenta = fragments.step(self._recipe, self._round, before, self._momenta, results)
        self._before, self._round = before, self._round + 1
        self._updates.clear()
        loss = -1 if self._measured is None else micro(self._trainer.loss(self._theta, self._measured))
        return Frame("stepped", 0, (), {"sha256": hashlib.sha256(state.pack(self._theta)).hexdigest(), "loss": loss})


def _audited(segment: int, reason: str) -> Tensors:
    return Frame("audited", 0, (), {"segment": segment, "reason": reason[:200]})


@dataclass(frozen=True, slots=True)
class _Update:
    index: int
    round: int
    steps: int
    weight: int
    packed: bytes
    delta: State
