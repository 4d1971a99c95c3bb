"""Line plots as PNG files, without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path

Points = Sequence[tuple[float, float]]


def line_plot(path: Path, *, title: str, x: str, y: str, lines: Mapping[str, Points], log_y: bool = True) -> Path:
    """Writes named lines over a logarithmic x axis; makes the folder; returns the path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for (name, points), marker in zip(lines.items(), "osD^v<>pPX*h" * len(lines), strict=False):
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=name)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale="log" if log_y else "linear")
    if not log_y:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return path
