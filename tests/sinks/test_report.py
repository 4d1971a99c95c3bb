"""The report: one file, no network, and pictures of what it is given."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from totalorder.sinks.audit import Result, Verdict, parse_audit
from totalorder.sinks.report import Figures, Received, by_group, page

NOW = datetime(2026, 11, 1, tzinfo=UTC)
AUDIT = parse_audit("mine", "-- title: A <title>\n-- proves: Much & more.\n-- how: So.\nSELECT 1 < 2")


def result(verdict: Verdict, *rows: tuple[object, ...], more: bool = False) -> Result:
    return Result(
        audit=AUDIT,
        title=AUDIT.title,
        verdict=verdict,
        rows_examined=1234,
        seconds=0.5,
        columns=("a",),
        rows=rows,
        more=more,
    )


def received(subscriber: str, *gs: int) -> list[Received]:
    return [
        Received(subscriber=subscriber, topic=f"t{g % 3}", n=g, g=g, at_ms=1000 + 10 * at) for at, g in enumerate(gs)
    ]


def percentiles(topic: str | None, subscriber: str | None) -> dict[str, object]:
    stages = [
        f"{stage}_{p}" for stage in ("to_stamp", "stamp_to_delivery", "to_delivery") for p in ("p50", "p95", "p99")
    ]
    figures: dict[str, object] = {"topic": topic, "subscriber": subscriber, "deliveries": 5}
    return figures | dict.fromkeys(stages, 7)


FIGURES = Figures(
    received=[*received("<r>", 1, 2, 3), *received("s", 1, 3, 2)],
    bins={8: 5, 12: 1},
    percentiles=[percentiles(None, None), percentiles("t1", None), percentiles(None, "<r>")],
    known=(10, 12),
    not_judged=(),
    lost=(),
)


def shown(*results: Result, figures: Figures = FIGURES) -> str:
    return page(results, figures, tables="/x&y", now=NOW)


def test_it_is_well_formed_and_asks_for_nothing_from_elsewhere() -> None:
    text = shown(result("holds"), result("violated", ("<b>",), (None,), more=True))
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    body = text[text.index("<body>") :]
    ElementTree.fromstring(re.sub(r"</html>\s*$", "", body).replace("<details open>", '<details open="">'))
    assert not re.search(r"(src|href)=|url\(|@import|<script|https?:", text)


def test_verdicts_and_rows_are_there_escaped() -> None:
    text = shown(result("holds"), result("violated", ("<b>",), more=True), result("information"))
    assert "A promise was broken" in text
    assert "1 of 2 audits hold" in text
    assert "A &lt;title&gt;" in text
    assert "&lt;b&gt;" in text
    assert "… and more" in text
    assert "positions up to 12 are not known in full yet" in text
    assert "Every promise asked for held" in shown(result("holds"))


def test_what_is_not_judged_is_told_and_does_not_read_as_held() -> None:
    mute = replace(FIGURES, not_judged=("<u>", "v"))
    text = shown(result("holds"), result("empty"), figures=mute)
    assert "<p>Not judged: &lt;u&gt;, v: granted, no receipts.</p>" in text
    assert "1 of 1 audits hold; 1 had nothing to judge" in text
    assert '<span class="verdict empty">empty</span>' in text
    assert "Every promise that could be judged held" in text
    assert "Every promise that could be judged held" in shown(result("holds"), figures=mute)
    assert "Every promise that could be judged held" in shown(result("holds"), result("empty"))
    assert "There was nothing to judge" in shown(result("empty"))
    assert "Not judged" not in shown(result("holds"))


def test_what_was_lost_is_told_above_all_verdicts() -> None:
    place = {"kafka_topic": "<a>", "topic_id": "i", "partition": 2, "first_lost": 5, "last_lost": 6, "lost_g": 1234}
    row = place | {"how": "with its topic", "subscriber": None}
    text = shown(result("holds"), figures=replace(FIGURES, lost=[row]))
    told = text[: text.index("Verdicts")]
    assert "Lost: &lt;a&gt;[2]@5 to 6 (Kafka&#x27;s id i), with its topic, at position 1,234." in told
    told = shown(figures=replace(FIGURES, lost=[row | {"how": "before it was received", "subscriber": "<s>"}]))
    assert "before it was received by &lt;s&gt;, at" in told
    many = shown(result("holds"), figures=replace(FIGURES, lost=[row | {"partition": at} for at in range(13)]))
    assert "&lt;a&gt;[11]@5" in many
    assert "&lt;a&gt;[12]@5" not in many
    assert "; and more." in many
    assert "Lost" not in shown(result("holds"))


def test_a_group_s_parts_are_put_together() -> None:
    def row(topic: str | None, subscriber: str | None, part: str, p50: int) -> dict[str, object]:
        group: dict[str, object] = {"topic": topic, "subscriber": subscriber, "deliveries": 5}
        return group | {"part": part, "p50": p50, "p95": 8, "p99": 9}

    rows = [row(None, None, "to_stamp", 1), row(None, None, "to_delivery", 2)]
    whole, of_s, of_t = by_group([*rows, row(None, "s", "to_stamp", 3), row("t", None, "to_stamp", 4)])
    assert (whole["to_stamp_p50"], whole["to_delivery_p50"], whole["to_delivery_p99"]) == (1, 2, 9)
    assert (of_s["subscriber"], of_s["deliveries"], of_s["to_stamp_p50"]) == ("s", 5, 3)
    assert (of_t["topic"], of_t["to_stamp_p50"]) == ("t", 4)


def test_a_step_back_is_drawn_for_who_left_the_order_and_nobody_else() -> None:
    text = shown(result("holds"))
    assert text.count('class="back"') == 1
    assert text.count('class="way"') == 3
    dots = re.findall(r"<title>(&lt;r&gt;|s) received t\d#\d \(g \d\)", text)
    assert len(dots) == 2 * len(FIGURES.received), "each delivery stands in both pictures"
    assert text.count('class="join') == 3, "three events that both received"


def test_it_is_whole_without_any_delivery() -> None:
    nothing = Figures(received=[], bins={}, percentiles=[], known=(0, 0), not_judged=(), lost=())
    text = shown(result("holds"), figures=nothing)
    assert "<svg" not in text
    assert "Verdicts" in text


# --- latencies --------------------------------------------------------------------------------------------------------


def drawn(figures: Figures, label: str) -> ElementTree.Element:
    """The first picture of this label."""
    text = shown(result("holds"), figures=figures)
    picture, *_ = re.findall(rf'<svg [^>]*aria-label="{label}">.*?</svg>', text, re.DOTALL)
    return ElementTree.fromstring(picture)


def slow(name: str, *to_delivery: int) -> dict[str, object]:
    p50, p95, p99 = to_delivery
    return percentiles(name, None) | {"to_delivery_p50": p50, "to_delivery_p95": p95, "to_delivery_p99": p99}


@pytest.mark.parametrize("longest", [1_368, 3_294_000, 1_795_000_000_000])
def test_the_figures_of_the_longest_bar_lie_within_the_picture(longest: int) -> None:
    rows = [percentiles(None, None), slow("a", longest // 3, longest // 2, longest), slow("b", 1, 2, 3)]
    picture = drawn(replace(FIGURES, percentiles=rows), "Latency by topic")
    width = float(picture.attrib["viewBox"].split()[2])
    for text in picture.iter("text"):
        if text.get("class") == "tick":
            assert float(text.attrib["x"]) + 6.5 * len(text.text or "") <= width


def test_a_line_ends_upright_also_where_two_percentiles_are_one() -> None:
    rows = [percentiles(None, None), slow("a", 10, 90, 90), slow("b", 10, 50, 90)]
    picture = drawn(replace(FIGURES, percentiles=rows), "Latency by topic")
    ends = [path.attrib["d"] for path in picture.iter("path") if path.get("class") == "whisker"]
    assert len(ends) == 2
    for path in ends:
        (top, bottom) = re.fullmatch(r"M[\d.]+ \d+H[\d.]+M[\d.]+ (\d+)V(\d+)", path).groups()  # type: ignore[union-attr]
        assert int(top) < int(bottom)


@pytest.mark.parametrize("name", ["W" * 30, "订" * 30, "i" * 300])
def test_a_name_fits_to_the_left_of_the_lanes(name: str) -> None:
    picture = drawn(replace(FIGURES, received=received(name, 1, 2)), "Deliveries by subscriber")
    (text,) = (text for text in picture.iter("text") if text.get("text-anchor") == "end" and text.get("class") is None)
    shown = text.text or ""
    assert len(shown) > 5
    assert shown.endswith("…")
    assert 13 * sum(1 if letter in "W订…" else 0.3 for letter in shown) <= float(text.attrib["x"])


def test_the_histogram_has_an_axis_of_milliseconds_and_one_of_deliveries() -> None:
    picture = drawn(replace(FIGURES, bins={0: 3, 1: 2, 5: 12}), "Deliveries by latency")
    texts = [text.text for text in picture.iter("text")]
    assert texts[:4] == ["0", "5", "10", "15"]
    assert texts[4:7] == ["3", "2", "12"], "each bar's count"
    assert texts[7:-1] == ["1.0", "1.2", "1.4", "1.7", "2.0", "2.4", "2.8"]
    assert "milliseconds" in (texts[-1] or "")


def test_bars_too_narrow_for_counts_have_them_on_the_axis_and_ticks_do_not_meet() -> None:
    picture = drawn(replace(FIGURES, bins={0: 1, 83: 90_000, 164: 7}), "Deliveries by latency")
    texts = [(text.text or "", float(text.attrib["x"])) for text in picture.iter("text")]
    assert [text for text, _ in texts[:3]] == ["0", "50,000", "100,000"]
    ticks = texts[3:-1]
    assert ticks[0][0] == "1.0"
    assert len(ticks) > 5
    for (text, x), (other, next_x) in pairwise(ticks):
        assert next_x - x >= 6 * (len(text) + len(other)) / 2
