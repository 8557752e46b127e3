"""The nodes of a market as a picture: the plane of their network coordinates, with what lies above each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodewire.protocol.market.coordinates import Coordinates

_AREA_PER_MS = 12.0


def plot(nodes: Sequence[tuple[str, Coordinates]], here: Coordinates | None, path: Path) -> None:
    """Write an SVG to `path`: names at their places in ms, a disc's area the height. matplotlib is imported here."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "nodewire", "svg.fonttype": "none", "font.size": 9}):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.0, 5.5), layout="constrained")
        axes = figure.subplots()
        for name, (x, y, height) in nodes:
            axes.scatter(x / 1000, y / 1000, s=8 + _AREA_PER_MS * height / 1000, alpha=0.5, color="C0", linewidths=0)
            axes.annotate(
                name, (x / 1000, y / 1000), xytext=(4, 4), textcoords="offset points", fontsize=7, parse_math=False
            )
        if here is not None:
            axes.scatter(here[0] / 1000, here[1] / 1000, marker="x", color="C3", label="here")
            axes.legend(frameon=False)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel("ms")
        axes.set_ylabel("ms")
        axes.set_title("round trips: distance plus both heights (a disc's area)", fontsize=9)
        axes.grid(alpha=0.3)
        FigureCanvasSVG(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})
