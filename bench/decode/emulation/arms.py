"""What `bench.decode` compares on one ring: drivers without I/O, from plain decoding to Shard's algorithm.

A driver begins with `start`, gives the next frames for each that comes back (`returned`), and has in `tokens` what is
decided so far: the decoder's first token, which all begin with, and what followed.

Drafting takes no time, in any of them.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from bench.decode.emulation.cells import Back, Sent
from bench.decode.emulation.truth import Scripted


class Driver(Protocol):
    tokens: list[int]

    def start(self, now_ms: float) -> list[Sent]: ...

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        """Frames come back in the order in which they were sent."""


class Plain:
    """One row around the ring for every token."""

    def __init__(self, begin: Scripted) -> None:
        self.tokens = [begin.token]

    def start(self, now_ms: float) -> list[Sent]:
        pos = len(self.tokens) - 1
        return [Sent(pos, pos, (self.tokens[-1],))]

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        self.tokens.append(back.tokens[0])
        return self.start(now_ms)


def chunk(tail: Scripted, k: int) -> list[Scripted]:
    """`tail` and the k likeliest tokens after it, one after the other."""
    nodes = [tail]
    for _ in range(k):
        nodes.append(nodes[-1].then(nodes[-1].guesses[0][0]))
    return nodes


class Synchronous:
    """Drafts `k` tokens, verifies them in one turn, then drafts again: the tokens that agree count, and one more."""

    def __init__(self, begin: Scripted, k: int) -> None:
        self.tokens = [begin.token]
        self._k, self._seq = k, -1
        self._nodes = [begin]

    def start(self, now_ms: float) -> list[Sent]:
        self._nodes = chunk(self._nodes[-1], self._k)
        self._seq += 1
        return [Sent(self._seq, self._nodes[0].pos, tuple(node.token for node in self._nodes))]

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        agreed = 0
        while agreed < self._k and back.tokens[agreed] == self._nodes[agreed + 1].token:
            agreed += 1
        self.tokens += back.tokens[: agreed + 1]
        self._nodes = [self._nodes[agreed].then(back.tokens[agreed])]
        return self.start(now_ms)


class Overlapping:
    """Shard's algorithm (leyten/shard, research/glm_swarm_nvfp4_pipe.py; field notes, section 3).

    `depth` chunks [tail, d1 .. dk] are in flight; the next one's tail is the last one's dk, so chunks overlap by a
    position. The first token that differs is corrected, what is still in flight is stale (counted, and passed over as
    it comes back), and the drafter starts again after the correction. Of a chunk that agrees wholly the k drafts
    count; what follows dk is the next chunk's business. Stages compute stale chunks like others.
    """

    def __init__(self, begin: Scripted, k: int, depth: int) -> None:
        self.tokens = [begin.token]
        self._tip, self._k, self._depth = begin, k, depth
        self._inflight: deque[list[Scripted]] = deque()
        self._discard = 0
        self._seq = 0

    def start(self, now_ms: float) -> list[Sent]:
        sent = []
        while len(self._inflight) < self._depth:
            nodes = chunk(self._tip, self._k)
            self._tip = nodes[-1]
            self._inflight.append(nodes)
            sent.append(Sent(self._seq, nodes[0].pos, tuple(node.token for node in nodes)))
            self._seq += 1
        return sent

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        if self._discard:
            self._discard -= 1
            return []
        nodes = self._inflight.popleft()
        for node, draft, token in zip(nodes, nodes[1:], back.tokens, strict=False):
            self.tokens.append(token)
            if token != draft.token:
                self._discard = len(self._inflight)
                self._inflight.clear()
                self._tip = node.then(token)
                break
        return self.start(now_ms)


class Prompt:
    """A prompt that enters in frames of `block` rows, one behind the other; and again, when it is through."""

    def __init__(self, tokens: int, block: int) -> None:
        self.tokens = [0]
        self._size, self._block = tokens, block
        self._seq = self._left = 0

    def start(self, now_ms: float) -> list[Sent]:
        sent = []
        for pos in range(0, self._size, self._block):
            rows = min(self._block, self._size - pos)
            sent.append(Sent(self._seq, pos, (0,) * rows))
            self._seq += 1
        self._left = len(sent)
        return sent

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        self._left -= 1
        if self._left:
            return []
        self.tokens.append(back.tokens[-1])
        return self.start(now_ms)
