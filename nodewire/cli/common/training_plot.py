"""A training's curve as a picture: the held-out loss by round, by bytes moved, by sat spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodewire.training.customer.round_history import Point


def plot(points: Sequence[Point], title: str, path: Path) -> None:
    """Write an SVG of the losses to `path`; equal points make equal files. matplotlib is imported here, not before."""
    import matplotlib

    # SVG needs no display. A fixed salt and no date: what was trained alike is drawn alike.
    with matplotlib.rc_context({"svg.hashsalt": "nodewire", "svg.fonttype": "none", "font.size": 9}):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(9.0, 2.8), layout="constrained")
        figure.suptitle(title, parse_math=False)
        losses = [point.loss for point in points]
        axes = figure.subplots(1, 3, sharey=True)
        for axis, label, xs in zip(
            axes,
            ("round", "MB up and down", "sat spent, fees included"),
            (
                [point.round + 1 for point in points],
                [(point.up_bytes + point.down_bytes) / 1e6 for point in points],
                [(point.paid_msat + point.fees_msat) / 1000 for point in points],
            ),
            strict=True,
        ):
            axis.plot(xs, losses, marker="o" if len(points) <= 40 else "", markersize=3, linewidth=1.2)
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].set_ylabel("held-out loss")
        FigureCanvasSVG(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})
