"""Charts are SVG that any parser reads, stay within their frame, and hold what they were given."""

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.traces.drawing import WIDTH, Bar, Line, bars, lines
from simulator.traces.jobs import TraceJob
from simulator.traces.playing import play
from simulator.traces.plots import plots_of
from simulator.traces.report import report_of
from simulator.traces.rules import QUEUE_RULES

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314  # our own text


VALUES = st.lists(st.floats(0, 1e12), min_size=1, max_size=30)


@given(VALUES)
@example([5e-324])
def test_every_point_of_a_line_stands_inside_the_axes_and_the_order_of_values_is_that_of_heights(
    values: list[float],
) -> None:
    svg = ET.fromstring(  # noqa: S314  # our own text
        lines("t", [float(x) for x in range(len(values))], [Line("one", values)], x_unit="x", y_unit="y")
    )
    (drawn,) = svg.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in drawn.attrib["points"].split()]
    assert len(points) == len(values)
    assert all(72 <= x <= WIDTH - 24 and 56 <= y <= 264 for x, y in points)
    highest, lowest = values.index(max(values)), values.index(min(values))
    assert points[highest][1] <= points[lowest][1]


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])), st.floats(0, 1e9))))
def test_bars_are_as_long_as_their_values_and_names_are_only_text(reported: list[tuple[str, float]]) -> None:
    text = bars("<a & b>", [Bar(name, value, f"{value}") for name, value in reported], unit="h")
    svg = ET.fromstring(text)  # noqa: S314  # our own text
    widths = [float(bar.attrib["width"]) for bar in svg.iter(f"{SVG}rect")][1:]
    top = max((value for _, value in reported), default=0) or 1
    longest = max(widths, default=0)
    for (_, value), width in zip(reported, widths, strict=True):
        assert width == pytest.approx(longest * value / top, abs=0.2)
        assert width <= WIDTH
    shown = words(text)
    assert "<a & b>" in shown
    assert [name for name, _ in reported if name not in shown] == []


def test_a_chart_without_data_reports_it() -> None:
    for svg in (bars("t", [], unit="h"), lines("t", [], [Line("a", [])], x_unit="x", y_unit="y")):
        assert "nothing to show" in words(svg)


def test_two_lines_have_a_legend_and_differ_without_colour() -> None:
    svg = lines("t", [0.0, 1.0], [Line("ours", [1, 2]), Line("theirs", [2, 1])], x_unit="x", y_unit="y")
    assert {"ours", "theirs"} <= set(words(svg))
    assert "stroke-dasharray" in svg
    assert "prefers-color-scheme: dark" in svg


def test_the_charts_of_a_trace_report_its_waits_and_causes() -> None:
    jobs = [TraceJob(at, 7_200, 32, 4, 8) for at in (0, 10, 20)]
    played = play(jobs, [7_200.0] * 3, QUEUE_RULES["muster"], num_nodes=4, gpus_per_node=8)
    drawn = plots_of(report_of(jobs, played, played, num_gpus=32))
    assert "32 to 63 GPUs" in words(drawn["waits-by-size.svg"])
    assert "2.00 (3 jobs)" in words(drawn["waits-by-size.svg"])
    assert "checkpoints" in words(drawn["lost-hours.svg"])
    queue = ET.fromstring(drawn["queue-length.svg"])  # noqa: S314  # our own text
    (line,) = queue.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights[1] == pytest.approx(56, abs=2), "two wait in the first third"
    assert heights[-1] == pytest.approx(264), "and none in the last"
    assert math.isclose(heights[len(heights) // 2], 160, abs_tol=2), "and one between"
