"""The audits' report as one HTML file: verdicts, latencies, and pictures of who received what when.

It needs no network and no script, and follows the reader's light or dark setting.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from totalorder.errors import SettingsError
from totalorder.sinks.audit import Auditor, Result, Verdict, choose

MOST_LANES = 12
MOST_EVENTS = 48
MOST_GROUPS = 24
"""Topics, and subscribers, whose latencies are drawn."""
MOST_LOST = 12
"""Losses that are told one by one."""

# A window of the order, around the first step back of any subscriber or else the middle, and the lanes with the most
# deliveries in it.
_WINDOW = """
WITH received AS (
  SELECT *, lag(g) OVER (PARTITION BY subscriber ORDER BY generation, delivery_index) AS previous_g
  FROM deliveries
  WHERE tag IS NULL
),
centre AS (
  SELECT coalesce(min(g) FILTER (WHERE g < previous_g), percentile_approx(g, 0.5)) AS g FROM received
),
shown AS (
  SELECT one.g FROM (SELECT DISTINCT g FROM received) AS one CROSS JOIN centre
  ORDER BY abs(one.g - centre.g) LIMIT {events}
),
busiest AS (
  SELECT subscriber FROM received WHERE g IN (SELECT g FROM shown)
  GROUP BY subscriber ORDER BY count(*) DESC, subscriber LIMIT {lanes}
)
SELECT subscriber, topic, n, g, unix_millis(delivered_time) AS at_ms
FROM received
WHERE g IN (SELECT g FROM shown) AND subscriber IN (SELECT subscriber FROM busiest)
ORDER BY subscriber, generation, delivery_index
"""

# Four bins to each doubling of milliseconds.
LATENCIES = """
SELECT int(floor(4 * log2(greatest(unix_millis(delivered_time) - unix_millis(event_time), 1)))) AS bin, count(*)
FROM deliveries JOIN events ON events.kafka_topic = deliveries.kafka_topic
  AND events.topic_id = deliveries.topic_id AND events.partition = deliveries.partition
  AND events.offset = deliveries.offset
WHERE event_time IS NOT NULL AND tag IS NULL
GROUP BY bin
"""
_BINS_A_DOUBLING = 4


@dataclass(frozen=True, kw_only=True)
class Received:
    """One delivery in the pictures."""

    subscriber: str
    topic: str
    n: int
    g: int
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the report shows besides verdicts: deliveries in each subscriber's order, counts by bin, percentiles."""

    received: Sequence[Received]
    bins: Mapping[int, int]
    percentiles: Sequence[Mapping[str, Any]]
    known: tuple[int, int]
    not_judged: Sequence[str]
    lost: Sequence[Mapping[str, Any]]
    """Rows of the audit `losses`."""


def write_report(path: Path, auditor: Auditor, results: Sequence[Result], *, tables: str) -> None:
    """Asks for what the pictures show, and writes the file. Raises SettingsError where it cannot be written."""
    columns, window = auditor.query(_WINDOW.format(events=MOST_EVENTS, lanes=MOST_LANES))
    latency, losses = choose(["latency", "losses"])
    measured = auditor.ask(latency, most_rows=30_000)
    figures = Figures(
        received=[Received(**dict(zip(columns, row, strict=True))) for row in window],
        bins=Counter(dict(auditor.query(LATENCIES)[1])),
        percentiles=by_group(_as_dicts(measured)),
        known=auditor.known(),
        not_judged=auditor.not_judged(),
        lost=_as_dicts(auditor.ask(losses, most_rows=MOST_LOST + 1)),
    )
    try:
        path.write_text(page(results, figures, tables=tables, now=datetime.now(UTC)), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"the report {path} cannot be written: {error.strerror}") from None


def _as_dicts(result: Result) -> list[dict[str, Any]]:
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def by_group(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the audit `latency` with all parts of one group in one: `to_stamp_p50` and so on."""
    groups: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for row in rows:
        group = groups.setdefault(
            (row["topic"], row["subscriber"]), {name: row[name] for name in ("topic", "subscriber", "deliveries")}
        )
        group |= {f"{row['part']}_{name}": row[name] for name in ("p50", "p95", "p99")}
    return list(groups.values())


def page(results: Sequence[Result], figures: Figures, *, tables: str, now: datetime) -> str:
    """The whole file."""
    through_g, newest_g = figures.known
    count = Counter(result.verdict for result in results)
    judged = count["holds"] + count["violated"]
    empty = f"; {count['empty']} had nothing to judge" if count["empty"] else ""
    names = ", ".join(figures.not_judged)
    not_judged = f"<p>Not judged: {escape(names)}: granted, no receipts.</p>" if names else ""
    behind = f" (positions up to {newest_g:,} are not known in full yet)" if newest_g > through_g else ""
    lost = f'<p class="bad">{escape(_lost(figures.lost))}</p>' if figures.lost else ""
    body = [
        f'<header><p class="kind">totalorder audit</p>{_headline(count, whole=not names)}',
        f"<p>{count['holds']} of {judged} audits hold{empty}.</p>",
        f"<p>Judged through position {through_g:,} of the order{behind}.</p>{not_judged}{lost}",
        f"<p>Tables: <code>{escape(tables)}</code>, {now:%Y-%m-%d %H:%M} UTC.</p></header>",
        _section("Verdicts", "", _verdicts(results)),
        *_pictures(figures.received),
        *_latencies(figures),
    ]
    return f"<!doctype html>\n{_HEAD}<body>\n{''.join(body)}</body></html>\n"


def _lost(rows: Sequence[Mapping[str, Any]]) -> str:
    """What Kafka had and nobody can receive any more, or one subscriber not."""
    places = [
        f"{row['kafka_topic']}[{row['partition']}]@{row['first_lost']} to {row['last_lost']} "
        f"(Kafka's id {row['topic_id']}), {row['how']}{f' by {name}' if (name := row['subscriber']) else ''}, "
        f"at position {row['lost_g']:,}"
        for row in rows[:MOST_LOST]
    ]
    more = "; and more" if len(rows) > MOST_LOST else ""
    return f"Lost: {'; '.join(places)}{more}."


def _headline(count: Mapping[Verdict, int], *, whole: bool) -> str:
    if count["violated"]:
        return '<h1 class="bad">A promise was broken</h1>'
    if not count["holds"]:
        return "<h1>There was nothing to judge</h1>"
    asked = "asked for" if whole and not count["empty"] else "that could be judged"
    return f'<h1 class="good">Every promise {asked} held</h1>'


def _section(title: str, text: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{f'<p>{text}</p>' if text else ''}{content}</section>\n"


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _verdicts(results: Sequence[Result]) -> str:
    rows = "".join(_verdict(result) for result in results)
    head = '<tr><th>audit</th><th>verdict</th><th class="number">rows examined</th><th class="number">seconds</th></tr>'
    return f'<div class="wide"><table class="verdicts"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _verdict(result: Result) -> str:
    audit = result.audit
    how = "".join(
        f"<p><b>{word}</b> {escape(text)}</p>"
        for word, text in (("Proves:", audit.proves), ("How:", audit.how), ("Limits:", audit.limits))
        if text
    )
    told = f"<details><summary>{escape(result.title)}</summary>{how}<pre>{escape(audit.sql)}</pre></details>"
    shown = (
        f"<details{' open' if result.verdict == 'violated' else ''}><summary>rows</summary>{_rows(result)}</details>"
    )
    return (
        f'<tr><td>{told}{shown if result.rows else ""}</td><td><span class="verdict {result.verdict}">'
        f'{result.verdict}</span></td><td class="number">{result.rows_examined:,}</td>'
        f'<td class="number">{result.seconds:.1f}</td></tr>'
    )


def _rows(result: Result) -> str:
    def line(tag: str, values: Sequence[object]) -> str:
        cells = ("" if value is None else escape(str(value)) for value in values)
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    more = "<p>… and more</p>" if result.more else ""
    rows = "".join(line("td", row) for row in result.rows)
    return f'<div class="wide"><table class="rows">{line("th", result.columns)}{rows}</table></div>{more}'


# --- who received what when -------------------------------------------------------------------------------------------

_WIDTH, _LEFT, _RIGHT, _LANE, _TOP = 1080, 150, 20, 34, 26
_LARGE, _SMALL = 13, 11
"""Sizes of letters in pictures: names, and ticks."""
_COLOURS = 8


@dataclass(frozen=True, kw_only=True)
class _Dot:
    lane: int
    x: float
    received: Received


def _pictures(received: Sequence[Received]) -> Iterator[str]:
    if not received:
        return
    topics = {topic: at for at, (topic, _) in enumerate(Counter(one.topic for one in received).most_common())}
    legend = "".join(
        f'<span><i class="c{_colour(topics, topic)}"></i>{escape(topic)}</span>' for topic in list(topics)[:_COLOURS]
    ) + ('<span><i class="c8"></i>others</span>' if len(topics) > _COLOURS else "")
    places = {g: at for at, g in enumerate(sorted({one.g for one in received}))}
    yield _section(
        "One order",
        f"{len(places)} events of the order, one column each, around the first step back if there is one, else from "
        "the middle. A dot: the subscriber received the event. The line follows the order in which it received them: "
        "where it only goes to the right, the subscriber kept to the order; a step back is red.",
        f'<div class="legend">{legend}</div>'
        f"{_lanes(received, _by_order(received, places), topics, _order_axis(places))}",
    )
    first, last = min(one.at_ms for one in received), max(one.at_ms for one in received)
    yield _section(
        "The same, in time",
        "Each event's deliveries are joined from lane to lane, where neighbouring lanes both received it. Slower "
        "subscribers receive later, so the lines slant; two lines between two lanes cross only where the two "
        "subscribers disagree.",
        f'<div class="legend">{legend}</div>'
        f"{_lanes(received, _by_time(received, first, last), topics, _time_axis(first, last), joined=True)}",
    )


def _colour(topics: Mapping[str, int], topic: str) -> int:
    return min(topics[topic], _COLOURS)


def _lane_numbers(received: Sequence[Received]) -> dict[str, int]:
    return {name: lane for lane, name in enumerate(sorted({one.subscriber for one in received}))}


def _by_order(received: Sequence[Received], places: Mapping[int, int]) -> list[_Dot]:
    lanes, step = _lane_numbers(received), (_WIDTH - _LEFT - _RIGHT) / max(len(places) - 1, 1)
    return [_Dot(lane=lanes[one.subscriber], x=_LEFT + step * places[one.g], received=one) for one in received]


def _by_time(received: Sequence[Received], first: int, last: int) -> list[_Dot]:
    lanes, step = _lane_numbers(received), (_WIDTH - _LEFT - _RIGHT) / max(last - first, 1)
    return [_Dot(lane=lanes[one.subscriber], x=_LEFT + step * (one.at_ms - first), received=one) for one in received]


def _y(lane: float) -> float:
    return _TOP + _LANE * (lane + 0.5)


def _lanes(
    received: Sequence[Received], dots: Sequence[_Dot], topics: Mapping[str, int], axis: str, *, joined: bool = False
) -> str:
    lanes = _lane_numbers(received)
    height = _TOP + _LANE * len(lanes) + 12
    names = "".join(
        f'<text x="{_LEFT - 14}" y="{_y(lane) + 4:.1f}" text-anchor="end">{escape(_short(name))}'
        f'<title>{escape(name)}</title></text><line class="rail" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
        f'y1="{_y(lane):.1f}" y2="{_y(lane):.1f}"/>'
        for name, lane in lanes.items()
    )
    lines = _joins(dots, topics) if joined else _paths(dots)
    circles = "".join(_circle(dot, _colour(topics, dot.received.topic)) for dot in dots)
    return _svg(height, f"{axis}{names}{lines}{circles}", "Deliveries by subscriber")


def _circle(dot: _Dot, colour: int) -> str:
    one = dot.received
    when = datetime.fromtimestamp(one.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    told = escape(f"{one.subscriber} received {one.topic}#{one.n} (g {one.g}) at {when}")
    return f'<circle class="c{colour}" cx="{dot.x:.1f}" cy="{_y(dot.lane):.1f}" r="5"><title>{told}</title></circle>'


def _paths(dots: Sequence[_Dot]) -> str:
    """Each subscriber's own order; a step back is an arc below the lane."""
    found = []
    for one, other in pairwise(dots):
        if one.lane != other.lane:
            continue
        y = _y(one.lane)
        if other.x >= one.x:
            found.append(f'<path class="way" d="M{one.x:.1f} {y:.1f}H{other.x:.1f}"/>')
        else:
            middle = (one.x + other.x) / 2
            found.append(
                f'<path class="back" d="M{one.x:.1f} {y:.1f}Q{middle:.1f} {y + 26:.1f} {other.x:.1f} {y:.1f}"/>'
            )
    return "".join(found)


def _joins(dots: Sequence[_Dot], topics: Mapping[str, int]) -> str:
    places = {(dot.lane, dot.received.g): dot for dot in dots}
    return "".join(
        f'<path class="join s{_colour(topics, dot.received.topic)}" d="M{dot.x:.1f} {_y(lane):.1f}'
        f'L{below.x:.1f} {_y(lane + 1):.1f}"/>'
        for (lane, g), dot in places.items()
        if (below := places.get((lane + 1, g)))
    )


def _order_axis(places: Mapping[int, int]) -> str:
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(places) - 1, 1)
    shown = [(g, at) for g, at in places.items() if at % 8 == 0]
    return "".join(_tick(_LEFT + step * at, f"g {g:,}") for g, at in shown)


def _time_axis(first: int, last: int) -> str:
    parts = 4 if last - first >= 4 else min(last - first, 1)  # fewer milliseconds would be told twice
    return "".join(
        _tick(
            _LEFT + (_WIDTH - _LEFT - _RIGHT) * part / max(parts, 1),
            f"+{(last - first) * part / max(parts, 1):,.0f} ms",
        )
        for part in range(parts + 1)
    )


def _tick(x: float, text: str) -> str:
    anchor = "middle" if x < _WIDTH - 50 else "end"
    return f'<text class="tick" x="{x:.1f}" y="14" text-anchor="{anchor}">{text}</text>'


def _short(name: str) -> str:
    """As much of a name as there is room for on the left."""
    room = _LEFT - 18
    if _text_width(name, _LARGE) <= room:
        return name
    return next(part for end in range(len(name), -1, -1) if _text_width(part := f"{name[:end]}…", _LARGE) <= room)


def _text_width(text: str, size: float) -> float:
    """About how wide a text is in letters of this size, rather more than less: whose letters they are is not known."""
    return size * sum(1.05 if _is_wide(letter) else 0.62 for letter in text)


def _is_wide(letter: str) -> bool:
    return letter in "MW@%mw…—" or east_asian_width(letter) in "WF"


def _svg(height: float, content: str, label: str) -> str:
    picture = f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">{content}</svg>'
    return f'<div class="wide">{picture}</div>'


# --- latencies --------------------------------------------------------------------------------------------------------

_FLOOR, _TALL = 160, 136
"""Of the histogram: where its bars stand, and how tall the tallest may be."""
_MOST_STEPS = 4
_HISTOGRAM = "publish → deliver, milliseconds; upwards: deliveries"
_STAGES = (
    ("to_stamp", "publish → stamp"),
    ("stamp_to_delivery", "stamp → deliver"),
    ("to_delivery", "publish → deliver"),
)


def _latencies(figures: Figures) -> Iterator[str]:
    whole = next((row for row in figures.percentiles if row["topic"] is None and row["subscriber"] is None), None)
    if whole is None or not figures.bins:
        return
    yield _section(
        "How long events took",
        f"{whole['deliveries']:,} first deliveries, from the Kafka record's time to the application.",
        _stages(whole) + _histogram(figures.bins),
    )
    for kind in ("topic", "subscriber"):
        rows = [row for row in figures.percentiles if row[kind] is not None]
        busiest = sorted(rows, key=lambda row: -row["deliveries"])[:MOST_GROUPS]
        note = f"The {len(busiest)} busiest of {len(rows)}. " if len(busiest) < len(rows) else ""
        yield _section(
            f"Publish → deliver, by {kind}",
            f"{note}Milliseconds: the bar goes from the median to the 95th percentile, the line on to the 99th.",
            _bars(kind, busiest),
        )


def _stages(whole: Mapping[str, Any]) -> str:
    head = "".join(f'<th class="number">{name}</th>' for name in ("p50", "p95", "p99"))
    rows = "".join(
        f"<tr><td>{label}</td>"
        + "".join(f'<td class="number">{whole[f"{stage}_{p}"]:,} ms</td>' for p in ("p50", "p95", "p99"))
        + "</tr>"
        for stage, label in _STAGES
    )
    return f'<div class="wide"><table class="stages"><tr><th></th>{head}</tr>{rows}</table></div>'


def _histogram(bins: Mapping[int, int]) -> str:
    low, high = min(bins), max(bins)
    counts = _round_steps(max(bins.values()))
    left = 14 + max(_text_width(f"{count:,}", _SMALL) for count in counts)
    width = min((_WIDTH - left - 40) / (high - low + 1), 60)
    right = left + width * (high - low + 1)
    shown = all(_text_width(f"{count:,}", _SMALL) < width for count in bins.values())
    content = [_count_line(count, counts[-1], left, right) for count in counts]
    content += [
        _bin(number, bins[number], counts[-1], left + width * (number - low), width, shown=shown)
        for number in sorted(bins)
    ]
    content.append(_bin_ticks(low, high, left, width))
    content.append(f'<text class="tick" x="{left:.1f}" y="{_FLOOR + 36}">{_HISTOGRAM}</text>')
    return _svg(_FLOOR + 44, "".join(content), "Deliveries by latency")


def _round_steps(most: int) -> list[int]:
    """0 and a few round numbers, the last of which is not below `most`."""
    step = next(
        factor * 10**power for power in range(20) for factor in (1, 2, 5) if factor * 10**power * _MOST_STEPS >= most
    )
    return list(range(0, most + step, step))


def _count_line(count: int, most: int, left: float, right: float) -> str:
    y = _FLOOR - _TALL * count / most
    return (
        f'<text class="tick" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>'
        f'<line class="rail" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    )


def _bin(number: int, count: int, most: int, x: float, width: float, *, shown: bool) -> str:
    tall = max(_TALL * count / most, 1)  # a few among very many are seen too
    told = f"<title>{_edge(number)} to {_edge(number + 1)} ms: {count:,} deliveries</title>"
    size = f'x="{x + 1:.1f}" y="{_FLOOR - tall:.1f}" width="{width - 2:.1f}" height="{tall:.1f}"'
    place = f'x="{x + width / 2:.1f}" y="{_FLOOR - tall - 4:.1f}"'
    text = f'<text class="tick" {place} text-anchor="middle">{count:,}</text>' if shown else ""
    return f'<rect class="bar" {size}>{told}</rect>{text}'


def _bin_ticks(low: int, high: int, left: float, width: float) -> str:
    """The edges of bins, as many as there is room for; whole doublings where not every bin has one."""
    room = 12 + max(_text_width(_edge(number), _SMALL) for number in (low, high + 1))
    step = (
        1
        if width >= room
        else next(
            doublings * _BINS_A_DOUBLING for doublings in range(1, 100) if doublings * _BINS_A_DOUBLING * width >= room
        )
    )
    return "".join(
        f'<text class="tick" x="{left + width * (number - low):.1f}" y="{_FLOOR + 18}" text-anchor="middle">'
        f"{_edge(number)}</text>"
        for number in range(low, high + 2)
        if number % step == 0
    )


def _edge(number: int) -> str:
    """Where a bin begins, in milliseconds, told from its neighbours."""
    start = 2 ** (number / _BINS_A_DOUBLING)
    return f"{start:,.0f}" if start >= 10 else f"{start:.1f}"


def _bars(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    told = [" / ".join(f"{row[f'to_delivery_{p}']:,}" for p in ("p50", "p95", "p99")) for row in rows]
    room = 16 + max((_text_width(text, _SMALL) for text in told), default=0)
    most = max((row["to_delivery_p99"] for row in rows), default=0)
    scale = (_WIDTH - _LEFT - room) / max(most, 1)
    content = [_bar(kind, row, text, scale, 8 + 24 * at) for at, (row, text) in enumerate(zip(rows, told, strict=True))]
    content.append(f'<line class="rail" x1="{_LEFT}" x2="{_LEFT}" y1="4" y2="{24 * len(rows) + 4}"/>')
    return _svg(24 * len(rows) + 12, "".join(content), f"Latency by {kind}")


def _bar(kind: str, row: Mapping[str, Any], told: str, scale: float, y: float) -> str:
    p50, p95, p99 = (_LEFT + scale * max(row[f"to_delivery_{p}"], 0) for p in ("p50", "p95", "p99"))
    return (
        f'<text x="{_LEFT - 14}" y="{y + 12}" text-anchor="end">{escape(_short(row[kind]))}'
        f"<title>{escape(row[kind])}</title></text>"
        # The upright end is there also where both percentiles are the same.
        f'<path class="whisker" d="M{p95:.1f} {y + 8}H{p99:.1f}M{p99:.1f} {y + 2}V{y + 14}"/>'
        f'<rect class="bar" x="{p50:.1f}" y="{y + 2}" width="{max(p95 - p50, 2):.1f}" height="12" rx="2"/>'
        f'<circle class="median" cx="{p50:.1f}" cy="{y + 8}" r="4"/>'
        f'<text class="tick" x="{p99 + 8:.1f}" y="{y + 12}">{told}</text>'
    )


_HEAD = (
    """<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>totalorder audit</title><style>
:root{--ground:#fbfbfa;--text:#1d2125;--dim:#687076;--line:#d9dcdf;--card:#fff;--good:#18794e;--bad:#c62a2f;--bar:#4a7bd0;
--c0:#3b6fd4;--c1:#d9692b;--c2:#2f9e68;--c3:#a24bb5;--c4:#b8860b;--c5:#1797a6;--c6:#c9405f;--c7:#6d7a3a;--c8:#868e96}
@media(prefers-color-scheme:dark){:root{--ground:#15181b;--text:#e6e8ea;--dim:#9ba1a6;--line:#33393e;--card:#1c2024;
--good:#4cc38a;--bad:#ff6369;--bar:#6f9be8;--c0:#6f9ff0;--c1:#f0935c;--c2:#5cc794;--c3:#c983dc;--c4:#dcb04a;--c5:#4fc3d1;
--c6:#ee7b95;--c7:#a9b76c;--c8:#9ba1a6}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1160px;padding:32px 24px;background:var(--ground);color:var(--text);
font:15px/1.5 system-ui,sans-serif}h1{margin:0;font-size:30px}h2{margin:0 0 4px;font-size:18px}
p{margin:4px 0;max-width:85ch}header,section{margin-bottom:24px}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px 20px}
section>p,header p{color:var(--dim)}.kind{text-transform:uppercase;letter-spacing:.08em;font-size:12px}
.good{color:var(--good)}.bad{color:var(--bad)}table{border-collapse:collapse;width:100%}
td,th{padding:6px 12px 6px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:500;font-size:13px}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.verdict{font-weight:600;font-size:13px;padding:1px 8px;border-radius:9px;border:1px solid currentColor;
color:var(--dim)}.verdict.holds{color:var(--good)}
.verdict.violated{color:#fff;background:var(--bad);border-color:var(--bad)}summary{cursor:pointer}
details details,details p,details pre{margin-left:16px}td>details+details{margin-left:16px}
@media(max-width:600px){body{padding:16px 8px}section{padding:12px}}
.verdicts td:first-child{min-width:230px}.verdicts summary{font-weight:500;overflow-wrap:break-word}
td>details+details>summary{color:var(--dim);font-weight:400;font-size:13px}
pre{overflow:auto;font-size:12px;padding:10px;background:var(--ground);border:1px solid var(--line);border-radius:6px}
.wide{overflow-x:auto}.rows{font-size:13px;width:auto}.rows td,.rows th{padding:2px 14px 2px 0;white-space:nowrap}
.stages{width:auto;margin:8px 0 16px}.stages td,.stages th{padding-right:32px}
code{font-size:13px;overflow-wrap:anywhere}summary,.legend span{overflow-wrap:anywhere}
svg{display:block;width:100%;min-width:720px;height:auto;margin-top:8px;font:13px system-ui,sans-serif}
text{fill:var(--text)}
.tick{fill:var(--dim);font-size:11px}.rail{stroke:var(--line)}.way{stroke:var(--dim);stroke-width:1.5;opacity:.6}
.back{stroke:var(--bad);stroke-width:2.5;fill:none}.join{stroke-width:1.5;opacity:.55}circle{stroke:var(--card)}
.bar{fill:var(--bar)}.whisker{stroke:var(--bar);stroke-width:2;fill:none}.median{fill:var(--text)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin-top:8px;font-size:13px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:50%;margin-right:6px}section{break-inside:avoid}
"""
    + "".join(f".c{n}{{fill:var(--c{n});background:var(--c{n})}}.s{n}{{stroke:var(--c{n})}}" for n in range(9))
    + """
</style></head>"""
)
