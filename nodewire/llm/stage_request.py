"""A frame of hidden states that a stage is at, and how far it has been computed.

What it says of its lane is checked before anything changes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadFrame, NodewireError, TooLarge
from nodewire.llm.kv import static_buffers
from nodewire.llm.kv.batch_view import Branches, Chain
from nodewire.llm.kv.speculative_tree import MAX_LIVE_CELLS, Tree
from nodewire.llm.layers import frame_checks
from nodewire.protocol.tensors.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from nodewire.llm.kv.attention_context import Past
    from nodewire.llm.kv.sequence_cache import Lane
    from nodewire.llm.kv.static_buffers import Span

_PASSED_ON = ("epoch", "parents", "keep")
"""What the stages behind must know, too."""


@dataclass(slots=True)
class StageRequest:
    """`rows` [n, width] at the committed run's positions `pos` .., or where `tree` is, its last n cells."""

    frame: Frame[Any]
    lane: Lane
    rows: Tensor
    pos: int
    chunk: int
    tree: Tree | None
    only_last: bool
    done: int = 0
    made: Tensor | None = None
    """The rows that go out, as far as they are computed."""
    error: NodewireError | None = field(default=None)
    is_known: bool = False
    """Whether it was found and not computed."""

    @property
    def remaining(self) -> int:
        """Rows that are not computed yet."""
        return 0 if self.error else len(self.rows) - self.done

    def past(self, n: int) -> Past:
        """What the next `n` rows build on."""
        if self.tree is None:
            return Chain(self.lane, self.pos + self.done, n)
        return Branches(self.lane, self.tree, len(self.tree) - len(self.rows) + self.done, n)

    def span(self, n: int) -> Span:
        """The next `n` rows as numbers."""
        if self.tree is None:
            return static_buffers.chain(self.lane, self.pos + self.done, n)
        return static_buffers.branches(self.lane, self.tree, len(self.tree) - len(self.rows) + self.done, n)

    def known(self, made: Tensor) -> None:
        """All rows have been computed before, and are in the lane; `made` [n, width] is what goes out."""
        self.made, self.done, self.is_known = made, len(self.rows), True
        self.lane.length = self.pos + self.done

    def add_rows(self, y: Tensor) -> None:
        """Note what the next rows have become, [n, width]; with the last of them the lane has them all."""
        try:
            frame_checks.check_finite(y)
        except BadFrame as error:
            self.error = error
            return
        if self.only_last:
            self.made = y[-1:]
        elif len(y) == len(self.rows):
            self.made = y
        else:
            if self.made is None:
                self.made = y.new_empty(self.rows.shape)
            self.made[self.done : self.done + len(y)] = y
        self.done += len(y)
        if self.done < len(self.rows):
            return
        if self.tree is None:
            self.lane.length = self.pos + self.done
        else:
            self.lane.tree = self.tree

    def answer(self, edge: str, likeliest: Callable[[Tensor], Tensor] | None = None) -> Frame[Any]:
        """What the stage sends on: the rows [1, n, width], or what `likeliest` makes of them, ids [n], as [1, n, 1].

        Raises what went wrong, or goes wrong there.
        """
        if self.error is not None:
            raise self.error
        made = self.rows if self.made is None else self.made
        pos = self.pos + len(self.rows) - 1 if self.only_last else self.pos
        meta: dict[str, int | str | bytes | bool | None] = {"pos": pos, "chunk": self.chunk, "tokens": len(made)}
        meta |= {name: self.frame.meta[name] for name in _PASSED_ON if name in self.frame.meta}
        if self.is_known:
            meta["cached"] = len(self.rows)
        sent = made[None] if likeliest is None else likeliest(made[None])[None, :, None]
        return Frame(edge, self.frame.seq, (sent.cpu(),), meta)


def begin(frame: Frame[Any], x: Tensor, lane: Lane, epoch: int, *, closes: bool) -> tuple[StageRequest, int]:
    """Begin with a frame of hidden states `x` [1, n, width], and its epoch; `epoch` is that of the one before.

    The lane is rewound, or keeps what the frame says, when nothing can be wrong any more but the numbers. A frame of no
    rows leaves it as it is, unless it keeps something.

    Raises:
        BadFrame: `pos` is not where the lane may go on, cells are none, or parents no tree.
        TooLarge: more positions than the session's, or live cells than a lane's.

    """
    pos, chunk, n = frame_checks.count(frame, "pos"), frame_checks.count(frame, "chunk"), x.shape[1]
    of = frame_checks.count(frame, "epoch") if "epoch" in frame.meta else 0
    parents, keep = _cells(frame, "parents"), _cells(frame, "keep") or []
    work = StageRequest(frame, lane, x[0], pos, chunk, None, closes and frame.seq == 0 and n > 0)
    if not n and not keep:
        return work, epoch
    if parents is not None and len(parents) != n:
        raise BadFrame("meta.parents", f"{len(parents)} of {n} rows")
    if parents and frame.seq == 0:
        raise BadFrame("meta.parents", "in frame 0, which has no branches")
    if keep and pos != lane.length + len(keep):
        raise BadFrame("meta.pos", f"{pos}, {lane.length} positions and {len(keep)} that are kept came before")
    if pos > lane.length + len(keep):
        raise BadFrame("meta.pos", f"{pos}, only {lane.length} positions came before")
    # What another epoch left out is not known here: other stages may have left out more of it.
    stays = bool(keep) or (pos == lane.length and of == epoch)
    tree = lane.tree.kept(keep)[0] if stays else Tree()
    if parents:
        work.tree = tree.grown(parents, pos)
        if pos + len(work.tree) > lane.positions:
            raise TooLarge("meta.parents", f"{len(work.tree)} live cells after {pos}, at most {lane.positions} in all")
    elif pos + n > lane.positions:
        raise TooLarge("meta.pos", f"up to position {pos + n}, at most {lane.positions}")
    if keep:
        lane.keep(keep)
    lane.length, lane.tree = pos, Tree() if n and not parents else tree
    return work, of


def _cells(frame: Frame[Any], name: str) -> list[int] | None:
    """Numbers of live cells in the frame's meta, little-endian int16 each; None if it has none.

    Raises:
        BadFrame: something else. TooLarge: more than may live.

    """
    value = frame.meta.get(name)
    if value is None:
        return None
    if not isinstance(value, bytes) or len(value) % 2:
        raise BadFrame(f"meta.{name}", "not int16, one after the other")
    if len(value) // 2 > MAX_LIVE_CELLS:
        raise TooLarge(f"meta.{name}", f"{len(value) // 2} cells, at most {MAX_LIVE_CELLS}")
    return list(struct.unpack(f"<{len(value) // 2}h", value))
