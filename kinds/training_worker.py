"""The worker entry of kinds 8840 and 8841: a shard's training at its provider, a whole training's arithmetic at its
customer. Imported by workers only.

Tensors of a model or a shard come and go as safetensors bytes, in frames of at most 1 MiB whose `meta` says `end` in
the last. A "trainer" session is one shard of one round:

    theta*, shard*        what it begins with
    train                 trains one segment -> trained {step, loss, state, samples, end}; loss in millionths
    update                -> update*, when the last segment is done
    reveal {segment}      -> snapshot*: what the segment ended with, kept or computed again

A "coordinator" session is one training; its `program` is the recipe, its only weights file the customer's folder:

    shard {index}         -> shard*              theta, momenta  -> theta*, momenta*
    restore {what}*       theta or momenta as they were after some round
    result {index, steps}*                       -> received {fine, reason} after the last
    judge {round}         -> judged {index, accepted, reason}*, one for each result of the round
    draw {round, index, seed, commitment}        -> drawn {snapshots}: what its provider has to show
    shown {segment}*, audit {round, index, request, provider, states} -> audited {accepted, reason}, of a round before
    step                  theta and momenta of the next round, from the results that were accepted -> stepped {loss}
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # as in k8843_worker: nothing can be imported once the worker is locked in
import torch.optim

from nodewire.errors import BadFrame, BadInput, BadTask, Busy, NodewireError, NotFound, TooLarge
from nodewire.kind import Actor, Limits, Params
from nodewire.protocol.delivery import MICRO
from nodewire.protocol.frame import Frame, Meta
from nodewire.protocol.recipe import Recipe
from nodewire.train import compress, data, outer, reading, segments, state, validate
from nodewire.train.data import Shard
from nodewire.train.families import initial
from nodewire.train.inner import Snapshot, Stretch, Trainer, Update
from nodewire.train.state import State
from nodewire.train.sums import distance, norm

PIECE_BYTES = 1 << 20
MAX_SESSIONS = 4
KEPT_BYTES = 16 * 2**20
"""Of a round's snapshots; what is not kept is computed again from the one before."""
KEPT_ROUNDS = 2
"""For which a coordinator keeps what is needed to audit them."""
DOUBTED = ("norm: out",)
"""Rejections that an honest result may meet, where rounds get shorter as a model converges: they are audited."""
DOUBT = 4
"""How many times the recipe's share is drawn of a result that is doubted."""
MAX_DRAWN = 64
"""Segments of one result; both ends of each are shown."""
_HEADER_BYTES = 1 << 20
"""More than the header of any model's safetensors has."""
_MOST_MICRO = 2**53 - 1

Tensors = Frame[torch.Tensor]


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The trainer or the coordinator. Raises BadTask, BadRecipe, BadData."""
    if engine == "trainer":
        return TrainerActor(limits)
    if engine == "coordinator":
        (folder,) = weights
        return CoordinatorActor(Recipe.unpack(program), folder)
    raise BadTask("engine", f"{engine[:40]!r} is not trainer or coordinator")


class TrainerActor:
    """Sessions are shards of rounds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: dict[str, _ShardSession] = {}

    def open(self, session: str, params: Params) -> None:
        if len(self._sessions) >= MAX_SESSIONS:  # who has trained waits for its pay, and may be opened again
            done = next((name for name, one in self._sessions.items() if one.is_done), None)
            if done is None:
                raise Busy("sessions", f"{MAX_SESSIONS} are open")
            del self._sessions[done]
        self._sessions[session] = _ShardSession(params)

    def receive(self, session: str, frame: Tensors) -> list[Tensors]:
        if session not in self._sessions:
            raise NotFound("session", "not open")
        return self._sessions[session].receive(frame)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)


class _ShardSession:
    def __init__(self, params: Params) -> None:
        self._recipe = recipe = Recipe.unpack(params["recipe"])
        self._round, self._index, self._steps = int(params["round"]), int(params["index"]), int(params["steps"])
        self._theta_in = _Incoming(recipe.state_bytes() + _HEADER_BYTES)
        self._shard_in = _Incoming(data.MAX_SHARD_BYTES)
        self._theta: State | None = None
        self._shard: Shard | None = None
        self._running: Iterator[Stretch] | None = None
        self._trainer = Trainer(recipe)
        self._update: Update | None = None
        self._kept: dict[int, Snapshot] = {}
        """Snapshots by steps: all, or as many as KEPT_BYTES hold."""
        segments_ = segments.count(recipe, self._steps)
        size = recipe.state_bytes() * 3
        self._every = max(1, -(-segments_ * size // KEPT_BYTES))

    @property
    def is_done(self) -> bool:
        return self._update is not None

    def receive(self, frame: Tensors) -> list[Tensors]:
        match frame.edge:
            case "theta":
                if (whole := self._theta_in.take(frame)) is not None:
                    self._theta = state.unpack(whole, state.types(self._recipe.shapes()), field="theta")
                return []
            case "shard":
                if (whole := self._shard_in.take(frame)) is not None:
                    self._shard = Shard.unpack(whole, self._recipe)
                return []
            case "train":
                return [self._train(frame.seq)]
            case "update":
                if self._update is None:
                    raise BadFrame("update", "there is none yet")
                packed, _ = compress.pack(self._update.delta, self._recipe.compression, None)
                return list(_pieces("update", packed))
            case "reveal":
                return list(_pieces("snapshot", segments.show(self._snapshot(_number(frame, "segment")))))
        raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")

    def _train(self, seq: int) -> Tensors:
        if self._running is None:
            if self._theta is None or self._shard is None:
                raise BadFrame("train", "theta and shard come first")
            self._running = self._trainer.stretches(self._theta, self._shard, self._round, self._index, self._steps)
        done = next(self._running, None)
        if done is None:
            raise BadFrame("train", "the round is over")
        self._update = done.update
        if float(self._recipe.audit.fraction) and (seq + 1) % self._every == 0:
            self._kept[done.step] = self._trainer.now(done.step)
        said: Meta = {
            "step": done.step,
            "loss": _micro(done.loss),
            "state": done.state.hex(),
            "samples": done.update.samples if done.update else 0,
            "end": done.update is not None,
        }
        return Frame("trained", seq, (), said)

    def _snapshot(self, segment: int) -> Snapshot:
        """After a segment: the kept one, or from the one before it (or the round's beginning) on."""
        step = min((segment + 1) * self._recipe.audit.segment, self._steps)
        if self._theta is None or self._shard is None or segment < 0:
            raise BadFrame("reveal", "theta and shard come first")
        begun = self._trainer.beginning(self._theta)
        near = max((kept for kept in self._kept.values() if kept.step <= step), key=lambda s: s.step, default=begun)
        if near.step == step:
            return near
        return self._trainer.segment(near, self._shard, self._round, self._index, step - near.step)


class CoordinatorActor:
    """One training at its customer; `session` is ignored, for there is one."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe = recipe
        self._dataset = reading.read(recipe, folder)
        self._trainer = Trainer(recipe)
        self._theta: State = initial(recipe)
        self._momenta: State = outer.start(recipe.outer, self._theta)
        self._shards: list[Shard] = []
        self._incoming: dict[str, _Incoming] = {}
        self._results: dict[int, _Result] = {}
        self._held: list[float] = []
        """Held-out losses of the weights before each round so far."""
        self._past: dict[int, tuple[State, dict[int, _Result]]] = {}
        """By round, what it began with and what was accepted, for audits."""
        self._shown: dict[int, bytes] = {}
        self._norms: list[float] = []
        """Of the results that were accepted in the round before."""

    def open(self, session: str, params: Params) -> None:
        self._shards, held_out = data.split(self._dataset, int(params["shards"]), self._recipe)
        self._measured = data.samples(held_out, self._recipe, self._recipe.validation.samples)
        self._held = [self._loss(self._theta)]

    def receive(self, session: str, frame: Tensors) -> list[Tensors]:
        match frame.edge:
            case "shard":
                return list(_pieces("shard", self._shards[_number(frame, "index")].packed))
            case "theta":
                return list(_pieces("theta", state.pack(self._theta)))
            case "momenta":
                return list(_pieces("momenta", state.pack(self._momenta)))
            case "restore":
                return self._restore(frame)
            case "result":
                return self._result(frame)
            case "judge":
                return self._judge(_number(frame, "round"))
            case "step":
                return [self._step(frame.seq)]
            case "draw":
                return [self._draw(frame)]
            case "shown":
                segment = _number(frame, "segment")
                most = 3 * self._recipe.state_bytes() + _HEADER_BYTES
                if (whole := self._incoming.setdefault(f"shown.{segment}", _Incoming(most)).take(frame)) is not None:
                    self._shown[segment] = whole
                return []
            case "audit":
                return [self._audit(frame)]
        raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")

    def close(self, session: str) -> None:
        self._results.clear()

    def _restore(self, frame: Tensors) -> list[Tensors]:
        what = str(frame.meta["what"])
        expected = {name: tensor.shape for name, tensor in (self._theta if what == "theta" else self._momenta).items()}
        most = 3 * self._recipe.state_bytes() + _HEADER_BYTES
        whole = self._incoming.setdefault(what, _Incoming(most)).take(frame)
        if whole is not None:
            del self._incoming[what]
            tensors = state.unpack(whole, state.types({name: tuple(shape) for name, shape in expected.items()}))
            if what == "theta":
                self._theta = tensors
                self._held = [self._loss(tensors)]
            else:
                self._momenta = tensors
        return []

    def _result(self, frame: Tensors) -> list[Tensors]:
        """Take a packed update; once it is whole, whether it is one at all. A malformed one is said, not raised."""
        index, steps = _number(frame, "index"), _number(frame, "steps")
        most = compress.most_bytes(self._recipe.shapes(), self._recipe.compression)
        key = f"result.{index}"
        try:
            whole = self._incoming.setdefault(key, _Incoming(most)).take(frame)
            if whole is None:
                return []
            del self._incoming[key]
            delta = compress.unpack(whole, self._recipe.shapes(), self._recipe.compression)
        except NodewireError as error:
            self._incoming.pop(key, None)
            said: Meta = {"fine": False, "reason": f"{error.code}: {error}"[:200]}
            return [Frame("received", frame.seq, (), said)]
        self._results[index] = _Result(steps, delta, whole)
        return [Frame("received", frame.seq, (), {"fine": True, "reason": ""})]

    def _judge(self, round_: int) -> list[Tensors]:
        """The judgements on all results of the round; what was rejected is forgotten."""
        judgements = validate.judge(
            self._recipe,
            self._theta,
            [self._submission(round_, index) for index in sorted(self._results)],
            self._loss,
            history=self._held,
            norms=self._norms,
            earlier=[result.delta for result in self._past.get(round_ - 1, ({}, {}))[1].values()],
        )
        said: list[Tensors] = []
        for index, judgement in judgements.items():
            if judgement.outcome == "audit" or judgement.reason.startswith(DOUBTED):
                if float(self._recipe.audit.fraction):  # its provider will have to show more of it
                    self._results[index].doubted = True
                    judgement = validate.Judgement(figures=judgement.figures)
                else:
                    judgement = self._audited(round_, index, judgement)
            accepted = judgement.outcome == "accept"
            if not accepted:
                del self._results[index]
            elif "norm" in judgement.figures:
                self._results[index].norm = judgement.figures["norm"]
            meta: Meta = {"index": index, "accepted": accepted, "reason": judgement.reason[:200]}
            said.append(Frame("judged", len(said), (), meta))
        return said

    def _submission(self, round_: int, index: int) -> validate.Submission:
        result, shard = self._results[index], self._shards[index]
        own = validate.own_samples(self._recipe, shard, round_, index, result.steps)
        return validate.Submission(
            index,
            result.steps,
            result.steps * self._recipe.batch,
            result.delta,
            lambda theta: self._trainer.loss(theta, own),
        )

    def _audited(self, round_: int, index: int, judgement: validate.Judgement) -> validate.Judgement:
        """Where looking at a result leaves doubt: the shard's round is trained here, and what comes out is compared."""
        result = self._results[index]
        update = self._trainer.train(self._theta, self._shards[index], round_, index, result.steps)
        packed, _ = compress.pack(update.delta, self._recipe.compression, None)
        if packed == result.packed:
            return validate.Judgement("accept", figures=judgement.figures)
        mine = compress.unpack(packed, self._recipe.shapes(), self._recipe.compression)
        off, way = distance(mine, result.delta), norm(mine)
        fine = off <= float(self._recipe.audit.tolerance) * way
        reason = "" if fine else f"{judgement.reason}; audit: other work"
        return validate.Judgement("accept" if fine else "reject", reason, judgement.figures)

    def _step(self, seq: int) -> Tensors:
        before = self._theta
        results = [(r.steps * self._recipe.batch, r.delta) for _, r in sorted(self._results.items())]
        self._theta, self._momenta = outer.step(self._recipe.outer, self._theta, self._momenta, results)
        self._past[seq] = before, dict(self._results)
        self._past.pop(seq - KEPT_ROUNDS, None)
        self._norms = [result.norm for result in self._results.values() if result.norm]
        self._results.clear()
        self._held.append(self._loss(self._theta))
        return Frame("stepped", seq, (), {"loss": _micro(self._held[-1])})

    def _draw(self, frame: Tensors) -> Tensors:
        """Which snapshots a provider has to show: those at both ends of the segments that are drawn."""
        round_, index = _number(frame, "round"), _number(frame, "index")
        seed, commitment = frame.meta["seed"], bytes.fromhex(str(frame.meta["commitment"]))
        result = self._result_of(round_, index)
        if not isinstance(seed, bytes) or result is None:
            return Frame("drawn", 0, (), {"snapshots": ""})
        count = segments.count(self._recipe, result.steps)
        fraction = float(self._recipe.audit.fraction) * (DOUBT if result.doubted else 1)
        fraction = min(1.0, fraction, MAX_DRAWN / count)
        result.drawn = segments.drawn(seed, commitment, count, fraction)
        ends = sorted({end for segment in result.drawn for end in (segment - 1, segment) if end >= 0})
        return Frame("drawn", 0, (), {"snapshots": ",".join(map(str, ends))})

    def _audit(self, frame: Tensors) -> Tensors:
        """Compute the drawn segments again from what was shown, and compare."""
        round_, index = _number(frame, "round"), _number(frame, "index")
        result, theta = self._result_of(round_, index), self._past.get(round_, (self._theta, {}))[0]
        states, shown = frame.meta["states"], self._shown
        self._shown = {}
        if result is None or not isinstance(states, bytes):
            raise BadInput("audit", "of a result that is not here")
        claim = segments.Claim(
            author=str(frame.meta["provider"]),
            request=str(frame.meta["request"]),
            round=round_,
            index=index,
            states=tuple(states[at : at + 32] for at in range(0, len(states), 32)),
            update=hashlib.sha256(result.packed).digest(),
        )
        judgement = validate.Judgement()
        shard = self._shards[index]
        for segment in result.drawn:
            try:
                off = segments.recomputed(
                    self._trainer, claim, theta, shard, result.steps, segment, shown.get, result.packed
                )
            except NodewireError as error:
                judgement = validate.malformed(error)
            else:
                judgement = validate.by_audit(self._recipe, off)
            if judgement.outcome != "accept":
                break
        accepted = judgement.outcome == "accept"
        return Frame("audited", 0, (), {"accepted": accepted, "reason": judgement.reason[:200]})

    def _result_of(self, round_: int, index: int) -> _Result | None:
        """What was accepted in a round, this or one before; None if this worker has not seen it."""
        past = self._past.get(round_)
        return past[1].get(index) if past is not None else self._results.get(index)

    def _loss(self, theta: State) -> float:
        return self._trainer.loss(theta, self._measured)


@dataclass(slots=True)
class _Result:
    """An update that came; `norm` once it was judged."""

    steps: int
    delta: State
    packed: bytes
    norm: float = 0.0
    doubted: bool = False
    """Looking at it leaves doubt: more of it is drawn."""
    drawn: tuple[int, ...] = ()
    """Segments that are computed again."""


class _Incoming:
    """Bytes that come in pieces; never more than were expected are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._whole = bytearray()

    def take(self, frame: Tensors) -> bytes | None:
        """All bytes once the last piece is here. Raises BadFrame, TooLarge."""
        if len(frame.tensors) != 1 or frame.tensors[0].dtype != torch.uint8:
            raise BadFrame(frame.edge, "not one tensor of bytes")
        (piece,) = frame.tensors
        if not frame.seq:  # from the start, whatever was broken off
            self._whole.clear()
        if len(self._whole) + piece.numel() > self._most:
            raise TooLarge(frame.edge, f"more than {self._most} bytes")
        self._whole += piece.numpy().data
        if not frame.meta.get("end"):
            return None
        whole, self._whole = bytes(self._whole), bytearray()
        return whole


def _pieces(edge: str, whole: bytes) -> Iterator[Tensors]:
    for seq, at in enumerate(range(0, max(1, len(whole)), PIECE_BYTES)):
        piece = torch.frombuffer(bytearray(whole[at : at + PIECE_BYTES]) or bytearray(1), dtype=torch.uint8)
        yield Frame(edge, seq, (piece[: len(whole) - at],), {"end": at + PIECE_BYTES >= len(whole)})


def _number(frame: Tensors, name: str) -> int:
    value = frame.meta.get(name)
    if not isinstance(value, int):
        raise BadInput(name, "not a number")
    return value


def _micro(loss: float) -> int:
    """Millionths; a loss that is not finite, or negative, is the end of what can be said."""
    return min(_MOST_MICRO, max(0, round(loss * MICRO))) if loss == loss and abs(loss) != float("inf") else _MOST_MICRO
