"""Rows of several lanes as numbers in buffers that stay where they are.

A captured step builds on them (llm/cuda_graphs/runner.py).

A grid has so many lanes, rows of each, cells that are read of each, and live cells among them. What is computed depends
on its buffers alone: where a lane is, how long it is and which cells a row sees are numbers that the step reads, so one
captured step serves every lane, wherever pages were added or moved. Lanes and rows that nobody needs are filled in:
they read the pool's cell of zeros and write to one that nobody reads. Zeros also stand for cells beyond a lane's end:
what another session left there may be no numbers, which a mask alone would not keep out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.kv.batch_view import bits
from nodewire.protocol.model.kv_pages import PAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.llm.kv.alibi import Slopes
    from nodewire.llm.kv.attention_context import AttentionOptions
    from nodewire.llm.kv.sequence_cache import Lane, Lanes
    from nodewire.llm.kv.speculative_tree import Tree

MAX_ROWS = 128
"""Of a grid, those that are filled in among them: decoding reads weights, beyond that it computes."""
MAX_EACH = 32
"""Of one lane: those of a prompt are more."""
MAX_SEEN_LIVE = 128
"""Live cells of one lane that its rows in a grid see: a lane that has more is computed without one."""
_LEAST_LIVE = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a lane that come one after the other in its cells, from `first` on.

    They say where each stands, and how many of the lane's cells it sees from the beginning on. They say as bits which
    live ones it sees of those that begin at cell `base`. `stands`: the live cells' positions.
    """

    lane: Lane
    first: int
    positions: Sequence[int]
    seen: Sequence[int]
    base: int
    leads: Sequence[int] = ()
    stands: Sequence[int] = ()

    @property
    def end(self) -> int:
        return self.first + len(self.positions)


def chain(lane: Lane, pos: int, n: int) -> Span:
    """As rows.Chain."""
    end = pos + n
    return Span(lane, pos, range(pos, end), range(pos + 1, end + 1), end)


def branches(lane: Lane, tree: Tree, first: int, n: int) -> Span:
    """As rows.Branches."""
    end, length = first + n, lane.length
    seen, positions = tree.seen[first:end], tree.positions
    return Span(lane, length + first, positions[first:end], [length] * n, length, seen, positions[:end])


@dataclass(frozen=True, slots=True)
class Shape:
    """How many lanes, rows of each, cells of each, and live cells; powers of two, so that there are few."""

    lanes: int
    rows: int
    cells: int
    live: int

    @property
    def numbers(self) -> int:
        """Of a grid's buffer."""
        return 3 * self.lanes + 4 * self.lanes * self.rows + self.lanes * self.live * (1 + self.rows)


def shape_of(spans: Sequence[Span]) -> Shape | None:
    """The smallest that these fit; None: they are too many, or a prompt."""
    rows = _power(max(len(span.positions) for span in spans))
    lanes, pages = _power(len(spans)), _power(-(-max(span.end for span in spans) // PAGE))
    live = max(len(span.stands) for span in spans)
    if rows > MAX_EACH or lanes * rows > MAX_ROWS or live > MAX_SEEN_LIVE:
        return None
    return Shape(lanes, rows, PAGE * pages, max(_LEAST_LIVE, _power(live)) if live else 0)


def _power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


class Grid:
    """A Past (nodewire.llm.kv.attention_context) of one shape.

    `set` says what it stands for, `begin` begins the step.
    """

    def __init__(self, lanes: Lanes, shape: Shape) -> None:
        """`lanes` have cells beyond their pages: one of zeros, one to write to."""
        self.shape, self._lanes = shape, lanes
        self._numbers = torch.zeros(shape.numbers, dtype=torch.int64, device=lanes.numbers.device)
        count, live = shape.lanes, shape.live
        rows = count * shape.rows
        sizes = [rows, rows, rows, rows, count, count, count, count * live, rows * live]
        parts = torch.split(self._numbers, sizes)
        self.positions, self.angles, self._slots, seen, starts, ends, bases, stands, leads = parts
        self._seen, self._leads = seen.view(count, shape.rows, 1), leads.view(count, shape.rows, live)
        self._starts, self._ends, self._bases = starts[:, None], ends[:, None], bases[:, None]
        self._stands = stands.view(count, live)

    def set(self, spans: Sequence[Span]) -> None:
        """The rows of each span are a lane's last ones."""
        shape, zeros = self.shape, self._lanes.beyond
        empty, unwritten = shape.lanes - len(spans), zeros + 1
        positions, angles, slots, seen = [], [], [], []
        for span in spans:
            spare, start = shape.rows - len(span.positions), span.lane.start
            positions += [0] * spare + list(span.positions)
            angles += [0] * spare + [span.lane.angles + at for at in span.positions]
            slots += [unwritten] * spare + list(range(start + span.first, start + span.end))
            seen += [1] * spare + list(span.seen)
        filled = empty * shape.rows
        said = [*positions, *[0] * filled, *angles, *[0] * filled, *slots, *[unwritten] * filled, *seen, *[1] * filled]
        said += [*(span.lane.start for span in spans), *[zeros] * empty]
        said += [*(span.end for span in spans), *[0] * empty]
        said += [*(span.base for span in spans), *[shape.cells] * empty]
        numbers = torch.tensor(said)
        if shape.live:
            stands, leads = torch.zeros_like(self._stands, device="cpu"), torch.zeros_like(self._leads, device="cpu")
            for place, span in enumerate(spans):
                if n := len(span.stands):
                    stands[place, :n] = torch.tensor(span.stands)
                    leads[place, -len(span.leads) :, :n] = bits(span.leads, n)
            numbers = torch.cat((numbers, stands.view(-1), leads.view(-1)))
        self._numbers.copy_(numbers)

    def begin(self) -> None:
        """Of what is computed: which cells are read, and what each row sees of them."""
        cell = torch.arange(self.shape.cells, device=self._numbers.device)
        beyond = cell >= self._ends
        self._cells = torch.where(beyond, self._lanes.beyond, self._starts + cell).view(-1)
        sees, self._stand = cell < self._seen, cell[None]
        if live := self.shape.live:
            number = cell - self._bases
            is_live, at = (number >= 0) & (number < live), number.clamp(0, live - 1)
            leads = self._leads.gather(2, at[:, None].expand(-1, self.shape.rows, -1)) != 0
            sees = sees | (is_live[:, None] & leads)
            self._stand = torch.where(is_live, self._stands.gather(1, at), cell)
        self._masks = {0: sees}
        self._biases: dict[int, Tensor] = {}

    def end(self) -> None:
        """Of what is computed: what `begin` made is held no longer."""
        self._masks.clear()
        self._biases.clear()
        self._cells = self._stand = self._numbers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: AttentionOptions) -> Tensor:
        (_, heads, head_dim), kv_heads = q.shape, k.shape[1]
        lanes, rows, cells = self.shape.lanes, self.shape.rows, self.shape.cells
        kept, group = self._lanes.cells[layer], heads // kv_heads
        own = torch.stack((k, v)[: len(kept)])
        kept.index_copy_(2, self._slots, self._lanes.stored(own).transpose(1, 2))
        read = self._lanes.widened(kept.index_select(2, self._cells))
        sides = read.view(len(kept), kv_heads, lanes, cells, head_dim).transpose(1, 2)
        keys, values = sides[0], sides[-1]
        # A group's queries see the same keys: they are the rows of one attention.
        queries = q.view(lanes, rows, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
        queries = queries.reshape(lanes, kv_heads, group * rows, head_dim)
        if how.alibi is not None:
            mask = self._bias(how.alibi, how.window).view(lanes, kv_heads, group * rows, cells)
        else:
            mask = self._mask(how.window)[:, None].expand(-1, group, -1, -1).reshape(lanes, 1, group * rows, cells)
        if how.softcap or how.sinks is not None:
            made = _by_hand(queries, keys, values, mask, how)
        else:
            made = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=how.scale)
        made = made.view(lanes, kv_heads, group, rows, head_dim).permute(0, 3, 1, 2, 4)
        return made.reshape(lanes * rows, heads * head_dim)

    def _mask(self, window: int) -> Tensor:
        """The mask, bool [lanes, rows, cells]."""
        found = self._masks.get(window)
        if found is None:
            since = self.positions.view(self.shape.lanes, self.shape.rows, 1) - window
            found = self._masks[window] = self._masks[0] & (self._stand[:, None] > since)
        return found

    def _bias(self, alibi: Slopes, window: int) -> Tensor:
        """float32 [lanes, heads, rows, cells]."""
        found = self._biases.get(window)
        if found is None:
            rows = self.positions.view(self.shape.lanes, self.shape.rows)
            found = self._biases[window] = alibi.bias(self._stand, rows, self._mask(window))
        return found


def _by_hand(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, how: AttentionOptions) -> Tensor:
    """As past.attention has it where the fused kernels do not know how."""
    kv_heads = keys.shape[1]
    scores = torch.matmul(q, keys.transpose(2, 3)).float().mul_(how.scale)
    if how.softcap:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
    scores.masked_fill_(~mask, -torch.inf)
    most = scores.amax(-1, keepdim=True)
    sinks = None
    if how.sinks is not None:
        each = how.sinks.view(kv_heads, -1)
        sinks = each.repeat_interleave(q.shape[2] // each.shape[1], 1)[None, ..., None]
        most = torch.maximum(most, sinks)
    scores.sub_(most).exp_()
    total = scores.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - most).exp()
    made: Tensor = torch.matmul(scores.div_(total).to(q.dtype), values)
    return made
