"""An outer step that another has made: committed to piece by piece, and any of its pieces made again.

    piece j    the numbers [j PIECE, (j + 1) PIECE) of theta as one row, and the same of every row of momenta
    leaf j     merkle.leaf(SHA-256(the piece's bytes, theta's first))
    root       merkle.root of all leaves

The step is elementwise, but for norms and distances of whole updates, which who holds the updates has at once. So a
piece is made again from the same piece of everything before, and equals what was committed to bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.protocol.encoding import merkle
from nodewire.training.engine import draw
from nodewire.training.engine.update import outer_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.aggregate import Results
    from nodewire.training.protocol.recipe import Outer

PIECE = 65_536
"""Numbers that a leaf is of."""
LEAST_DRAWN = 8
"""Pieces that are made again however few are asked for: half a million numbers take no time."""


def count(theta: State) -> int:
    """Pieces of a step."""
    return -(-_numbers(theta.values()) // PIECE)


def root(rule: Outer, theta: State, momenta: State) -> bytes:
    """What commits to theta and momenta after a step."""
    leaves = []
    for piece in range(count(theta)):
        digest = hashlib.sha256()
        for tensor in (_part(theta, "", theta, piece), *_parts(rule, theta, momenta, piece).values()):
            digest.update(tensor.numpy().tobytes())
        leaves.append(merkle.leaf(digest.digest()))
    return merkle.root(leaves)


def drawn(seed: bytes, committed: bytes, pieces: int, share: float) -> tuple[int, ...]:
    """The pieces that are made again, ascending: the first of an order that the commitment's author cannot know.

    `seed`: 32 bytes that came up after the commitment.
    """
    most = min(pieces, max(LEAST_DRAWN, int(pieces * share)))
    return tuple(sorted(int(one) for one in draw.order(pieces, "pieces", seed.hex(), committed.hex())[:most]))


def wrong(
    rule: Outer,
    before: tuple[State, State],
    results: Results,
    after: tuple[State, State],
    pieces: Iterable[int],
) -> int | None:
    """The first of some pieces that is not, bit for bit, what the step makes; None if all are.

    Args:
        rule: of the round (`Recipe.outer_of`).
        before: theta and momenta as they were, in the family's order.
        results: as the step's: all of them, whole.
        after: theta and momenta as they are said to be after the step.
        pieces: numbers of those that are computed again.

    """
    for some in _batches(list(pieces)):
        theta = {str(piece): _part(before[0], "", before[0], piece) for piece in some}
        momenta = {
            f"{prefix}{piece}": part
            for piece in some
            for prefix, part in _parts(rule, before[0], before[1], piece).items()
        }
        theirs = [(weight, {str(p): _part(delta, "", before[0], p) for p in some}) for weight, delta in results]
        made = outer_step.step(rule, theta, momenta, theirs, whole=results)
        for piece in some:
            if not _same(made[0][str(piece)], _part(after[0], "", before[0], piece)):
                return piece
            for prefix, part in _parts(rule, before[0], after[1], piece).items():
                if not _same(made[1][f"{prefix}{piece}"], part):
                    return piece
    return None


def _batches(pieces: Sequence[int]) -> Iterable[Sequence[int]]:
    """Few pieces at a time: what is gathered of all updates is bounded. Norms are taken anew for each."""
    at_once = 256
    return (pieces[at : at + at_once] for at in range(0, len(pieces), at_once))


def _parts(rule: Outer, theta: State, momenta: State, piece: int) -> dict[str, Tensor]:
    """A piece of each row of momenta, by its prefix."""
    return {prefix: _part(momenta, prefix, theta, piece) for prefix in outer_step.prefixes(rule)}


def _part(of: State, prefix: str, order: State, piece: int) -> Tensor:
    """The numbers of one piece, of the tensors of `order` under a prefix as one row."""
    start, stop, at, found = piece * PIECE, (piece + 1) * PIECE, 0, []
    for name in order:
        row = of[prefix + name].reshape(-1)
        low, high = max(start - at, 0), min(stop - at, row.numel())
        if low < high:
            found.append(row[low:high])
        at += row.numel()
    return torch.cat(found)


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit: -0.0 is not 0.0."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def _numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
