"""The "trainer" of kinds 8840 and 8841, in a provider's worker: a session is one shard of one round.

frozen                -> frozen {here}: whether what the recipe freezes is here from a session of the same `start`
start*                if it is not: what stays frozen, where the recipe has an adapter; before the rest
theta*                what it begins with -> begun {shard}: whether the shard is here, of a session that named the same
shard*                if it is not
carried*              and what it has carried from the round before, where it has
train {ms}            trains one segment, and more until `ms` are over -> trained {step, loss, state, samples, end}*,
                      losses in millionths; after the last one update*
carry                 -> carried*: what is carried from it; none if nothing is. Not any more once snapshots were shown
reveal {segment, ms}  -> snapshot*: what the segment ended with, kept or computed again; number `count`: carried.
                      Or revealing {step}: it is not there yet after `ms`, and will be if it is asked for on and on
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nodewire.errors import BadData, BadFrame, BadUpdate, Busy, NotFound
from nodewire.protocol.tensors.frame import Frame, Meta
from nodewire.training.engine import data, segments, state
from nodewire.training.engine.actors.frozen_weights import FrozenIn, FrozenWeights
from nodewire.training.engine.actors.pieces import HEADER_BYTES, IncomingTensors, Pieces, Tensors, micro, number
from nodewire.training.engine.actors.shard_cache import HeldShard
from nodewire.training.engine.actors.trainer_model import LentTrainer
from nodewire.training.engine.data import Shard
from nodewire.training.engine.update import carried_state
from nodewire.training.protocol import recipe as recipes
from nodewire.training.protocol.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodewire.kind import Limits, Params
    from nodewire.training.engine.inner_loop import Snapshot, Stretch, Trainer
    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.carried_state import CarriedState

MAX_SESSIONS = 4


class TrainerActor:
    """Sessions are shards of rounds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: dict[str, _ShardSession] = {}
        self._frozen, self._held, self._lent = FrozenWeights(), HeldShard(), LentTrainer()
        self._read: tuple[bytes, Recipe] | None = None
        """The last recipe: a training's rounds have the same."""

    def open(self, session: str, params: Params) -> None:
        if self._read is None or self._read[0] != params["recipe"]:
            self._read = params["recipe"], Recipe.unpack(params["recipe"])
            self._lent.forget()
        recipe = self._read[1]
        opened = _ShardSession(recipe, params, self._frozen, self._held, self._lent, self._limits.memory_bytes)
        self._make_room(opened.memory_bytes)
        self._sessions[session] = opened

    def _make_room(self, needed: int) -> None:
        """Close sessions that have trained, the oldest first: they wait for their pay, and may be opened again.

        Raises:
            Busy: those that are still at work leave no room.

        """
        done = [name for name, one in self._sessions.items() if one.is_done]

        def is_full() -> bool:
            over = self._memory_bytes() + needed > self._limits.memory_bytes
            return len(self._sessions) >= MAX_SESSIONS or (over and len(self._sessions) > 0)

        while done and is_full():
            del self._sessions[done.pop(0)]
        if is_full():
            raise Busy("sessions", f"{len(self._sessions)} are at work")

    def _memory_bytes(self) -> int:
        return sum(one.memory_bytes for one in self._sessions.values())

    def receive(self, session: str, frame: Tensors) -> Sequence[Tensors]:
        if session not in self._sessions:
            raise NotFound("session", "not open")
        self._sessions[session] = used = self._sessions.pop(session)  # who has waited longest makes room first
        return used.receive(frame)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)


class _ShardSession:
    def __init__(
        self, recipe: Recipe, params: Params, frozen: FrozenWeights, held: HeldShard, lent: LentTrainer, room: int
    ) -> None:
        """`room`: bytes that all sessions together may take."""
        self._recipe = recipe
        self._round, self._index, self._steps = int(params["round"]), int(params["index"]), int(params["steps"])
        shapes = recipe.shapes()
        self._theta_in = IncomingTensors(state.types(shapes), recipe.state_bytes() + HEADER_BYTES, "theta")
        most = int(params.get("shard_bytes", data.MAX_SHARD_BYTES))
        self._shard_in = IncomingTensors(data.expected(recipe), most, "shard")
        self._carried_in = IncomingTensors(carried_state.types(recipe), carried_state.most_bytes(recipe), "carried")
        self._theta: State | None = None
        self._begun: CarriedState | None = None
        self._after: CarriedState | None = None
        """What is carried on, until snapshots are asked for."""
        self._shard_name, self._held = str(params.get("shard", "")), held
        self._shard = held.find(self._shard_name, recipe)
        self._running: Iterator[Stretch] | None = None
        self._start, self._frozen = str(params.get("start", "")), frozen
        self._frozen_in: FrozenIn | None = None
        self._beside = frozen.find(self._start, recipe)
        """What the adapter stands beside, where the recipe has one."""
        self._lent = lent
        self._trained_by: Trainer | None = None
        self._has_trained = self._has_shown = False
        self._kept: dict[int, Snapshot] = {}
        """Snapshots by steps: all, or as many as may be kept."""
        counted = recipe.round_bytes(int(params.get("shard_bytes", 0)))  # as admission does
        spare = (room - 2 * counted) // 2
        all_bytes = segments.count(recipe, self._steps) * recipe.snapshot_bytes()
        kept_bytes = max(recipes.KEPT_BYTES, spare)
        self._every = max(1, -(-all_bytes // kept_bytes))
        self.memory_bytes = counted - recipe.kept_bytes() + min(all_bytes, kept_bytes)
        self._revealing: Snapshot | None = None
        """The last that was computed again: others are computed on from it. It is the trainer's own while this session
        has that, and a copy afterwards."""
        self._has_room = spare >= recipe.snapshot_bytes()

    @property
    def _trainer(self) -> Trainer:
        """The session's own until `_release`: a round's pause leaves its state in there."""
        if self._trained_by is None:
            if self._recipe.adapter is not None and self._beside is None:
                raise BadFrame("start", "what the adapter stands beside comes first")
            self._trained_by = self._lent.lend(self._recipe, self._beside)
        return self._trained_by

    def _release(self) -> None:
        """Nothing is left in the trainer that is wanted: another session may have it."""
        if self._trained_by is not None:
            self._lent.back(self._trained_by, self._recipe, self._beside)
            self._trained_by = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is lost with it: it has trained, or was opened again to show what it had."""
        return self._has_trained or self._has_shown

    def receive(self, frame: Tensors) -> Sequence[Tensors]:
        match frame.edge:
            case "frozen":
                return [Frame("frozen", 0, (), {"here": self._recipe.adapter is None or self._beside is not None})]
            case "start":
                self._receive_frozen(frame)
                return []
            case "theta":
                return self._receive_theta(frame)
            case "shard":
                self._receive_shard(frame)
                return []
            case "carried":
                self._carried(frame)
                return []
            case "train":
                return self._train_for(frame)
            case "carry":
                return self._carry()
            case "reveal":
                return self._show(frame)
        raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")

    def _receive_frozen(self, frame: Tensors) -> None:
        if self._frozen_in is None:
            self._frozen_in = FrozenIn(self._recipe)
        if (frozen := self._frozen_in.feed(frame)) is not None:
            self._frozen_in = None
            self._frozen.keep(self._start, self._recipe, frozen)
            self._beside = frozen

    def _receive_theta(self, frame: Tensors) -> list[Tensors]:
        """Once it is whole, whether the shard is here. Raises BadData: a number is not finite."""
        if (theta := self._theta_in.feed(frame)) is None:
            return []
        if not all(map(state.is_finite, theta.values())):
            raise BadData("theta", "not finite")
        self._theta = theta
        return [Frame("begun", frame.seq, (), {"shard": self._shard is not None})]

    def _receive_shard(self, frame: Tensors) -> None:
        if (tensors := self._shard_in.feed(frame)) is not None:
            self._shard = Shard.from_tensors(tensors, self._recipe)
            self._held.keep(self._shard_name, self._recipe, self._shard)

    def _carry(self) -> Sequence[Tensors]:
        """What is carried on from the round. Raises BadFrame: it is asked for too early, or too late."""
        if not self._has_trained:
            raise BadFrame("carry", "there is nothing yet")
        if self._has_shown:
            raise BadFrame("carry", "it comes before snapshots do")
        return Pieces("carried", state.parts(self._after.named())) if self._after is not None else []

    def _show(self, frame: Tensors) -> Sequence[Tensors]:
        """A snapshot for an audit, or what was carried into the round; nothing is carried on from it after that."""
        self._after = None
        segment, self._has_shown = number(frame, "segment"), True
        if segment == segments.count(self._recipe, self._steps):
            return Pieces("snapshot", state.parts(self._begun.named() if self._begun is not None else {}))
        return self._reveal(segment, time.monotonic() + int(frame.meta.get("ms") or 0) / 1000)

    def _carried(self, frame: Tensors) -> None:
        """Raises BadFrame, TooLarge, BadUpdate: it is not of this recipe."""
        try:
            tensors = self._carried_in.feed(frame)
        except BadData as error:
            raise BadUpdate(error.field, error.reason) from error
        if tensors is not None:
            self._begun = carried_state.from_tensors(tensors, self._recipe)

    def _train_for(self, frame: Tensors) -> Sequence[Tensors]:
        """A segment, and further ones until `ms` are over."""
        until_s = time.monotonic() + int(frame.meta.get("ms") or 0) / 1000
        said, sent = self._train(frame.seq)
        frames = [said]
        while sent is None and time.monotonic() < until_s:
            said, sent = self._train(frame.seq + len(frames))
            frames.append(said)
        return frames if sent is None else Pieces("update", state.parts(sent), after=frames)

    def _train(self, seq: int) -> tuple[Tensors, State | None]:
        """What is said of one segment; after the last one the tensors of the packed update."""
        if self._has_trained:
            raise BadFrame("train", "the round is over")
        if self._theta is None:
            raise BadFrame("train", "theta and shard come first")
        if self._running is None:
            if self._shard is None:
                raise BadFrame("train", "theta and shard come first")
            self._running = self._trainer.stretches(
                carried_state.start_of_round(self._theta, self._begun),
                self._shard,
                self._round,
                self._index,
                self._steps,
                since=self._theta,
            )
        done = next(self._running)  # the one with the update is the last
        if float(self._recipe.audit.fraction) and (seq + 1) % self._every == 0:
            self._kept[done.step] = self._trainer.now(done.step)
        sent, samples = None, 0
        if done.update is not None:
            self._running = None
            samples = done.update.samples
            sent, self._after = carried_state.send_as_tensors(self._recipe, self._round, done.update.delta, self._begun)
            self._has_trained = True
            self._release()
        said: Meta = {
            "step": done.step,
            "loss": micro(done.loss),
            "state": done.state.hex(),
            "samples": samples,
            "end": sent is not None,
        }
        return Frame("trained", seq, (), said), sent

    def _reveal(self, segment: int, until_s: float) -> Sequence[Tensors]:
        """The snapshot after a segment; or how far it is, where it is computed again: at least a segment a call."""
        step, every = min((segment + 1) * self._recipe.audit.segment, self._steps), self._recipe.audit.segment
        if self._theta is None or self._shard is None or segment < 0:
            raise BadFrame("reveal", "theta and shard come first")
        if self._running is not None:
            raise BadFrame("reveal", "the round is not over")
        near = self._nearest(step)
        while near.step != step:
            few = min(every - near.step % every, step - near.step)
            near = self._trainer.segment(near, self._shard, self._round, self._index, few, copied=False)
            self._revealing = near
            if near.step != step and time.monotonic() >= until_s:
                return [Frame("revealing", 0, (), {"step": near.step})]
        if self._trained_by is not None:  # the snapshot is its state, until somebody goes on with it
            self._revealing = self._trained_by.now(step) if near is self._revealing and self._has_room else None
            self._release()
        return Pieces("snapshot", state.parts(segments.named(near)))

    def _nearest(self, step: int) -> Snapshot:
        """The last snapshot at or before `step` that is here."""
        assert self._theta is not None
        here = [*self._kept.values(), *([self._revealing] if self._revealing is not None else [])]
        near = max((kept for kept in here if kept.step <= step), key=lambda kept: kept.step, default=None)
        return near or self._trainer.beginning(carried_state.start_of_round(self._theta, self._begun))
