"""What a provider that follows demand should hold next: where the market is served worst, but without running about.

The rule is Petals' (`petals`), over the tasks of several manifests that differ in size. A task's service is the sum
over its live holders of what each makes in a second, times the part of it that is idle. A window is a run of
neighbouring tasks of one manifest that fits into memory and cannot be longer. The provider takes the window whose
services, sorted, are lexicographically least; of equals the longest, then the first.

It moves on only if all of this holds: it has rested for `rest` epochs; no task would be left without a holder; if it
went, and after it everybody else who would gain (the ripple), the worst served task would be served better by more
than `quality` says; and that was so in each of the last `patience` epochs. What a snapshot certifies is all that is
read, so that nodes come to the same view; the order of the ripple is drawn from the generator that is handed in.

Those who hold the same task may all want to leave it at once. So they take turns (`may_leave`): in each block of four
epochs, long enough for who left to be certified to have left, at most half of a task's holders may, drawn by the block.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING

from nodewire.plan.place.baselines.petals import BALANCE_QUALITY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from random import Random

    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.model.manifest import Manifest

LEAVE_EPOCHS = 4
"""A block's; who may leave in it does so in its first half."""
_EPSILON = 1e-9
"""So much more than a rate is taken away, for where one comes from to win a draw. Holders' rates are worlds apart."""
_MOST_WINDOWS = 4_096
_ROUNDS = 10
_MOST_LOOKS = 4_000_000
"""Services that the ripple may look at, however many nodes and tasks strangers announce: whoever's turn comes after
that stays where it is."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tasks `first` to before `end`, in the manifest's order."""

    manifest: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Model:
    """A manifest as far as it counts here: by task, bytes, and microseconds for a position on the provider itself."""

    digest: str
    tasks: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    us: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """Another live node: what it holds, by manifest and number of the task, and what it makes of it in a second."""

    pubkey: str
    served: Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class Settings:
    """Epochs of rest after a move and of patience before one; below which part of the next balance to move."""

    rest: int = 60
    patience: int = 6
    quality: float = BALANCE_QUALITY


@dataclass(frozen=True, slots=True)
class FollowState:
    """What is held since which epoch; for how many epochs in a row it has been better to hold something else."""

    held: Window | None = None
    since: int = 0
    wanted: int = 0
    epoch: int = -1


def holders(snapshot: Snapshot, models: Sequence[Model], own: str) -> tuple[Holder, ...]:
    """The certified nodes other than `own` that hold something of these models."""
    numbers = {model.digest: {name: number for number, name in enumerate(model.tasks)} for model in models}
    found = []
    for node in snapshot.nodes:
        if node.pubkey == own:
            continue
        idle = 1 - node.load_ppm / 1_000_000
        served = {
            (held.manifest, numbers[held.manifest][task.task]): idle * 1_000_000 / task.us_per_position
            for held in node.held
            if held.manifest in numbers and held.free
            for task in held.tasks
            if task.task in numbers[held.manifest]
        }
        if served:
            found.append(Holder(node.pubkey, served))
    return tuple(found)


def unheld(snapshot: Snapshot, own: str, digest: str, tasks: Collection[str]) -> set[str]:
    """Which of these tasks nobody but `own` is certified to hold with a free slot."""
    return {task for task, holders in _by_task(snapshot, own, digest, tasks).items() if not holders}


def may_leave(snapshot: Snapshot, own: str, digest: str, tasks: Collection[str]) -> bool:
    """Whether `own` may stop offering these tasks of a manifest now: others hold each of them, and it is its turn."""
    block, offset = divmod(snapshot.epoch, LEAVE_EPOCHS)
    if 2 * offset >= LEAVE_EPOCHS:
        return False

    def drawn(pubkey: str) -> bytes:
        return sha256(f"{block} {pubkey}".encode()).digest()

    for holders in _by_task(snapshot, own, digest, tasks).values():
        before = sum(drawn(pubkey) < drawn(own) for pubkey in holders)
        if before >= (len(holders) + 1) // 2:
            return False
    return True


def _by_task(snapshot: Snapshot, own: str, digest: str, tasks: Collection[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {task: set() for task in tasks}
    for node in snapshot.nodes:
        for held in node.held if node.pubkey != own else ():
            for offer in held.tasks if held.manifest == digest and held.free else ():
                if offer.task in found:
                    found[offer.task].add(node.pubkey)
    return found


def model(manifest: Manifest, us: Mapping[str, int]) -> Model:
    """A manifest's tasks with the provider's own times; those without one (a driver, say) are not for it to follow."""
    tasks = [task for task in manifest.tasks if task.name in us]
    return Model(
        manifest.digest(),
        tuple(task.name for task in tasks),
        tuple(task.memory_bytes for task in tasks),
        tuple(max(1, us[task.name]) for task in tasks),
    )


def follow(
    models: Sequence[Model],
    others: Sequence[Holder],
    memory_bytes: int,
    state: FollowState,
    epoch: int,
    chance: Random,
    settings: Settings = Settings(),
) -> FollowState:
    """What to hold from `epoch` on. Called again for an epoch that it has seen, it changes nothing.

    `state.held` None: nothing is held yet, and the neediest window is taken at once; still None afterwards: none fits.
    """
    if epoch <= state.epoch:
        return state
    market = _Market(models, others)
    every = [window for one in models for window in market.windows(one.digest, memory_bytes)][:_MOST_WINDOWS]
    state = replace(state, epoch=epoch)
    if state.held is not None and not market.fits(state.held, memory_bytes):  # its manifest is gone, or the memory
        state = replace(state, held=None)
    if state.held is None:
        best = market.neediest(every)
        return state if best is None else FollowState(best, since=epoch, epoch=epoch)
    better = market.better(state.held, every, chance, settings.quality)
    wanted = state.wanted + 1 if better is not None else 0
    if better is None or wanted < settings.patience or epoch - state.since < settings.rest:
        return replace(state, wanted=wanted)
    return FollowState(better, since=epoch, epoch=epoch)


class _Market:
    def __init__(self, models: Sequence[Model], others: Sequence[Holder]) -> None:
        self.models = {model.digest: model for model in models}
        self.order = [model.digest for model in models]
        self.service = {(m.digest, number): 0.0 for m in models for number in range(len(m.tasks))}
        self.others = {holder.pubkey: dict(holder.served) for holder in others}
        for served in self.others.values():
            self.add(served, 1.0)

    def add(self, served: Mapping[tuple[str, int], float], times: float) -> None:
        for key, rate in served.items():
            self.service[key] += times * rate

    def own(self, window: Window) -> dict[tuple[str, int], float]:
        """What the provider makes of a window: its time goes round all of its tasks."""
        model = self.models[window.manifest]
        total = sum(model.us[window.first : window.end])
        return {(window.manifest, number): 1_000_000 / total for number in range(window.first, window.end)}

    def fits(self, window: Window, memory_bytes: int) -> bool:
        model = self.models.get(window.manifest)
        if model is None or not 0 <= window.first < window.end <= len(model.tasks):
            return False
        return sum(model.memory_bytes[window.first : window.end]) <= memory_bytes

    def windows(self, digest: str, memory_bytes: int) -> list[Window]:
        """Those that fit and are in no other that does."""
        sums = [0, *accumulate(self.models[digest].memory_bytes)]
        found: list[Window] = []
        for first in range(len(sums) - 1):
            end = bisect_right(sums, sums[first] + memory_bytes) - 1
            if end > first and (not found or end > found[-1].end):
                found.append(Window(digest, first, end))
        return found

    def neediest(self, windows: Iterable[Window]) -> Window | None:
        def need(window: Window) -> tuple[list[float], int, int, int]:
            numbers = range(window.first, window.end)
            services = sorted(self.service[window.manifest, number] for number in numbers)
            return services, -len(numbers), self.order.index(window.manifest), window.first

        return min(windows, key=need, default=None)

    def least(self) -> float:
        return min(self.service.values())

    def better(self, held: Window, windows: Sequence[Window], chance: Random, quality: float) -> Window | None:
        """Where to go, if the market gained by it after everybody else had moved on; nothing is changed in others."""
        own = self.own(held)
        self.add(own, 1.0)
        before = self.least()
        self.add(own, -1 - _EPSILON)
        leaves_hole = any(self.service[key] <= _EPSILON * rate for key, rate in own.items())
        best = None if leaves_hole else self.neediest(windows)
        if best is None or best == held:
            return None
        self.add(own, _EPSILON)
        self.add(self.own(best), 1.0)
        self._ripple(chance)
        after = self.least()
        return best if after > before and before < quality * after else None

    def _ripple(self, chance: Random) -> None:
        """Everybody else goes where it is needed most, with as many tasks as it holds, until nobody moves."""
        order, left = sorted(self.others), _MOST_LOOKS
        for _ in range(_ROUNDS):
            chance.shuffle(order)
            moved = False
            for pubkey in order:
                served = self.others[pubkey]
                size, numbers = len(served), [number for _, number in served]
                if len({manifest for manifest, _ in served}) != 1 or max(numbers) - min(numbers) >= size:
                    continue  # no window: chosen by its operator, who will leave it so
                ((manifest, _), rate) = next(iter(served.items()))
                starts = range(len(self.models[manifest].tasks) - size + 1)
                left -= len(starts) * size
                if left < 0:
                    return
                self.add(served, -1 - _EPSILON)
                first = min(starts, key=lambda at: (sorted(self.service[manifest, at + i] for i in range(size)), at))
                self.add(served, _EPSILON)
                rates = sorted(served.values())
                new = {(manifest, first + i): rates[i] if size == len(rates) else rate for i in range(size)}
                moved |= set(new) != set(served)
                self.others[pubkey] = new if set(new) != set(served) else served
                self.add(self.others[pubkey], 1.0)
            if not moved:
                return
