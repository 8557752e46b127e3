"""What a decoder needs at a memory target: into how many tasks it falls, and what to change where one is too large."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from nodewire.kind import Fit
from nodewire.llm.programs import memory_estimate
from nodewire.llm.programs.cuts import even_cuts, filled
from nodewire.llm.spec.parameters import BOTH, NEITHER, Ends
from nodewire.protocol.model.kv_pages import pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.llm.programs.memory_estimate import Footprint
    from nodewire.llm.spec.config import DecoderConfig

BLOCK = 64
"""Positions of a prompt that a stage computes at once: its working memory, and shapes that all providers share."""
_LEAST_CONTEXT = 1_024
"""A shorter one is not proposed."""
_TARGETS = tuple(size * 10**9 for size in (4, 6, 8, 12, 16, 24))
"""For cards of 1 to 2 GB more: CUDA's context, captured steps and a driver have their place there, too."""


@dataclass(frozen=True)
class Needs:
    """A decoder as a registration has it: `slots` sessions of `positions`; `lend` as `split_decoder` has it."""

    config: DecoderConfig
    slots: int
    positions: int
    dtype: Literal["float32", "bfloat16"]
    kv: Literal["int8"] | None
    lend: bool
    tokenizer_bytes: int

    @cached_property
    def driver(self) -> Footprint:
        return memory_estimate.driver(
            self.config,
            positions=self.positions,
            dtype=self.dtype,
            tokenizer_bytes=self.tokenizer_bytes,
            ends=NEITHER if self.lend else BOTH,
        )

    def ends(self, first: int, last: int) -> Ends:
        return Ends(self.lend and first == 0, self.lend and last == self.config.num_hidden_layers)

    def stage(self, first: int, last: int) -> Footprint:
        return memory_estimate.stage(
            self.config,
            first,
            last,
            memory_estimate.LaneSpec(self.slots, self.positions, BLOCK, self.dtype, self.kv),
            self.ends(first, last),
        )

    def slot_bytes(self, layers: int) -> int:
        """Of one session more in a stage of so many layers."""
        return pages_of(self.positions) * memory_estimate.page_bytes(self.config, layers, dtype=self.dtype, kv=self.kv)

    @cached_property
    def least(self) -> int:
        """The smallest target that holds the driver, and each layer alone."""
        layers = range(self.config.num_hidden_layers)
        return max(self.driver.total, *(self.stage(layer, layer + 1).total for layer in layers))

    def change(self, target_bytes: int) -> str:
        """What of a registration to change so that tasks of this target are enough, the least that is found.

        Empty where nothing does it.
        """
        return next((said for said, one in self._changed() if one.least <= target_bytes), "")

    def _changed(self) -> Iterator[tuple[str, Needs]]:
        """Changes by the options that say so, then two of these.

        They are shorter contexts, fewer sessions, narrower numbers, lent ends.
        """
        contexts = [(f"--context {n}", replace(self, positions=n)) for n in _halves(self.positions)]
        yield from contexts
        yield from ((f"--sessions {n}", replace(self, slots=n)) for n in range(self.slots - 1, 0, -1))
        ways = []
        if self.dtype == "bfloat16" and self.kv is None:
            ways.append(("--kv int8", replace(self, kv="int8")))
        if not self.lend:
            ways.append(("--lend", replace(self, lend=True)))
        if self.dtype == "float32":
            ways.append(("--dtype bfloat16", replace(self, dtype="bfloat16")))
        yield from ways
        for said, one in ways:
            yield from ((f"{said} --context {n}", replace(one, positions=n)) for n in _halves(self.positions))

    def fits(self, *targets: int) -> tuple[Fit, ...]:
        """At each target, and at those for cards that people have."""
        return tuple(self._fit(target) for target in sorted({*targets, *_TARGETS}))

    def _fit(self, target: int) -> Fit:
        if self.least > target:
            return Fit(target, self.positions, self.slots, change=self.change(target))
        layers = self.config.num_hidden_layers
        cuts = filled(layers, target, self.stage)
        even = even_cuts(layers, len(cuts))
        cuts = even if all(self.stage(*cut).total <= target for cut in even) else cuts
        more = min((target - self.stage(*cut).total) // self.slot_bytes(cut[1] - cut[0]) for cut in cuts)
        return Fit(target, self.positions, self.slots + more, tasks=1 + len(cuts))


def _halves(positions: int) -> list[int]:
    """The powers of two below."""
    most = (positions - 1).bit_length() - 1
    return [1 << n for n in range(most, _LEAST_CONTEXT.bit_length() - 2, -1)]
