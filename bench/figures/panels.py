"""Which panels show what was measured, beside what the paper's text tells."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from totalorder.bench.figures.paper import SERVERS
from totalorder.bench.figures.plots import Panel, Points, draw

_SUBSCRIPTIONS = "topic-subscriptions in all"
_RATE = "events/s published"
_SERVERS = [str(number) for number in range(1, SERVERS + 1)]
Data = Mapping[str, Any]


def draw_all(out: Path, data: Data) -> list[Path]:
    """The paths of the four pictures."""
    return [
        draw(out / "figures-size.png", _size(data["size"])),
        draw(out / "figures-latency.png", _latency(data)),
        draw(out / "figures-throughput.png", _throughput(data)),
        draw(out / "figures-bandwidth.png", _bandwidth(data["bandwidth"])),
    ]


def _size(sizes: Data) -> list[Panel]:
    by_m = {
        **{f"{shape}, m = 2": points for shape, points in sizes.items()},
        **{f"{shape}, m = 1": [point | point["m1"] for point in points] for shape, points in sizes.items()},
    }
    return [
        Panel(
            title="Mean timestamp size (fig. 7), and deltas",
            x=_SUBSCRIPTIONS,
            y="entries",
            log_y=True,
            lines=_lines(by_m, "subscriptions", "mean"),
            dashed=_lines(by_m, "subscriptions", "delta_entries", ", delta"),
            paper={"46 (0.349)": [(100_000, 46)], "17 (0.901)": [(100_000, 17)]},
        ),
        Panel(
            title="Standard deviation of the size (fig. 8)",
            x=_SUBSCRIPTIONS,
            y="entries",
            lines=_lines(by_m, "subscriptions", "std"),
        ),
    ]


def _latency(data: Data) -> list[Panel]:
    first, last = _ends(data["latency_by_rate"], "rate")
    paper = {"below 300 ms (0.901)": [(first, 300), (last, 300)]}
    return [
        Panel(
            title=title,
            x=x,
            y="ms from publishing to stamp",
            lines=_lines(data[f"latency_by_{axis}"], axis, "mean_ms", ", mean"),
            dashed=_lines(data[f"latency_by_{axis}"], axis, "p99_ms", ", p99"),
            paper=of,
        )
        for title, x, axis, of in (
            ("Delay by event rate (fig. 9)", _RATE, "rate", paper),
            ("Delay by subscriptions (fig. 13)", _SUBSCRIPTIONS, "subscriptions", {}),
        )
    ]


def _throughput(data: Data) -> list[Panel]:
    paper = {"its peak, more than 4k (0.901)": [(5_000, 4_000)]}
    return [
        Panel(
            title=title,
            x=x,
            y="stamps/s",
            lines=_lines(data[f"throughput_by_{axis}"], axis, "stamps_per_s"),
            paper=of,
            log_y=axis == "rate",
        )
        for title, x, axis, of in (
            ("Throughput by event rate (fig. 10)", _RATE, "rate", paper),
            ("Throughput by subscriptions (fig. 14)", _SUBSCRIPTIONS, "subscriptions", {}),
        )
    ]


def _bandwidth(data: Data) -> list[Panel]:
    return [
        *(_forwarded(data["paper"][shape][0], shape, figure) for shape, figure in (("0.901", 11), ("0.349", 12))),
        _share(data["by_rate"], "rate", _RATE),
        _share(data["by_subscriptions"], "subscriptions", _SUBSCRIPTIONS),
    ]


def _forwarded(point: Data, shape: str, figure: int) -> Panel:
    return Panel(
        title=f"Forwarded by the paper's protocol, {shape} (fig. {figure})",
        x="server",
        y="% of the timestamps' bytes there",
        bars={
            "a timestamp counted once": [100 * each for each in point["once"]],
            "counted at each manager": [100 * each for each in point["per_manager"]],
        },
        places=_SERVERS,
    )


def _share(points: Data, axis: str, x: str) -> Panel:
    shares = {
        f"shape {shape}, stamps": [(point[axis], 100 * point["stamps_share"]) for point in of]
        for shape, of in points.items()
    }
    between = {"between managers": [(end, 0.0) for end in _ends(points, axis)]}
    return Panel(title=f"totalorder, by {axis}", x=x, y="% of the log's bytes", lines=shares | between)


def _lines(points: Data, x: str, y: str, suffix: str = "") -> dict[str, Points]:
    return {f"shape {name}{suffix}": [(point[x], point[y]) for point in of] for name, of in points.items()}


def _ends(points: Data, axis: str) -> tuple[float, float]:
    of = [point[axis] for point in next(iter(points.values()))]
    return min(of), max(of)
