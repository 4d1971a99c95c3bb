"""Which panels show what was measured, beside what the paper's text tells."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from totalorder.bench.figures_plots import Panel, Points, draw

_SUBSCRIPTIONS = "topic-subscriptions in all"
_RATE = "events/s published"
_SERVERS = ("1", "2", "3", "4", "5")
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
    both = {f"shape {shape}": points for shape, points in sizes.items()}
    ours = {name: [point | point["m1"] for point in points] for name, points in both.items()}
    delta = "delta_entries"
    return [
        Panel(
            title="Mean timestamp size (fig. 7), and deltas",
            x=_SUBSCRIPTIONS,
            y="entries",
            log_y=True,
            lines={
                **_lines(both, "subscriptions", "mean", ", m = 2"),
                **_lines(ours, "subscriptions", "mean", ", m = 1"),
                **_lines(both, "subscriptions", delta, ", m = 2, delta"),
                **_lines(ours, "subscriptions", delta, ", m = 1, delta"),
            },
            paper={"paper: 46 (0.349), 17 (0.901)": [(100_000, 46)], "": [(100_000, 17)]},
        ),
        Panel(
            title="Standard deviation of the size (fig. 8)",
            x=_SUBSCRIPTIONS,
            y="entries",
            lines={
                **_lines(both, "subscriptions", "std", ", m = 2"),
                **_lines(ours, "subscriptions", "std", ", m = 1"),
            },
        ),
    ]


def _latency(data: Data) -> list[Panel]:
    ends = _ends(data["latency_by_rate"], "rate")
    paper: dict[str, Points] = {"paper: below 300 ms, 0.901": [(rate, 300) for rate in ends]}
    y = "ms from publishing to stamp"
    return [
        Panel(title=title, x=x, y=y, lines=_delays(data[f"latency_by_{axis}"], axis), paper=of)
        for title, x, axis, of in (
            ("Delay by event rate (fig. 9)", _RATE, "rate", paper),
            ("Delay by subscriptions (fig. 13)", _SUBSCRIPTIONS, "subscriptions", {}),
        )
    ]


def _delays(points: Data, axis: str) -> dict[str, Points]:
    named = {f"shape {shape}": of for shape, of in points.items()}
    return {**_lines(named, axis, "mean_ms", ", mean"), **_lines(named, axis, "p99_ms", ", p99")}


def _throughput(data: Data) -> list[Panel]:
    paper: dict[str, Points] = {"paper: its peak, more than 4k, 0.901": [(5_000, 4_000)]}
    return [
        Panel(
            title=title,
            x=x,
            y="stamps/s",
            lines=_lines(_named(data[f"throughput_by_{axis}"]), axis, "stamps_per_s", ""),
            paper=of,
            log_y=axis == "rate",
        )
        for title, x, axis, of in (
            ("Throughput by event rate (fig. 10)", _RATE, "rate", paper),
            ("Throughput by subscriptions (fig. 14)", _SUBSCRIPTIONS, "subscriptions", {}),
        )
    ]


def _bandwidth(data: Data) -> list[Panel]:
    servers = [
        Panel(
            title=f"Forwarded by the paper's protocol, {shape} (fig. {figure})",
            x="server",
            y="% of the timestamps' bytes at the server",
            bars={
                label: [100 * each for each in data["paper"][shape][0][name]]
                for label, name in (("a timestamp counted once", "once"), ("by each manager", "per_manager"))
            },
            places=_SERVERS,
        )
        for shape, figure in (("0.901", 11), ("0.349", 12))
    ]
    return servers + [
        Panel(
            title=f"totalorder: stamps' share, by {what}",
            x=x,
            y="% of the log's bytes",
            lines={
                **{
                    name: [(point[axis], 100 * point["stamps_share"]) for point in of]
                    for name, of in _named(data[f"by_{axis}"]).items()
                },
                "between managers": [(x, 0) for x in _ends(data[f"by_{axis}"], axis)],
            },
        )
        for axis, what, x in (("rate", "event rate", _RATE), ("subscriptions", "subscriptions", _SUBSCRIPTIONS))
    ]


def _named(points: Data) -> dict[str, Sequence[Data]]:
    return {f"shape {shape}": of for shape, of in points.items()}


def _lines(points: Mapping[str, Sequence[Data]], x: str, y: str, suffix: str) -> dict[str, Points]:
    return {name + suffix: [(point[x], point[y]) for point in of] for name, of in points.items()}


def _ends(points: Data, axis: str) -> tuple[float, float]:
    of = [point[axis] for point in next(iter(points.values()))]
    return min(of), max(of)
