"""What is in flight: a tree of guesses after the newest accepted token, as rows of frames around the ring.

The head is the newest accepted token; its row is in flight, or the next to be sent. Below it hang guesses. When the
head's row is back, the token after it is known: a guess that says so becomes the head, and all others are dead; if
none does, the token itself is the new head, and is sent. Returns come in the order of frames, so a row that is back
is the head's or dead.

Two shapes of frames say the same to the stages. In a chain rows join the lane's run at once, and a `pos` before its end
takes back what was wrong. In a tree rows are live cells, each with its parent, until `keep` has some join the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from typing import Protocol

from nodewire.llm.kv.speculative_tree import MAX_LIVE_CELLS


class Guess(Protocol):
    """A token that may follow, and the probability that it does."""

    @property
    def token(self) -> int: ...

    @property
    def odds(self) -> float: ...


Worth = Callable[[float, float, int], bool]
"""Whether a row is worth sending: the chance that it is right, the tokens that the rows before it are expected to
bring, and their number."""


@dataclass(eq=False, slots=True)
class Node:
    """A token of the tree; `position` is where its row stands, `odds` how likely it follows its parent."""

    token: int
    position: int
    parent: Node | None = None
    """None once all before it is accepted."""
    odds: float = 1.0
    chance: float = 1.0
    """How likely its path from the head is right."""
    place: object = None
    """Where drafters stand after it."""
    guesses: Sequence[Guess] | None = None
    """What may follow it, the likeliest first; None before anybody was asked."""
    taken: int = 0
    """How many of them are children."""
    children: dict[int, Node] = field(default_factory=dict)
    alive: bool = True
    """Whether its row's return is awaited."""
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class InFlightFrame:
    """A frame: rows of `nodes` in order. `pos`, `epoch`, `parents` and `keep` are as its meta says."""

    seq: int
    pos: int
    epoch: int
    nodes: tuple[Node, ...]
    parents: tuple[int, ...] | None = None
    keep: tuple[int, ...] = ()

    @property
    def awaited(self) -> bool:
        """Whether any row of it may still be the head's: else nobody needs to compute it."""
        return any(node.alive for node in self.nodes)


class Flight:
    """One session's. `lookahead`: the most rows that are awaited at a time; 1 is plain decoding. `tree`: the shape."""

    def __init__(self, prompt: int, token: int, lookahead: int, *, tree: bool, chunk: int) -> None:
        """`prompt` positions go out as frame 0, the last of them `token`; `chunk` of further ones are paid as one."""
        self.head = Node(token, prompt - 1, accepted=True)
        self.epoch = 0
        self._sent: deque[InFlightFrame] = deque([InFlightFrame(0, 0, 0, (self.head,))])
        self._seq = 1  # the next frame's
        self._prompt, self.lookahead, self._tree, self._chunk = prompt, lookahead, tree, chunk
        self._run = prompt  # the lane's length, as the stages will know it
        self._cells: list[Node] = []  # the lane's live cells, likewise, by number
        self._rows = 1  # awaited
        self._stale = 0  # frames in flight from before a token that nobody had guessed
        self._unsent: list[Node] = []

    @property
    def awaited(self) -> InFlightFrame | None:
        """The frame whose return is the next."""
        return self._sent[0] if self._sent else None

    @property
    def under_way(self) -> int:
        """Frames of rows in flight; those from before a token that nobody had guessed are as good as gone."""
        return sum(bool(sent.nodes) for sent in islice(self._sent, self._stale, None))

    def returned(self) -> None:
        """It is back; its rows have been looked at."""
        self._sent.popleft()
        self._stale = max(0, self._stale - 1)

    def last(self) -> list[InFlightFrame]:
        """Frames of no rows by which stages keep what is accepted of their live cells."""
        kept = self._kept()
        return [*kept, self._send(())] if any(node.accepted for node in self._cells) else kept

    def _kept(self) -> list[InFlightFrame]:
        """Those of them by which they have all rows of a chunk that is accepted.

        It can be closed before what is behind it is computed, or paid for.
        """
        found: list[InFlightFrame] = []
        while True:
            left = self._chunk - (self._run - self._prompt) % self._chunk
            if sum(node.accepted for node in self._cells) < left:
                return found
            found.append(self._send((), left))

    def drop(self) -> None:
        """It has ended: nothing that is in flight matters."""
        for node in _tree(self.head):
            node.alive = False
        self._unsent = []

    def accept(self, token: int) -> None:
        """The head's row is back: `token` follows it, and is the head."""
        before, self.head.alive = self.head, False
        self._rows -= 1
        following = before.children.pop(token, None)
        for wrong in before.children.values():
            for node in _tree(wrong):
                node.alive = False
                self._rows -= 1
        before.children = {}
        if following is None:
            following = Node(token, before.position + 1)
            self._unsent.append(following)
            self._stale = len(self._sent)
        following.parent, following.accepted = None, True
        self.head = following
        for node in _tree(following):
            node.chance = 1.0 if node.parent is None else node.parent.chance * node.odds

    def grow(self, expand: Callable[[Node], Sequence[Guess]], worth: Worth, last: int, most: int = 2**40) -> None:
        """Take in the likeliest guesses, one after the other, while there is room and each is worth it.

        It ends when `most` rows are to go out, the head's with them.

        `expand` says what may follow a node, the likeliest first; no row goes beyond position `last`. A lane has two
        more: a cell for each position, and of those one for a head that finds all others taken by dead guesses.
        """
        room = min(self.lookahead - self._rows, most) - len(self._unsent)
        if self._tree:
            room = min(room, min(last + 1 - self._run, MAX_LIVE_CELLS) - len(self._cells) - len(self._unsent))
        if room <= 0:
            return
        heap: list[tuple[float, int, Node]] = []
        numbers = count()
        expected, rows = 0.0, 0

        def offer(node: Node) -> None:
            if node.position >= last or (node.children and not self._tree):
                return
            if node.guesses is None:
                if not worth(node.chance, expected, rows):
                    return
                node.guesses = expand(node)
            if node.taken < len(node.guesses):
                heappush(heap, (-node.chance * node.guesses[node.taken].odds, next(numbers), node))

        for node in _tree(self.head):
            expected, rows = expected + node.chance, rows + 1
            offer(node)
        while heap and room > 0:
            less, _, node = heappop(heap)
            if not worth(-less, expected, rows) or node.guesses is None:
                break
            guess = node.guesses[node.taken]
            node.taken += 1
            child = Node(guess.token, node.position + 1, node, guess.odds, -less)
            node.children[guess.token] = child
            self._unsent.append(child)
            expected, rows, room = expected - less, rows + 1, room - 1
            offer(node)
            offer(child)

    def frames(self, rows: int) -> list[InFlightFrame]:
        """What is to be sent now, the likeliest rows first, at most `rows` to a frame."""
        waiting, self._unsent = self._unsent, []
        sent = self._kept()
        for at in range(0, len(waiting), rows):
            sent += [*self._kept(), self._send(tuple(waiting[at : at + rows]))]  # a head may have gone out meanwhile
        return sent

    def _send(self, nodes: tuple[Node, ...], most: int | None = None) -> InFlightFrame:
        sent = self._as_tree(nodes, most) if self._tree else self._as_chain(nodes)
        self._seq += 1
        self._rows += len(nodes)
        self._sent.append(sent)
        return sent

    def _as_chain(self, nodes: tuple[Node, ...]) -> InFlightFrame:
        pos = nodes[0].position
        self.epoch += pos < self._run
        self._run = pos + len(nodes)
        return InFlightFrame(self._seq, pos, self.epoch, nodes)

    def _as_tree(self, nodes: tuple[Node, ...], most: int | None) -> InFlightFrame:
        keep = [number for number, node in enumerate(self._cells) if node.accepted][:most]
        if keep:
            # Accepted cells stand each below the one before: what is below none of them that is kept but the last may
            # go on.
            cells, kept = self._cells, set(keep)
            lasting = {node for node in cells[keep[-1] :] if node.accepted}
            self._cells = [one for number, one in enumerate(cells) if number not in kept and _first(one) in lasting]
            self.epoch += len(cells) > len(keep) + len(self._cells)
            self._run += len(keep)
        elif self._cells and nodes[0] is self.head:
            # A head that nobody guessed, after one that is of the run already: a new epoch voids all that is live.
            self._cells = []
            self.epoch += 1
        numbers = {node: number for number, node in enumerate(self._cells)}
        parents = []
        for number, node in enumerate(nodes, len(self._cells)):
            # The run's end is the parent of what follows a kept cell, and of a head that nobody had guessed.
            parents.append(-1 if node.parent is None else numbers.get(node.parent, -1))
            numbers[node] = number
        self._cells += nodes
        return InFlightFrame(self._seq, self._run, self.epoch, nodes, tuple(parents), tuple(keep))


def _tree(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first."""
    waiting = [node]
    for found in waiting:
        waiting.extend(found.children.values())
    yield from waiting


def _first(node: Node) -> Node:
    """The accepted one that the node is below, or it is itself."""
    while node.parent is not None:
        node = node.parent
    return node
