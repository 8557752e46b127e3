"""The demo's output as a recording of 30 seconds: an asciinema v2 cast, and an animated SVG that is made of it.

    make demo > demo.log
    python -m tools.recording demo.log     # writes docs/images/demo.cast and docs/images/demo.svg
    python -m tools.recording              # makes the SVG anew from the cast

Every line is the demo's own. Two things are changed: each part has time by the length of its text and not by what it
took, and a log's lines get the colours that the demo has on a terminal. The clock behind each » is the real one.
Cast files: https://docs.asciinema.org/manual/asciicast/v2/
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COLUMNS, ROWS = 100, 30
SECONDS = 30.0
HELD_S = 5.0
"""How long the last screen stands before the SVG begins anew."""
ENDS_AT = "All of it is in "
"""The line that says where the report lies: a path of one machine, and nothing for others."""
TITLE = "make demo: the output of a real run, its pauses shortened to 30 seconds in all"
STYLES = ((re.compile(r"»"), "1;36"), (re.compile("✓"), "32"), (re.compile("✗"), "31"), (re.compile(r"  \S.*"), "2"))
"""What the demo's lines begin with, and the colour that it has on a terminal."""
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
COLOURS = {31: "#ff7b72", 32: "#7ee787", 36: "#79c0ff"}
FIGURE, GROUND = "#e6edf3", "#0d1117"
CHAR_PX, LINE_PX, PAD_PX = 8.4, 19, 16


class BadCast(ValueError):
    """A cast that this script cannot draw. The text names the line and what to change."""


@dataclass(frozen=True, slots=True)
class Look:
    """How characters are drawn; `colour` is a number of SGR, or 0."""

    bold: bool = False
    dim: bool = False
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen: when its first character came, in seconds, and its characters with their looks."""

    at_s: float
    cells: tuple[tuple[str, Look], ...]

    @property
    def text(self) -> str:
        return "".join(char for char, _ in self.cells)


def cast_of(log: str) -> str:
    """A cast of the demo's log, from its introduction to the last line that is of use to others."""
    lines = [line.rstrip() for line in _SGR.sub("", log).splitlines()]
    begin = next((i for i, line in enumerate(lines) if line.startswith("nodewire is ")), None)
    end = next((i for i, line in enumerate(lines) if line.startswith(ENDS_AT)), None)
    if begin is None or end is None:
        raise BadCast(f"the log has no introduction, or no line {ENDS_AT!r}: take what a whole `make demo` printed")
    shown = ["$ make demo", *lines[begin:end]]
    weights = [20 + len(line) for line in shown]
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": TITLE}
    events, passed = [], 0
    for line, weight in zip(shown, weights, strict=True):
        events.append([round(SECONDS * passed / sum(weights), 2), "o", _coloured(line) + "\r\n"])
        passed += weight
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in [header, *events])


def _coloured(line: str) -> str:
    for pattern, style in STYLES:
        if found := pattern.match(line):
            return f"\x1b[{style}m{found[0]}\x1b[0m{line[found.end() :]}"
    return line


def screen_of(cast: str) -> list[Line]:
    """The lines that a cast leaves, wrapped at its width.

    Raises:
        BadCast: it is no cast of version 2, or moves the cursor otherwise than to a new line.
    """
    header, *events = [json.loads(line) for line in cast.splitlines()]
    if not isinstance(header, dict) or header.get("version") != 2:
        raise BadCast("line 1: no header of version 2; record with asciinema 2, or convert")
    made: list[Line] = []
    cells: list[tuple[str, Look]] = []
    look, began_s = Look(), 0.0
    for number, (at_s, kind, data) in enumerate(events, start=2):
        if kind != "o":
            continue
        for part in re.split(r"(\x1b\[[0-9;]*m|\r?\n)", data):
            if found := _SGR.fullmatch(part):
                look = _after(look, found[1])
            elif part in ("\n", "\r\n"):
                made.append(Line(at_s if not cells else began_s, tuple(cells)))
                cells = []
            else:
                for char in part:
                    if not char.isprintable():
                        raise BadCast(f"line {number}: {char!r} moves the cursor; record without a progress display")
                    if len(cells) == header["width"]:
                        made.append(Line(began_s, tuple(cells)))
                        cells = []
                    began_s = began_s if cells else at_s
                    cells.append((char, look))
    return [*made, Line(began_s, tuple(cells))] if cells else made


def _after(look: Look, numbers: str) -> Look:
    for number in (int(one or 0) for one in numbers.split(";")):
        if number == 0:
            look = Look()
        elif number in (1, 2):
            look = replace(look, bold=number == 1, dim=number == 2)
        elif number in COLOURS:
            look = replace(look, colour=number)
        else:
            raise BadCast(f"SGR {number}: this script knows 0, 1, 2 and {', '.join(map(str, COLOURS))}")
    return look


def svg_of(cast: str) -> str:
    """A cast as an SVG that repeats. Where motion is unwanted or not supported, its last screen stands."""
    header, screen = json.loads(cast.splitlines()[0]), screen_of(cast)
    rows, period_s = header["height"], screen[-1].at_s + HELD_S
    width, height = 2 * PAD_PX + header["width"] * CHAR_PX, 2 * PAD_PX + rows * LINE_PX
    last_px = _scrolled(len(screen), rows)
    steps, styles, drawn = ["0%{transform:translateY(0)}"], [], []
    for at_s, group in groupby(enumerate(screen), key=lambda one: one[1].at_s):
        members = list(group)
        percent = f"{100 * at_s / period_s:.2f}"
        name = f"t{members[0][0]}"
        if at_s:
            styles.append(f"@keyframes {name}{{0%{{opacity:0}}{percent}%,100%{{opacity:1}}}}")
            styles.append(f".{name}{{animation:{name} {period_s:.2f}s step-end infinite}}")
        if scrolled := _scrolled(members[-1][0] + 1, rows):
            steps.append(f"{percent}%{{transform:translateY(-{scrolled}px)}}")
        lines = "".join(_drawn(line, PAD_PX + LINE_PX * (i + 1) - 5) for i, line in members)
        drawn.append(f'<g class="{name}">{lines}</g>')
    steps.append(f"100%{{transform:translateY(-{last_px}px)}}")
    style = (
        f"text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{FIGURE};"
        "white-space:pre}.b{font-weight:bold}.d{opacity:.65}"
        + "".join(f".c{number}{{fill:{colour}}}" for number, colour in COLOURS.items())
        + f"@keyframes s{{{''.join(steps)}}}.s{{transform:translateY(-{last_px}px);"
        + f"animation:s {period_s:.2f}s step-end infinite}}"
        + "".join(styles)
        + "@media (prefers-reduced-motion:reduce){*{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}"'
        f' viewBox="0 0 {width:.0f} {height}" role="img"><title>{escape(header["title"])}</title>'
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}" stroke="#6e7681"/>'
        f'<clipPath id="w"><rect y="{PAD_PX - 4}" width="100%" height="{rows * LINE_PX + 8}"/></clipPath>'
        f'<g clip-path="url(#w)"><g class="s">\n' + "\n".join(drawn) + "\n</g></g></svg>\n"
    )


def _scrolled(lines: int, rows: int) -> int:
    return max(0, lines - rows) * LINE_PX


def _drawn(line: Line, y: int) -> str:
    return "".join(_runs(line.cells, y))


def _runs(cells: Sequence[tuple[str, Look]], y: int) -> Iterator[str]:
    """A text for each run of one look, so long as its characters are: fonts differ in width, columns must not."""
    at = 0
    for look, run in groupby(cells, key=lambda cell: cell[1]):
        text = "".join(char for char, _ in run)
        if text.strip():
            names = [name for name, is_on in (("b", look.bold), ("d", look.dim)) if is_on]
            names += [f"c{look.colour}"] if look.colour else []
            of = f' class="{" ".join(names)}"' if names else ""
            shown = text.rstrip()
            wide = f' textLength="{len(shown) * CHAR_PX:.1f}"'
            yield f'<text x="{PAD_PX + at * CHAR_PX:.1f}" y="{y}"{wide}{of} xml:space="preserve">{escape(shown)}</text>'
        at += len(text)


def main(arguments: Sequence[str]) -> None:
    cast = IMAGES / "demo.cast"
    if arguments:
        cast.write_text(cast_of(Path(arguments[0]).read_text()))
    (IMAGES / "demo.svg").write_text(svg_of(cast.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
