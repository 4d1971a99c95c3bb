"""Panels beside each other as PNG files, without a display."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines over a logarithmic x axis, or bars over named places."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points] = field(default_factory=dict)
    dashed: Mapping[str, Points] = field(default_factory=dict)
    """Drawn in the colours of `lines`, in the same order."""
    paper: Mapping[str, Points] = field(default_factory=dict)
    """What the paper's text tells, in black: a star, or a dotted line."""
    bars: Mapping[str, Sequence[float]] = field(default_factory=dict)
    places: Sequence[str] = ()
    log_y: bool = False


def draw(path: Path, panels: Sequence[Panel]) -> Path:
    """Two panels a row; makes the folder; returns the path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = (len(panels) + 1) // 2
    figure, grid = pyplot.subplots(rows, 2, figsize=(10.4, 4.4 * rows), layout="constrained", squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw(axes, panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return path


def _draw(axes: Any, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    for lines, style in ((panel.lines, "-"), (panel.dashed, "--")):
        for number, (name, points) in enumerate(lines.items()):
            look = {"color": f"C{number}", "marker": "osD^v<"[number % 6], "markersize": 4}
            axes.plot(*zip(*points, strict=True), style, label=name, **look)
    for name, points in panel.paper.items():
        style = ":" if len(points) > 1 else "*"
        axes.plot(*zip(*points, strict=True), style, color="black", markersize=10, label=f"paper: {name}")
    if panel.bars:
        _bars(axes, panel)
    else:
        _scales(axes, panel)
    if not panel.log_y:
        axes.axhline(0, color="none")
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


def _scales(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    measured = sorted({x for points in panel.lines.values() for x, _ in points})
    axes.set_xticks(measured, [_short(x) for x in measured])
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.log_y:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set(
            major_locator=LogLocator(subs=(1, 2, 5)),
            minor_locator=NullLocator(),
            major_formatter=FuncFormatter(lambda y, _: f"{y:,g}"),
        )


def _short(number: float) -> str:
    if number >= 1_000_000:
        return f"{number / 1_000_000:g}M"
    return f"{number / 1_000:g}k" if number >= 1_000 else f"{number:g}"


def _bars(axes: Any, panel: Panel) -> None:
    width = 0.8 / len(panel.bars)
    for number, (name, heights) in enumerate(panel.bars.items()):
        at = [place + width * (number - (len(panel.bars) - 1) / 2) for place in range(len(heights))]
        axes.bar(at, heights, width, label=name)
    axes.set_xticks(range(len(panel.places)), panel.places)
