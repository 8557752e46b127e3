"""A session that is written down frame by frame, and its driver's part computed again as who judges it does."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field

from nodewire.llm.tokens import sampler as module
from nodewire.protocol.model import token_list
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import Ring, prompt_frame


@dataclass
class Transcript:
    """What the driver took, and what it put out."""

    took: list[Frame] = field(default_factory=list)
    gave: list[Frame] = field(default_factory=list)

    @property
    def tokens(self) -> dict[int, int]:
        return tokens_of(self.gave)


def tokens_of(frames) -> dict[int, int]:
    return {frame.seq: int(frame.tensors[0][0]) for frame in frames if frame.edge == "tokens"}


def excused_in(frames) -> set[int]:
    return {frame.seq for frame in frames if frame.meta.get(token_list.EXCUSED) is True}


def recorded(ring: Ring, prompt, **params) -> Transcript:
    found, queue = Transcript(), deque([prompt_frame(prompt)])
    ring.open("recorded", **params)
    try:
        while queue:
            frame = queue.popleft()
            if ring.target[frame.edge] == CUSTOMER:
                continue
            outs = ring.step("recorded", frame)
            if ring.target[frame.edge] == "driver":
                found.took.append(frame)
                found.gave += outs
            queue.extend(outs)
    finally:
        ring.close("recorded")
    return found


def judged(ring: Ring, took, said, beside=None, **params) -> list[Frame]:
    """What the driver puts out that is given the tokens that were said, as far as it excuses them."""
    params |= {token_list.SAID: token_list.pack(said)}
    params |= {token_list.BESIDE: token_list.pack(beside)} if beside is not None else {}
    driver = ring.actors["driver"]
    driver.open("judged", params)
    try:
        return [out for frame in took for out in driver.receive("judged", frame)]
    finally:
        driver.close("judged")


@contextmanager
def choosing(choose):
    """A driver's faulty software: `choose(honest, logits, sampling, pos)` in place of the choice."""
    honest = module.choose
    module.choose = lambda logits, sampling, pos: choose(honest, logits, sampling, pos)
    try:
        yield
    finally:
        module.choose = honest
