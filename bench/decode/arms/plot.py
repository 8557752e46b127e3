"""The curves of `bench.decode`'s ring over the internet as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = {
    "ours": "trees in flight (nodewire)",
    "overlapping": "overlapping chunks (Shard), best k and depth",
    "synchronous": "synchronous, best k",
    "plain": "plain, direct return",
    "relayed": "plain, relayed back",
}


def plot(wan: Mapping[str, Any], path: Path) -> None:
    """Write an SVG of tokens a second by acceptance, a panel for each stage time; equal figures make equal files."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "nodewire", "svg.fonttype": "none", "font.size": 9}):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = figure.subplots(1, len(wan), sharey=True, squeeze=False)[0]
        for axis, (ms, found) in zip(panels, wan.items(), strict=True):
            alphas = sorted(float(name.removeprefix("ours.")) for name in found if name.startswith("ours."))
            for name, said in NAMES.items():
                rates = [found[name if name in found else f"{name}.{alpha:g}"]["per_s"] for alpha in alphas]
                axis.plot(alphas, rates, marker="o", markersize=3, linewidth=1.2, label=said)
            axis.set_title(f"{ms} ms a stage")
            axis.set_xlabel("acceptance")
            axis.set_yscale("log")
            axis.grid(alpha=0.3)
        panels[0].set_ylabel("tokens/s")
        panels[0].legend(fontsize=7)
        FigureCanvasSVG(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})
