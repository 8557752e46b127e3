"""A manifest as a picture: tasks as boxes, tensors as lines between them, providers as colours with a legend.

Every word in it may be a stranger's: it is escaped, what XML forbids is left out, and nothing is linked or run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from xml.sax.saxutils import escape, quoteattr

from nodewire.cli.output import plain
from nodewire.cli.picture.graph_ends import listed, sent
from nodewire.cli.picture.layers import Box, layout
from nodewire.protocol.job.plan import LOCAL
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest, Task
from nodewire.protocol.model.signature import described
from nodewire.protocol.tensors.frame import bytes_of

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito's, which colour-blind readers tell apart; after eight the stripe is broken in another way."""
BREAKS = ("", "6 4", "2 3", "10 3 2 3")
NAME_CHARS, LINE_CHARS, PORT_CHARS = 28, 34, 48
MARGIN, TITLE, LEGEND_LINE = 24.0, 58.0, 20.0
_CHAR, _SMALL_CHAR = 6.3, 5.7
_LINE = 15.0
_PAD = 9.0
_STRIPE = 6.0
_SWATCH = 11.0
_MOST_SWATCHES = 8
_ALONG = (0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78)
"""Where along a line its words are tried."""
_LABELLED = 6
"""Lines from one layer to the next that have room for words."""
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1a1a1a}.name{font-weight:600}.small{font-size:10.5px;fill:#444}"
    ".title{font-size:17px;font-weight:600}.in{fill:#e8f3fb;stroke:#0072B2}.out{fill:#f0f0f0;stroke:#777}"
    ".task{fill:#fff;stroke:#555}"
    ".edge{fill:none;stroke:#777}.halo{stroke:#fff;stroke-width:4;stroke-linejoin:round}"
)


@dataclass(frozen=True, slots=True)
class TaskHolders:
    """The nodes of a task: `provider` computes it in a job, `holders` are all that serve it."""

    provider: str = ""
    holders: tuple[str, ...] = ()
    price_msat: int | None = None


@dataclass(frozen=True, slots=True)
class ProviderLabels:
    """What the picture says of providers: `names` are what they call themselves, by public key."""

    about: str
    tasks: Mapping[str, TaskHolders]
    names: Mapping[str, str] = field(default_factory=dict)

    def providers(self) -> list[str]:
        """By how many tasks they have, the most first."""
        counts: dict[str, int] = {}
        for one in self.tasks.values():
            for public in dict.fromkeys((one.provider, *one.holders)):
                if public:
                    counts[public] = counts.get(public, 0) + 1
        return sorted(counts, key=lambda public: (-counts[public], public))


def draw(manifest: Manifest, assigned: ProviderLabels | None = None) -> str:
    """The SVG document."""
    return _Picture(manifest, assigned).document()


def size(count: float) -> str:
    """Bytes for people: "12.3 MB"."""
    return _scaled(count, ("B", "kB", "MB", "GB"))


class _Picture:
    def __init__(self, manifest: Manifest, assigned: ProviderLabels | None) -> None:
        self._manifest, self._assigned = manifest, assigned
        publics = assigned.providers() if assigned is not None else []
        self._number = {public: k for k, public in enumerate(publics)}
        self._lines = {task.name: self._words(task) for task in manifest.tasks}
        self._pairs: dict[tuple[str, str], list[Edge]] = {}
        self._back: list[Edge] = []
        self._ports: dict[str, list[str]] = {}
        for port, edges in sent(manifest).items():
            self._ports[port] = _listed(edges)
            for edge in edges:
                target = f"out:{edge.name}" if edge.target == CUSTOMER else edge.target
                self._pairs.setdefault((port, target), []).append(edge)
        for edge in manifest.edges:
            if edge.target == CUSTOMER:
                self._ports[f"out:{edge.name}"] = _listed([edge])
            if edge.source == CUSTOMER:
                continue
            if edge.target == CUSTOMER:
                self._pairs.setdefault((edge.source, f"out:{edge.name}"), []).append(edge)
            elif edge.back or edge.source == edge.target:
                self._back.append(edge)
            else:
                self._pairs.setdefault((edge.source, edge.target), []).append(edge)
        tasks = {task.name: (_wide(self._lines[task.name]), self._high(task)) for task in manifest.tasks}
        ports = {port: (_wide(lines), len(lines) * _LINE + 8) for port, lines in self._ports.items()}
        entries = {port: size for port, size in ports.items() if port.startswith("in:")}
        self._layout = layout(entries | tasks | ports, list(self._pairs))

    def document(self) -> str:
        legend = self._legend()
        made, top = self._layout, MARGIN + TITLE
        width = max(made.width + 2 * MARGIN + (34 if self._back else 0), 420.0)
        height = top + made.height + MARGIN + len(legend) * LEGEND_LINE + MARGIN
        manifest = self._manifest
        weights = sum(weight.bytes for task in manifest.tasks for weight in task.weights)
        tasks = f"{len(manifest.tasks)} task{'s' * (len(manifest.tasks) != 1)}"
        about = f"{manifest.mode} · {tasks} · {size(weights)} of weights · {manifest.digest()[:12]}"
        parts = [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}"'
            f' viewBox="0 0 {width:.0f} {height:.0f}" aria-labelledby="title about">',
            f'<title id="title">{_text(manifest.name)}</title>',
            f'<desc id="about">{_text(about)}{_text("; " + self._assigned.about) if self._assigned else ""}</desc>',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
            f'<text class="title" x="{MARGIN}" y="{MARGIN + 12}">{_text(_cut(manifest.name, 60))}</text>',
            f'<text class="small" x="{MARGIN}" y="{MARGIN + 30}">{_text(about)}</text>',
            f'<g transform="translate({(width - made.width) / 2:.1f} {top})">',
            *self._edges(),
            *self._loops(),
            *(self._port(name, made.boxes[name]) for name in self._ports),
            *(self._task(task, made.boxes[task.name]) for task in manifest.tasks),
            "</g>",
        ]
        first = top + made.height + MARGIN + 12
        parts += [_moved(line, MARGIN, first + k * LEGEND_LINE) for k, line in enumerate(legend)]
        return "\n".join([*parts, "</svg>", ""])

    # Words.

    def _words(self, task: Task) -> list[str]:
        lines = [_cut(task.name, LINE_CHARS), f"{size(task.memory_bytes)}, {_flops(task.flops)}"]
        holding = self._holding(task)
        if holding.provider:
            lines.append(_cut(self._called(holding.provider), NAME_CHARS))
        elif self._assigned is not None and not holding.holders:
            lines.append("nobody serves it")
        return lines

    def _holding(self, task: Task) -> TaskHolders:
        return self._assigned.tasks.get(task.name, TaskHolders()) if self._assigned is not None else TaskHolders()

    def _called(self, public: str) -> str:
        if public == LOCAL:
            return "the customer's machine"
        name = self._assigned.names.get(public, "") if self._assigned is not None else ""
        return f"{_cut(name, NAME_CHARS - 9)} {public[:8]}".strip()

    def _about(self, task: Task) -> str:
        holding = self._holding(task)
        weights = sum(weight.bytes for weight in task.weights)
        lines = [
            task.name,
            f"engine {task.engine}, {task.slots} slots",
            f"{size(task.memory_bytes)} of memory, {size(weights)} of them weights; {_flops(task.flops)} a position",
            *([task.limit] if task.limit else []),
            *([f"computed by {self._called(holding.provider)}"] if holding.provider else []),
            *([f"served by {self._called(public)}" for public in holding.holders]),
            *([f"{holding.price_msat / 1000:g} sat a chunk"] if holding.price_msat is not None else []),
        ]
        return "\n".join(lines)

    # Shapes.

    def _high(self, task: Task) -> float:
        swatches = _SWATCH + 5 if self._swatches(task) else 0.0
        return len(self._lines[task.name]) * _LINE + 2 * _PAD + swatches - 4

    def _swatches(self, task: Task) -> tuple[str, ...]:
        """Public keys of those that serve it."""
        return self._holding(task).holders

    def _task(self, task: Task, box: Box) -> str:
        x, y = box.x - box.width / 2, box.y - box.height / 2
        provider = self._holding(task).provider
        parts = [f"<g><title>{_text(self._about(task))}</title>"]
        fill = f' style="fill:{_tint(self._colour(provider))}"' if provider else ""
        parts.append(
            f'<rect class="task"{fill} x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
            ' rx="5"/>'
        )
        if provider:
            parts.append(self._stripe(provider, x + _STRIPE / 2 + 2, y + 5, y + box.height - 5))
        for k, line in enumerate(self._lines[task.name]):
            style = "name" if k == 0 else "small"
            at = y + _PAD + 10 + k * _LINE
            parts.append(f'<text class="{style}" x="{x + _STRIPE + _PAD:.1f}" y="{at:.1f}">{_text(line)}</text>')
        swatches = self._swatches(task)
        for k, public in enumerate(swatches[:_MOST_SWATCHES]):
            left, top = x + _STRIPE + _PAD + k * (_SWATCH + 4), y + box.height - _SWATCH - 7
            parts.append(self._swatch(public, left, top))
        if len(swatches) > _MOST_SWATCHES:
            left = x + _STRIPE + _PAD + _MOST_SWATCHES * (_SWATCH + 4)
            more = f"+{len(swatches) - _MOST_SWATCHES}"
            parts.append(f'<text class="small" x="{left:.1f}" y="{y + box.height - 9:.1f}">{more}</text>')
        return "".join([*parts, "</g>"])

    def _port(self, name: str, box: Box) -> str:
        x, y = box.x - box.width / 2, box.y - box.height / 2
        way, side = ("in", "from the customer") if name.startswith("in:") else ("out", "to the customer")
        edge = next(one for pair, edges in self._pairs.items() if name in pair for one in edges)
        words = "".join(
            f'<text class="small" text-anchor="middle" x="{box.x:.1f}" y="{at:.1f}">{_text(line)}</text>'
            for at, line in ((y + 15 + k * _LINE, line) for k, line in enumerate(self._ports[name]))
        )
        return (
            f"<g><title>{_text(_tensors(edge) + chr(10) + side)}</title>"
            f'<rect class="{way}" x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
            f' rx="11"/>{words}</g>'
        )

    def _edges(self) -> Iterator[str]:
        boxes = self._layout.boxes
        crowd: dict[int, int] = {}
        for pair in self._pairs:
            crowd[boxes[pair[0]].layer] = crowd.get(boxes[pair[0]].layer, 0) + 1
        labels: list[str] = []
        taken = [(one.x, one.y, one.width, one.height) for one in boxes.values()]
        for pair, edges in self._pairs.items():
            source, target = (boxes[name] for name in pair)
            points = [
                (source.x, source.y + source.height / 2),
                *self._layout.ways[pair],
                (target.x, target.y - target.height / 2),
            ]
            most = sum(map(_most_bytes, edges))
            about = "\n".join(_tensors(edge) for edge in edges)
            yield (
                f'<path class="edge" marker-end="url(#tip)" stroke-width="{_thick(most):.1f}" d="{_curve(points)}">'
                f"<title>{_text(f'{pair[0]} to {pair[1]}' + chr(10) + about)}</title></path>"
            )
            if not any(":" in name for name in pair) and crowd[source.layer] <= _LABELLED:
                names = ", ".join(tensor.name for edge in edges for tensor in edge.tensors)
                words = f"{_cut(names, LINE_CHARS)} ≤ {size(most)}"
                at = _free(points[-2], points[-1], len(words) * _SMALL_CHAR, taken)
                if at is None:
                    continue  # it stands in the line's title
                x, y = at
                taken.append((x, y, len(words) * _SMALL_CHAR, _LINE))
                where = f'text-anchor="middle" x="{x:.1f}" y="{y + 3:.1f}"'
                labels += [f'<text class="small {style}" {where}>{_text(words)}</text>' for style in ("halo", "over")]
        yield from labels

    def _loops(self) -> Iterator[str]:
        """Edges that close a ring, around the right side."""
        right = self._layout.width + 40
        for edge in self._back:
            source, target = self._layout.boxes[edge.source], self._layout.boxes[edge.target]
            sx, tx = source.x + source.width / 2, target.x + target.width / 2
            yield (
                f'<path class="edge" stroke-dasharray="5 4" marker-end="url(#tip)" d="M{sx:.1f} {source.y:.1f}'
                f'C{right:.1f} {source.y:.1f} {right:.1f} {target.y:.1f} {tx:.1f} {target.y:.1f}">'
                f"<title>{_text(edge.name + chr(10) + _tensors(edge))}</title></path>"
            )

    def _colour(self, public: str) -> str:
        return COLOURS[self._number[public] % len(COLOURS)]

    def _stripe(self, public: str, x: float, top: float, bottom: float) -> str:
        broken = BREAKS[self._number[public] // len(COLOURS) % len(BREAKS)]
        dashes = f' stroke-dasharray="{broken}"' if broken else ""
        return (
            f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="{self._colour(public)}"'
            f' stroke-width="{_STRIPE}"{dashes}/>'
        )

    def _swatch(self, public: str, x: float, y: float) -> str:
        colour = self._colour(public)
        broken = BREAKS[self._number[public] // len(COLOURS) % len(BREAKS)]
        fill = _tint(colour) if broken else colour
        dashes = f' stroke-dasharray="{broken}"' if broken else ""
        return (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{_SWATCH}" height="{_SWATCH}" rx="2" fill="{fill}"'
            f' stroke="{colour}" stroke-width="2"{dashes}><title>{_text(self._called(public))}</title></rect>'
        )

    def _legend(self) -> list[str]:
        """Lines, each drawn from (0, 0)."""
        lines = []
        if self._assigned is not None:
            lines.append(f'<text class="name">{_text(_cut(self._assigned.about, 110))}</text>')
            for public in self._number:
                holdings = self._assigned.tasks.values()
                computed = sum(one.provider == public or public in one.holders for one in holdings)
                words = f"{self._called(public)}: {computed} task{'s' * (computed != 1)}"
                swatch = self._swatch(public, 0, -10)
                lines.append(f'{swatch}<text x="18">{_text(words)}</text>')
        thin, thick = _thick(10_000), _thick(100_000_000)
        lines.append(
            f'<path class="edge" stroke-width="{thin:.1f}" d="M0 -4h26"/><text class="small" x="32">10 kB</text>'
            f'<path class="edge" stroke-width="{thick:.1f}" d="M76 -4h26"/><text class="small" x="108">100 MB of'
            " tensors in a call, at most</text>"
        )
        lines.append('<text class="small">In a box: the memory that the task needs, and what a position costs.</text>')
        lines.append(
            '<rect class="in" y="-11" width="26" height="14" rx="7"/><text class="small" x="32">what the customer'
            ' sends</text><rect class="out" x="190" y="-11" width="26" height="14" rx="7"/><text class="small" x="222">'
            "what it gets</text>"
        )
        if self._back:
            lines.append(
                '<path class="edge" stroke-dasharray="5 4" d="M0 -4h26"/><text class="small" x="32">what the next step'
                " begins with</text>"
            )
        return lines


def _listed(edges: Sequence[Edge]) -> list[str]:
    return [_cut(line, PORT_CHARS) for line in listed(edges)]


def _wide(lines: Sequence[str]) -> float:
    return max(max((len(line) for line in lines), default=0) * _CHAR + _STRIPE + 2 * _PAD, 60.0)


def _cut(text: str, most: int) -> str:
    words = plain(text.replace("\n", " "))
    return words if len(words) <= most else words[: most - 1] + "…"


def _text(text: str) -> str:
    """What may be a stranger's, as XML's text."""
    return escape(_FORBIDDEN.sub("\ufffd", plain(text)))


def _moved(line: str, x: float, y: float) -> str:
    return f"<g transform={quoteattr(f'translate({x:.1f} {y:.1f})')}>{line}</g>"


def _flops(count: float) -> str:
    return _scaled(count, ("FLOP", "kFLOP", "MFLOP", "GFLOP"))


def _scaled(count: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {units[-1]}" if count < 1000 else f"{count:,.0f} {units[-1]}"


def _tensors(edge: Edge) -> str:
    return "\n".join(
        f"{tensor.name}: {described(tensor)}, at most {size(bytes_of(tensor.dtype, _largest(edge, tensor.shape)))}"
        for tensor in edge.tensors
    )


def _most_bytes(edge: Edge) -> int:
    return sum(bytes_of(tensor.dtype, _largest(edge, tensor.shape)) for tensor in edge.tensors)


def _largest(edge: Edge, shape: Sequence[int | str]) -> list[int]:
    return [n if isinstance(n, int) else edge.dims.get(n, 1) for n in shape]


def _thick(nbytes: int) -> float:
    return min(6.0, max(1.0, (log2(max(nbytes, 1)) - 10) / 3))


def _tint(colour: str) -> str:
    """A colour that dark text is read on: five parts of white to one."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{(part + 5 * 255) // 6:02x}" for part in parts)


def _free(
    above: tuple[float, float],
    below: tuple[float, float],
    width: float,
    taken: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float] | None:
    """Where on the line between two points words have room beside the boxes `taken` (middle, width, height).

    It is at the line's middle, or as near to that as they can; None if nowhere.
    """
    (ax, ay), (bx, by) = above, below
    for t in _ALONG:
        middle = 3 * t * (1 - t)
        x = ax + (bx - ax) * t * t * (3 - 2 * t)
        y = ay * (1 - t) ** 3 + middle * (ay + by) / 2 + by * t**3
        if all(abs(x - ox) >= (width + w) / 2 or abs(y - oy) >= (_LINE + h) / 2 for ox, oy, w, h in taken):
            return x, y
    return None


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A smooth line through the points, upright at each."""
    (x, y), *rest = points
    path = [f"M{x:.1f} {y:.1f}"]
    for nx, ny in rest:
        middle = (y + ny) / 2
        path.append(f"C{x:.1f} {middle:.1f} {nx:.1f} {middle:.1f} {nx:.1f} {ny:.1f}")
        x, y = nx, ny
    return "".join(path)
