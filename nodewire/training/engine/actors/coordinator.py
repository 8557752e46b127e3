"""The "coordinator" of kinds 8840 and 8841, in the customer's own worker: a session is one training.

Its `program` is the recipe; its weights files are the customer's folder of data and, where the recipe cites files, what
it starts from.

    shard {index}         -> shard*              theta, momenta, start -> theta*, momenta*, start*
    model                 -> model {name}*       the files of a Hugging Face folder with what was trained
    restore {what, round}*                       theta, then momenta, as they were before some round; with theta all
                                                 that is known of that round and later ones is forgotten
    result {round, index, steps}*                -> received {fine, reason} after the last
    judge {round, waiting}   -> judged {index, accepted, reason, doubted, harms}*, one for each result of the round;
                          those of shards in `waiting`, parted by commas (else all), are forgotten if rejected
    holds {round, index, update}                 -> held {holds}: whether it can be audited without being recalled
    recall.theta, recall.update {round, index, steps}*   what an audit needs of a round that was forgotten
    shown {segment}*, audit {round, index, update, states, drawn, begun, carried, alone} -> audited {accepted, reason}:
                          begun and carried are digests of what was carried into the round and from it, where anything
                          is; alone as below
    late {request, round, index, steps}*         -> received, as result: one of a round before
    late.theta {round}*, late.judge {request, index, alone}   -> judged {index, accepted, reason}, by the weights of its
                          round; alone, where these are not those of the round that has its number now
    step {counted}        theta and momenta of the next round, from these results -> stepped {loss}; "index:" is one of
                          the round, "index:request" a late one, parted by commas; without it, all of the round
    bought {what}*, check {round, counted, seed, root} -> checked {fine, reason, loss}: theta and momenta of the next
                          round as another has made them, taken over if a drawn part of them is what `step` makes
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, BadInput, NodewireError
from nodewire.protocol.tensors.frame import Frame, Meta
from nodewire.training.engine import data, sample_files, segments, state, validation
from nodewire.training.engine.actors.harm import Harm
from nodewire.training.engine.actors.late_results import LateResults
from nodewire.training.engine.actors.pieces import (
    HEADER_BYTES,
    IncomingBytes,
    Pieces,
    Tensors,
    digest,
    micro,
    number,
    pieces,
)
from nodewire.training.engine.actors.provider_step import BoughtStep
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.models import directory, initial_weights
from nodewire.training.engine.sums import distance, norm
from nodewire.training.engine.update import carried_state, compression, fragments, outer_step
from nodewire.training.engine.update.carried_state import NOTHING, CarriedState
from nodewire.training.protocol import retention

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from torch import Tensor

    from nodewire.kind import Params
    from nodewire.training.engine.data import Shard
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe


class CoordinatorActor:
    """One training at its customer; `session` is ignored, for there is one."""

    def __init__(self, recipe: Recipe, folder: Path, start_at: Path | None = None, *, threads: int = 1) -> None:
        self._recipe = recipe
        begun = initial_weights.read(recipe, start_at)
        self._tokenizer = begun.tokenizer
        self._frozen = begun.tensors if recipe.adapter is not None else None
        self._dataset = sample_files.read(recipe, folder, begun.tokenizer)
        self._trainer = Trainer(recipe, self._frozen, threads=threads)
        self._theta: State = initial(recipe, begun.tensors)
        self._momenta: State = outer_step.start(recipe.outer, self._theta)
        self._round = 0
        self._shards: list[Shard] = []
        self._incoming: dict[str, IncomingBytes] = {}
        self._results: dict[int, _Result] = {}
        self._late = LateResults(recipe)
        self._bought = BoughtStep(recipe)
        self._held: list[float] = []
        """Held-out losses of the weights before each round so far."""
        self._past: dict[int, tuple[State, dict[int, _Result]]] = {}
        """By round, what it began with and what was accepted, for audits."""
        self._recalled: tuple[int, State, dict[int, _Result]] | None = None
        """A round that is longer ago, or was before this worker: what it began with, and one result."""
        self._shown: dict[int, bytes] = {}
        self._norms: list[float] = []
        """Of the results that were accepted in the round before."""

    def open(self, session: str, params: Params) -> None:
        self._shards, held_out = data.split(self._dataset, int(params["shards"]), self._recipe)
        self._measured = data.samples(held_out, self._recipe, self._recipe.measured())
        self._held = [self._loss(self._theta)]
        self._kept_rounds = retention.kept_rounds(self._recipe.state_bytes(), len(self._shards))

    def receive(self, session: str, frame: Tensors) -> Sequence[Tensors]:
        match frame.edge:
            case "shard" | "theta" | "momenta" | "start" | "model":
                return self._own(frame)
            case "restore":
                return self._restore(frame)
            case "result":
                return self._result(frame)
            case "judge":
                return self._judge(number(frame, "round"), self._waiting(frame))
            case "late" | "late.theta" | "late.judge":
                return self._receive_late(frame)
            case "step" | "bought" | "check":
                return self._receive_step(frame)
            case "holds" | "recall.theta" | "recall.update" | "shown" | "audit":
                return self._receive_audit(frame)
        raise BadFrame("edge", f"{frame.edge[:40]!r} is unknown")

    def close(self, session: str) -> None:
        self._results.clear()

    def _own(self, frame: Tensors) -> Sequence[Tensors]:
        """Of what this training has: data, weights, momenta, and what a folder of the model consists of."""
        match frame.edge:
            case "shard":
                return Pieces("shard", state.parts(self._shards[number(frame, "index")].tensors))
            case "theta":
                return Pieces("theta", state.parts(self._theta))
            case "momenta":
                return Pieces("momenta", state.parts(self._momenta))
            case "start":
                if self._frozen is None:
                    raise BadFrame("start", "the recipe freezes nothing")
                return Pieces("start", state.parts(self._frozen))
        files = directory.files(self._recipe, self._theta, self._frozen, self._tokenizer)
        return [
            replace(piece, meta={**piece.meta, "name": name})
            for name, whole in files.items()
            for piece in pieces("model", whole)
        ]

    def _receive_late(self, frame: Tensors) -> Sequence[Tensors]:
        """A result of a round before, the weights of that round, or the question what it is worth."""
        match frame.edge:
            case "late":
                return self._late_result(frame)
            case "late.theta":
                self._late.take_theta(frame)
                return []
        return [self._judge_late(frame)]

    def _receive_step(self, frame: Tensors) -> Sequence[Tensors]:
        """An outer step: to be made here, or as another has made it."""
        match frame.edge:
            case "step":
                return [self._step(frame.seq, frame.meta.get("counted"))]
            case "bought":
                self._bought.feed(frame)
                return []
        return [self._check(frame)]

    def _receive_audit(self, frame: Tensors) -> Sequence[Tensors]:
        """Of an audit: what it needs, what a provider shows for it, or its beginning."""
        match frame.edge:
            case "holds":
                self._recalled = None
                held = self._result_of(frame) is not None
                return [Frame("held", 0, (), {"holds": held})]
            case "recall.theta" | "recall.update":
                return self._recall(frame)
            case "shown":
                self._show(frame)
                return []
        return [self._audit(frame)]

    def _show(self, frame: Tensors) -> None:
        """Keep a snapshot that is shown for the audit."""
        segment, most = number(frame, "segment"), 3 * self._recipe.state_bytes() + HEADER_BYTES
        whole = self._incoming.setdefault(f"shown.{segment}", IncomingBytes(most)).feed(frame)
        if whole is not None:
            self._shown[segment] = whole

    def _waiting(self, frame: Tensors) -> set[int]:
        """The shards whose results wait to be judged."""
        waiting = frame.meta.get("waiting")
        return set(map(int, waiting.split(","))) if isinstance(waiting, str) else set(self._results)

    def _restore(self, frame: Tensors) -> list[Tensors]:
        what = str(frame.meta["what"])
        expected = {name: tensor.shape for name, tensor in (self._theta if what == "theta" else self._momenta).items()}
        most = 3 * self._recipe.state_bytes() + HEADER_BYTES
        whole = self._incoming.setdefault(what, IncomingBytes(most)).feed(frame)
        if whole is not None:
            del self._incoming[what]
            tensors = state.unpack(whole, state.types({name: tuple(shape) for name, shape in expected.items()}))
            if what == "theta":
                self._theta = tensors
                self._round = number(frame, "round")
                self._held, self._norms = [self._loss(tensors)], []
                self._results.clear()
                self._late = LateResults(self._recipe)
                self._past = {number_: past for number_, past in self._past.items() if number_ < self._round}
                if not self._round:
                    self._momenta = outer_step.start(self._recipe.outer, tensors)
            else:
                self._momenta = tensors
        return []

    def _result(self, frame: Tensors) -> list[Tensors]:
        """Take a packed update; once it is whole, whether it is one at all. A malformed one is said, not raised."""
        index, steps, round_ = number(frame, "index"), number(frame, "steps"), number(frame, "round")
        most = compression.most_bytes(self._recipe.shapes(), self._recipe.compression)
        key = f"result.{index}"
        try:
            whole = self._incoming.setdefault(key, IncomingBytes(most)).feed(frame)
            if whole is None:
                return []
            del self._incoming[key]
            delta = carried_state.received(self._recipe, round_, whole)
        except NodewireError as error:
            self._incoming.pop(key, None)
            said: Meta = {"fine": False, "reason": f"{error.code}: {error}"[:200]}
            return [Frame("received", frame.seq, (), said)]
        self._results[index] = _Result(steps, delta, whole)
        return [Frame("received", frame.seq, (), {"fine": True, "reason": ""})]

    def _late_result(self, frame: Tensors) -> list[Tensors]:
        """As `_result`, of a round before."""
        said: Meta = {"fine": True, "reason": ""}
        try:
            if not self._late.feed(frame):
                return []
        except NodewireError as error:
            said = {"fine": False, "reason": f"{error.code}: {error}"[:200]}
        return [Frame("received", frame.seq, (), said)]

    def _judge_late(self, frame: Tensors) -> Tensors:
        """The judgement on a late result, beside what was accepted of its round as far as that is still known."""
        theta, late = self._late.to_judge(frame)
        others = {} if frame.meta.get("alone") else self._past.get(late.round, ({}, {}))[1]
        beside = {**others, late.index: _Result(late.steps, late.delta, late.packed)}
        judged = validation.judge(
            self._recipe,
            theta,
            [self._submission(late.round, index, beside[index], theta) for index in sorted(beside)],
            self._losses,
        )[late.index]
        doubted = harms = False
        if judged.is_doubted:
            if float(self._recipe.audit.fraction) and not self._is_at_once(judged):
                doubted, harms, judged = True, judged.threat != "none", validation.Judgement()
            else:
                judged = self._audited(late.round, late.index, judged, theta, beside[late.index])
        accepted = judged.outcome == "accept"
        if not accepted or frame.meta.get("alone"):  # it never counts
            self._late.drop(frame)
        return Frame("judged", 0, (), _verdict(late.index, judged, doubted, harms))

    def _judge(self, round_: int, waiting: set[int]) -> list[Tensors]:
        """The judgements on all results of the round; what was rejected of those that wait for it is forgotten.

        What was accepted before, beside others, counts.
        """
        judgements = validation.judge(
            self._recipe,
            self._theta,
            [self._submission(round_, index, self._results[index], self._theta) for index in sorted(self._results)],
            self._losses,
            history=self._held,
            norms=self._norms if self._recipe.compression.fragments == 1 else (),
            earlier=[result.delta for result in self._past.get(round_ - 1, ({}, {}))[1].values()],
        )
        said: list[Tensors] = []
        standing = [index for index, judgement in judgements.items() if judgement.outcome != "reject"]
        harm = Harm(lambda: self._losses(self._theta), lambda indices: self._losses_without(round_, standing, indices))
        for index, judgement in judgements.items():
            doubted = harms = False
            if judgement.is_doubted:
                if float(self._recipe.audit.fraction) and not self._is_at_once(judgement):
                    # Its provider will have to show more of it.
                    doubted, harms = True, judgement.threat != "none"
                    if judgement.threat == "possible" and index in standing:
                        harms = harm.is_worse(index, len(standing) > 1)
                    judgement = validation.Judgement(figures=judgement.figures)
                else:
                    judgement = self._audited(round_, index, judgement, self._theta, self._results[index])
            accepted = judgement.outcome == "accept"
            if not accepted and index in waiting:
                del self._results[index]
            elif "norm" in judgement.figures:
                self._results[index].norm = judgement.figures["norm"]
            said.append(Frame("judged", len(said), (), _verdict(index, judgement, doubted, harms)))
        return said

    def _losses_without(self, round_: int, standing: Sequence[int], indices: Collection[int]) -> Tensor:
        """Of the next weights, as they would be of the results that stand, but for some of these."""
        results = [
            (one.steps * self._recipe.batch, one.delta)
            for one in (self._results[index] for index in sorted(standing) if index not in indices)
        ]
        return self._losses(fragments.step(self._recipe, round_, self._theta, self._momenta, results)[0])

    def _is_at_once(self, judgement: validation.Judgement) -> bool:
        """Whether a result is not waited for to be audited.

        It is out of all proportion, and what its provider carries from round to round is nothing, so that the shard's
        round can be trained here.
        """
        return judgement.threat == "sure" and not self._recipe.compression.carries

    def _submission(self, round_: int, index: int, result: _Result, theta: State) -> validation.Submission:
        shard = self._shards[index]
        own = validation.own_samples(self._recipe, shard, round_, index, result.steps)
        return validation.Submission(
            index,
            result.steps,
            result.steps * self._recipe.batch,
            result.delta,
            lambda theta: self._trainer.losses(theta, own),
            lambda: segments.stands_still(self._trainer, theta, shard, round_, index, result.steps),
        )

    def _audited(
        self, round_: int, index: int, judgement: validation.Judgement, theta: State, result: _Result
    ) -> validation.Judgement:
        """Where looking at a result leaves doubt: the shard's round is trained here, and what comes out is compared."""
        update = self._trainer.train(theta, self._shards[index], round_, index, result.steps)
        packed, _ = compression.pack(update.delta, self._recipe.compression, None)
        if packed == result.packed:
            return validation.Judgement("accept", figures=judgement.figures)
        mine = compression.unpack(packed, self._recipe.shapes(), self._recipe.compression)
        off, way = distance(mine, result.delta), norm(mine)
        fine = off <= float(self._recipe.audit.tolerance) * way
        reason = "" if fine else f"{judgement.reason}; audit: other work"
        return validation.Judgement("accept" if fine else "reject", reason, judgement.figures)

    def _step(self, seq: int, counted: object) -> Tensors:
        results = self._results_of(seq, counted)
        theta, momenta = fragments.step(self._recipe, seq, self._theta, self._momenta, results)
        self._go_on(seq, theta, momenta, self._loss(theta))
        return Frame("stepped", seq, (), {"loss": micro(self._held[-1])})

    def _check(self, frame: Tensors) -> Tensors:
        """Take a step over that another has made, if it is right."""
        round_ = number(frame, "round")
        results = self._results_of(round_, frame.meta.get("counted"))
        said: Meta = {"fine": False, "reason": "", "loss": 0}
        try:
            theta, momenta, loss = self._bought.checked(
                round_, (self._theta, self._momenta), results, frame.meta, self._loss, self._held[-1]
            )
        except NodewireError as error:
            said = {**said, "reason": f"{error.code}: {error}"[:200]}
        else:
            self._go_on(round_, theta, momenta, loss)
            said = {**said, "fine": True, "loss": micro(loss)}
        return Frame("checked", 0, (), said)

    def _results_of(self, round_: int, counted: object) -> list[tuple[int, State]]:
        """Weights and deltas of what a step is made of."""
        which = counted.split(",") if isinstance(counted, str) else [f"{index}:" for index in sorted(self._results)]
        return [(weight, delta) for weight, delta in (self._counted(one, round_) for one in which) if weight]

    def _go_on(self, seq: int, theta: State, momenta: State, loss: float) -> None:
        """To the next round, with these weights."""
        before, self._theta, self._momenta = self._theta, theta, momenta
        self._round = seq + 1
        self._past[seq] = before, dict(self._results)
        self._past.pop(seq - self._kept_rounds, None)
        self._norms = [result.norm for result in self._results.values() if result.norm]
        self._results.clear()
        self._late.forget(seq)
        self._held.append(loss)

    def _counted(self, which: str, round_: int) -> tuple[int, State]:
        """Weight and delta of one result in the step of a round."""
        index, _, request = which.partition(":")
        if request:
            late = self._late.counted(request, int(index), round_)
            return self._recipe.weight(late.steps, 1), late.delta
        result = self._results.get(int(index))
        if result is None:
            raise BadInput("counted", f"shard {index} has no result here")
        return self._recipe.weight(result.steps), result.delta

    def _recall(self, frame: Tensors) -> list[Tensors]:
        round_, most = number(frame, "round"), 3 * self._recipe.state_bytes() + HEADER_BYTES
        whole = self._incoming.setdefault(frame.edge, IncomingBytes(most)).feed(frame)
        if whole is None:
            return []
        shapes = self._recipe.shapes()
        if frame.edge == "recall.theta":
            self._recalled = round_, state.unpack(whole, state.types(shapes), field="theta"), {}
        elif self._recalled is None or self._recalled[0] != round_:
            raise BadFrame(frame.edge, "its round's theta comes first")
        else:
            delta = carried_state.received(self._recipe, round_, whole)
            self._recalled[2][number(frame, "index")] = _Result(number(frame, "steps"), delta, whole)
        return []

    def _audit(self, frame: Tensors) -> Tensors:
        """Compute the drawn segments again from what was shown, and compare."""
        round_, index = number(frame, "round"), number(frame, "index")
        found = self._result_of(frame)
        states, shown = frame.meta["states"], self._shown
        self._shown = {}
        if found is None or not isinstance(states, bytes):
            raise BadInput("audit", "of a result that is not here")
        theta, result = found
        claim = segments.Claim(
            round=round_,
            index=index,
            states=tuple(states[at : at + 32] for at in range(0, len(states), 32)),
            carried=digest(frame, "carried"),
        )
        judgement = validation.Judgement()
        shard = self._shards[index]
        for segment in map(int, str(frame.meta["drawn"]).split(",")):
            try:
                begun = self._begun(frame, shown.get(len(claim.states)))
                inputs = segments.RoundInputs(theta, shard, result.steps, begun)
                off = segments.recomputed(self._trainer, claim, inputs, segment, shown.get, result.packed)
            except NodewireError as error:
                judgement = validation.malformed(error)
            else:
                judgement = validation.by_audit(self._recipe, off)
            if judgement.outcome != "accept":
                break
        self._recalled = None
        accepted = judgement.outcome == "accept"
        return Frame("audited", 0, (), {"accepted": accepted, "reason": judgement.reason[:200]})

    def _begun(self, frame: Tensors, shown: bytes | None) -> CarriedState | None:
        """What a provider has carried into its round, as it shows it. Raises Withheld, BadHash, BadUpdate, TooLarge."""
        if not self._recipe.compression.carries:
            return None
        committed = digest(frame, "begun") or NOTHING
        begun = carried_state.shown(shown, self._recipe, committed)
        before = None if frame.meta.get("alone") else self._past.get(number(frame, "round") - 1)
        update = before[1].get(number(frame, "index")) if before is not None else None
        if update is not None:
            carried_state.check_residual(begun, update.packed, self._recipe)
        return begun

    def _result_of(self, frame: Tensors) -> tuple[State, _Result] | None:
        """What a round began with and one result of it; None if this worker has forgotten it, or has another."""
        round_, index, update = number(frame, "round"), number(frame, "index"), frame.meta["update"]
        kept = [(self._round, self._theta, self._results), *((n, *past) for n, past in self._past.items())]
        if self._recalled is not None:
            kept.insert(0, self._recalled)
        for known, theta, results in kept:
            found = results.get(index) if known == round_ else None
            if found is not None and hashlib.sha256(found.packed).hexdigest() == update:
                return theta, found
        return None

    def _losses(self, theta: State) -> Tensor:
        return self._trainer.losses(theta, self._measured)

    def _loss(self, theta: State) -> float:
        return self._trainer.loss(theta, self._measured)


def _verdict(index: int, judgement: validation.Judgement, doubted: bool, harms: bool) -> Meta:
    return {
        "index": index,
        "accepted": judgement.outcome == "accept",
        "reason": judgement.reason[:200],
        "doubted": doubted,
        "harms": harms,
    }


@dataclass(slots=True)
class _Result:
    """An update that came; `norm` once it was judged."""

    steps: int
    delta: State
    packed: bytes
    norm: float = 0.0
