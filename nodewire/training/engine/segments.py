"""Any part of a round's work computed again: how far it is from what was claimed. nips/33-training-audits.md.

What a provider commits to before anybody's update is shown is `training.protocol.result`'s to say; which segments are
computed again is drawn when the round is closed (`training.protocol.round_close`). Of a drawn segment the provider
shows the snapshots at both ends; who audits trains from the first one and compares. Equal profiles give equal bits;
between unlike machines the distance counts, as a share of the segment's own way. Where something is carried, the last
segment is always drawn: with it packing and what is carried on are computed again, so what a round begins with has been
checked in the round before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadData, BadHash, BadInput, BadUpdate, Withheld
from nodewire.training.engine import state
from nodewire.training.engine.inner_loop import Snapshot, Trainer
from nodewire.training.engine.sums import distance, norm
from nodewire.training.engine.update import carried_state as carried

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.training.engine.data import Shard
    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.carried_state import CarriedState
    from nodewire.training.protocol.recipe import Recipe

LINEAR = frozenset({"momentum", "first"})
"""The moments that are sums of gradients, and move theta."""
CHARGED = 1e-4
"""The least that a segment adds to such a moment, as a share of what it replaces; honest ones are .04 and more."""
SWOLLEN = 10.0
"""So many times as long as here may a moment be on another machine, where both are next to nothing."""
STRAYED = 4.0
"""The farthest that a round goes from its beginning, in lengths of its update (with topk, of a part of it: 16)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a provider has committed to, as far as computing it again needs it."""

    round: int
    index: int
    """Of the shard."""
    states: tuple[bytes, ...]
    """The snapshots' digests, one per segment."""
    carried: bytes | None = None
    """The digest of what is carried on; None in recipes that carry nothing."""


@dataclass(frozen=True, slots=True)
class RoundInputs:
    """What a provider was given for a shard's round."""

    theta: State
    """What everybody had at the round's beginning."""
    shard: Shard
    steps: int
    """Of the whole round."""
    begun: CarriedState | None = None
    """What the provider carried into the round (`carried_state.shown`)."""


def count(recipe: Recipe, steps: int) -> int:
    """Segments of a round of so many steps; the last one may be shorter."""
    return -(-steps // recipe.audit.segment)


def show(snapshot: Snapshot) -> bytes:
    """A snapshot as bytes."""
    return state.pack(named(snapshot))


def shown(data: bytes, like: Snapshot, step: int, digest: bytes) -> Snapshot:
    """The snapshot after `step` steps in bytes, of the names and shapes of `like` (`Trainer.beginning`).

    Raises:
        TooLarge, BadUpdate: it is not one of this recipe, or a number in it is not finite.
        BadHash: it is not the one that was committed to.

    """
    expected = {name: (torch.float32, tuple(tensor.shape)) for name, tensor in named(like).items()}
    try:
        tensors = state.unpack(data, expected, field="snapshot")
    except BadData as error:
        raise BadUpdate(error.field, error.reason) from error
    for name, tensor in tensors.items():
        if not state.is_finite(tensor):
            raise BadUpdate(f"snapshot.{name}", "a number is not finite")
    theta = {name: tensors[name] for name in like.theta}
    found = Snapshot(step, theta, {name: tensors[_MOMENTS + name] for name in like.moments})
    if found.digest() != digest:
        raise BadHash("snapshot", "not the one that was committed to")
    return found


def recomputed(
    trainer: Trainer,
    claim: Claim,
    inputs: RoundInputs,
    segment: int,
    reveal: Callable[[int], bytes | None],
    packed: bytes,
) -> float:
    """How far a claimed segment is from what comes out here: 0 where bits agree, about 1 where nothing was done.

    The last segment is followed by the packing, which is compared like a state.

    Args:
        trainer: computes the segment again; it has the round's recipe.
        claim: what the provider has committed to.
        inputs: what the provider was given for its round.
        segment: counted from 0.
        reveal: the bytes (`show`) of snapshot number i as its provider sends them; asked only for those that are
            needed, which on equal machines is the one before the segment.
        packed: the update as it was delivered.

    Raises:
        Withheld: the provider does not show a snapshot.
        TooLarge, BadUpdate, BadHash: what it shows is none, or not what it has committed to.

    """
    if not 0 <= segment < len(claim.states):
        raise BadInput("segment", f"{segment} of {len(claim.states)}")
    recipe, last = trainer.recipe, len(claim.states) - 1
    theta, shard, steps = inputs.theta, inputs.shard, inputs.steps
    beginning, every = trainer.beginning(carried.start_of_round(theta, inputs.begun)), recipe.audit.segment

    def theirs(i: int) -> Snapshot:
        data = reveal(i)
        if data is None:
            raise Withheld("snapshot", f"{i} is not shown")
        return shown(data, beginning, min((i + 1) * every, steps), claim.states[i])

    start = theirs(segment - 1) if segment else beginning
    mine = trainer.segment(start, shard, claim.round, claim.index, min(every, steps - start.step))
    end = mine if mine.digest() == claim.states[segment] else theirs(segment)
    if recipe.compression.fragments > 1:  # an update is of a part, and of more rounds than this one
        way = distance((end if segment == last else theirs(last)).theta, beginning.theta)
    else:
        way = norm(carried.received(recipe, claim.round, packed))
    off = 0.0
    if is_charged(recipe, start, mine) or has_strayed(recipe, beginning.theta, start, way):
        off = reached(trainer, claim, shard, beginning, start)
    if end is not mine:
        off = max(off, apart(recipe, start, mine, end))
    if segment == last:
        off = max(off, packing_off(recipe, claim, theta, end, packed, inputs.begun))
    return off


def stands_still(trainer: Trainer, theta: State, shard: Shard, round: int, index: int, steps: int) -> bool:
    """Whether a round's first segment moves nothing: so it is with a model that knows its samples by heart.

    Never, as far as can be known here, where something is carried into rounds.
    """
    recipe = trainer.recipe
    if recipe.compression.carries:
        return False
    update = trainer.train(theta, shard, round, index, min(steps, recipe.audit.segment))
    packed, _ = carried.send(recipe, round, update.delta, None)
    return not norm(carried.received(recipe, round, packed))


def apart(recipe: Recipe, start: Snapshot, mine: Snapshot, theirs: Snapshot) -> float:
    """How far two ends of a segment are apart: the largest share, of theta's way and of what each moment took in."""
    shares = [_share(distance(mine.theta, theirs.theta), distance(start.theta, mine.theta))]
    for name, moment in mine.moments.items():
        taken = norm({name: _taken(recipe, name, start, mine)})
        shares.append(_share(distance({name: moment}, {name: theirs.moments[name]}), taken))
    return max(shares)


def is_charged(recipe: Recipe, start: Snapshot, mine: Snapshot) -> bool:
    """Whether the moments that were shown are so large that a segment's gradients vanish beside them.

    With such moments a single wrong snapshot would do for a round: they drive theta anywhere, whatever the gradients.
    But gradients vanish by themselves, too, where a model knows its samples by heart.
    """
    for name in LINEAR & start.moments.keys():
        held, taken = norm({name: start.moments[name]}), norm({name: _taken(recipe, name, start, mine)})
        kept = _decay(recipe, name) ** (mine.step - start.step)
        if not taken >= CHARGED * (1 - kept) * held:
            return True
    return False


def has_strayed(recipe: Recipe, beginning: State, start: Snapshot, way: float) -> bool:
    """Whether a snapshot that was shown is much farther from the round's beginning than its end is.

    Otherwise two wrong snapshots would do: away to where gradients are nothing, and back.

    Args:
        recipe: its compression says how much of a way an update is.
        beginning: theta of the round's beginning.
        start: the snapshot that was shown.
        way: how long the round's own way is: with fragments from its beginning to its end, else the update's length.

    """
    most = STRAYED * way * (4 if recipe.compression.method == "topk" else 1)
    return not distance(start.theta, beginning) <= most


def reached(trainer: Trainer, claim: Claim, shard: Shard, beginning: Snapshot, start: Snapshot) -> float:
    """How far a snapshot that looks wrong is from where all the steps up to it lead here, as a share of that way.

    Infinite if its moments are of another size than they are here: they are what is doubted.
    """
    if start.step == beginning.step:
        return 0.0
    mine = trainer.segment(beginning, shard, claim.round, claim.index, start.step)
    if mine.digest() == start.digest():
        return 0.0
    for name in LINEAR & start.moments.keys():
        if not norm({name: start.moments[name]}) <= SWOLLEN * norm({name: mine.moments[name]}):
            return math.inf
    return _share(distance(mine.theta, start.theta), distance(mine.theta, beginning.theta))


def _taken(recipe: Recipe, name: str, start: Snapshot, end: Snapshot) -> Tensor:
    """What a moment took in of a segment's gradients: its end without what was left of its start."""
    return end.moments[name] - _decay(recipe, name) ** (end.step - start.step) * start.moments[name]


def _decay(recipe: Recipe, name: str) -> float:
    """The share of a moment that a step leaves of it."""
    inner = recipe.inner
    return {"momentum": float(inner.momentum), "first": float(inner.betas[0]), "second": float(inner.betas[1])}[name]


def packing_off(
    recipe: Recipe, claim: Claim, theta: State, end: Snapshot, packed: bytes, begun: CarriedState | None = None
) -> float:
    """How far a delivered update is from what packing makes of its own last snapshot, as a share of that.

    Infinite if what is carried on is not what is left of both: it follows from them bit by bit on every machine.
    """
    delta = carried.moved(theta, end.theta)
    mine, after = carried.send(recipe, claim.round, delta, begun)
    off = 0.0
    if mine != packed:
        one, other = (carried.received(recipe, claim.round, data) for data in (mine, packed))
        off = _share(distance(one, other), norm(one))
        after = carried.carry_over(recipe, claim.round, delta, begun, packed)
    if claim.carried is not None and carried.digest(carried.packed(after)) != claim.carried:
        return math.inf
    return off


_MOMENTS = "moments."


def named(snapshot: Snapshot) -> State:
    """The tensors of a snapshot's bytes."""
    return {**snapshot.theta, **{_MOMENTS + name: moment for name, moment in snapshot.moments.items()}}


def _share(off: float, way: float) -> float:
    """The share off / way, where no way at all is only matched by none."""
    share = off / way if way else (0.0 if off == 0 else math.inf)
    return math.inf if math.isnan(share) else share
