"""Speculation in flight over a tree: frames of the likeliest tokens that have not been sent, whoever their parents are.

The root is the last decided token. What comes back of it decides the next one; if that one is in the tree it is the
root, with what has been sent of its descendants, and all else is void. A frame that comes back lets the next one go, so
`window` frames are in flight; after a token that was not in the tree those before it do not count.

With `width` 1 and `branches` 1 it is a chain, token by token.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from math import log

from bench.decoding.cells import Back, Sent, descendants
from bench.decoding.truth import Scripted


class _Node:
    """A place in the tree; its children are those that were sent, or decided."""

    __slots__ = ("cell", "children", "draft", "loss", "parent")

    def __init__(self, draft: Scripted, parent: _Node | None, loss: float) -> None:
        self.draft, self.parent, self.loss = draft, parent, loss
        self.children: dict[int, _Node] = {}
        self.cell: int | None = None
        """Its number among the live ones; None before it is sent and after it is kept or void."""


class Tree:
    """A Driver (bench.decoding.arms). `least`: how likely a row must be to get a place, the root excepted."""

    def __init__(self, begin: Scripted, width: int, window: int, branches: int = 5, least: float = 0.0) -> None:
        self.tokens = [begin.token]
        self._width, self._window, self._branches = width, window, branches
        self._most_loss = -log(least) if least else float("inf")
        self._root = _Node(begin, None, 0.0)
        self._number = count()
        self._waiting: list[tuple[float, int, _Node, int]] = []
        """How unlikely, in nats, and which guess after which node: what is likelier than all that could follow it."""
        self._sent: deque[list[_Node]] = deque()
        self._stale = 0
        self._live: list[_Node] = []
        self._keep: list[_Node] = []
        self._run = self._seq = self._epoch = 0

    def start(self, now_ms: float) -> list[Sent]:
        frames = []
        while len(self._sent) - self._stale < self._window and (nodes := self._likeliest()):
            frames.append(self._frame(nodes))
        return frames

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        nodes = self._sent.popleft()
        self._stale = max(0, self._stale - 1)
        for node, token in zip(nodes, back.tokens, strict=False):
            if node is self._root:
                self._decide(token)
        return self.start(now_ms)

    def _decide(self, token: int) -> None:
        node = self._root
        self.tokens.append(token)
        self._keep.append(node)
        child = node.children.get(token)
        if child is None:  # nothing that is under way follows it
            child = _Node(node.draft.then(token), node, node.loss)
            node.children[token] = child
            self._waiting.clear()
            self._stale = len(self._sent)
            self._epoch += 1
        self._root = child

    def _wait(self, node: _Node, rank: int, before: float) -> None:
        """Let the guess `rank` after a node wait for its turn."""
        guesses = node.draft.guesses
        if rank < min(self._branches, len(guesses)) and (chance := guesses[rank][1]) > 0:
            heapq.heappush(self._waiting, (before - log(chance), next(self._number), node, rank))

    def _is_alive(self, node: _Node | None) -> bool:
        pos = self._root.draft.pos
        while node is not None and node.draft.pos > pos:
            node = node.parent
        return node is self._root

    def _likeliest(self) -> list[_Node]:
        """Up to `width` nodes to send, each after its parent."""
        nodes: list[_Node] = []
        if self._root.cell is None:
            self._add(self._root, nodes)
        while self._waiting and len(nodes) < self._width:
            loss, _, parent, rank = self._waiting[0]
            is_alive = self._is_alive(parent)
            if is_alive and loss - self._root.loss > self._most_loss:
                break
            heapq.heappop(self._waiting)
            if is_alive:
                token = parent.draft.guesses[rank][0]
                self._wait(parent, rank + 1, parent.loss)
                parent.children[token] = child = _Node(parent.draft.then(token), parent, loss)
                self._add(child, nodes)
        return nodes

    def _add(self, node: _Node, nodes: list[_Node]) -> None:
        node.cell = -1  # numbered when the frame is made
        nodes.append(node)
        self._wait(node, 0, node.loss)

    def _frame(self, nodes: list[_Node]) -> Sent:
        keep = tuple(node.cell for node in self._keep if node.cell is not None)
        if self._keep:
            self._run += len(self._keep)
            self._renumber()
        parents = []
        for node in nodes:
            parent = node.parent.cell if node.parent is not None else None
            parents.append(-1 if parent is None else parent)
            node.cell = len(self._live)
            self._live.append(node)
        self._sent.append(nodes)
        tokens = tuple(node.draft.token for node in nodes)
        frame = Sent(self._seq, self._run, tokens, self._epoch, tuple(parents), keep)
        self._seq += 1
        return frame

    def _renumber(self) -> None:
        """What the stages do when they are told what to keep."""
        parents = [-1 if node.parent is None or node.parent.cell is None else node.parent.cell for node in self._live]
        last = self._keep[-1].cell
        assert last is not None
        live = [self._live[old] for old in descendants(parents, last)]
        for node in self._live:
            node.cell = None
        for number, node in enumerate(live):
            node.cell = number
        self._live = live
        self._keep.clear()
