"""Panels beside each other as PNG files, without a display."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines over a logarithmic x axis, or bars over named places; `paper`: what the paper's text tells, in black."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points] = field(default_factory=dict)
    paper: Mapping[str, Points] = field(default_factory=dict)
    bars: Mapping[str, Sequence[float]] = field(default_factory=dict)
    places: Sequence[str] = ()
    log_y: bool = False


def draw(path: Path, panels: Sequence[Panel]) -> Path:
    """Two panels a row; makes the folder; returns the path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = (len(panels) + 1) // 2
    figure, grid = pyplot.subplots(rows, 2, figsize=(10.4, 3.9 * rows), layout="constrained", squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw(axes, panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return path


def _draw(axes: Any, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    for (name, points), marker in zip(panel.lines.items(), "osD^v<>pPX*h", strict=False):
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=name)
    for name, points in panel.paper.items():
        style = "--" if len(points) > 1 else "*"
        axes.plot(*zip(*points, strict=True), style, color="black", markersize=9, label=name)
    _bars(axes, panel)
    if panel.lines:
        axes.set(xscale="log", yscale="log" if panel.log_y else "linear")
    if not panel.log_y:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")


def _bars(axes: Any, panel: Panel) -> None:
    width = 0.8 / max(1, len(panel.bars))
    for number, (name, heights) in enumerate(panel.bars.items()):
        at = [place + width * (number - (len(panel.bars) - 1) / 2) for place in range(len(heights))]
        axes.bar(at, heights, width, label=name)
    if panel.bars:
        axes.set_xticks(range(len(panel.places)), panel.places)
