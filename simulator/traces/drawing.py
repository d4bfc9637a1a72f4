"""Charts as SVG text: lines and bars; they follow the reader's light or dark theme, and need no script.

Text keeps its size whatever the data; a chart without data states that.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 720
HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 56, 56
_ROW: Final = 26
_LABEL: Final = 150
"""Width for the names of bars, and height for each bar."""

_STYLE: Final = """
svg { font: 12px system-ui, sans-serif; background: var(--paper); --paper: #ffffff; --ink: #1f2328; --faint: #59636e;
  --grid: #d8dee4; --a: #0969da; --b: #bc4c00; --c: #1a7f37; }
@media (prefers-color-scheme: dark) { svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --grid: #30363d;
  --a: #58a6ff; --b: #f0883e; --c: #3fb950; } }
text { fill: var(--ink); } .faint { fill: var(--faint); } .title { font-size: 15px; font-weight: 600; }
.grid { stroke: var(--grid); } .paper { fill: var(--paper); } .line { fill: none; stroke-width: 1.75; }
.stroke0 { stroke: var(--a); } .stroke1 { stroke: var(--b); stroke-dasharray: 6 3; } .stroke2 { stroke: var(--c); }
.fill0 { fill: var(--a); } .fill1 { fill: var(--b); } .fill2 { fill: var(--c); }
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart, which has at most three: they differ also without colour."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    shown: str


def lines(title: str, xs: Sequence[float], drawn: Sequence[Line], *, x_unit: str, y_unit: str) -> str:
    """Return a chart of lines. Each of ``drawn`` has a value for each of ``xs``, which ascend."""
    if not xs:
        return _document(title, HEIGHT, _nothing())
    top = _nice_top(max(max(line.values) for line in drawn))
    right = xs[-1] - xs[0] or 1.0

    def x_of(x: float) -> float:
        return _LEFT + (x - xs[0]) / right * (WIDTH - _LEFT - _RIGHT)

    def y_of(y: float) -> float:
        return HEIGHT - _BOTTOM - y / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [_text(_LEFT, _TOP - 10, y_unit, "faint")]
    for step in range(5):
        value = top * step / 4
        y = y_of(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 8, y + 4, _short(value), "faint", anchor="end"))
        x = xs[0] + right * step / 4
        parts.append(_text(x_of(x), HEIGHT - _BOTTOM + 20, _short(x), "faint", anchor="middle"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 14, x_unit, "faint", anchor="middle"))
    for number, line in enumerate(drawn):
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, line.values, strict=True))
        parts.append(f'<polyline class="line stroke{number}" points="{points}"/>')
    return _document(title, HEIGHT, parts + (_legend([line.name for line in drawn]) if len(drawn) > 1 else []))


def bars(title: str, drawn: Sequence[Bar], *, unit: str) -> str:
    """Return a chart of bars, from the top in the given order."""
    height = _TOP + 8 + _ROW * max(len(drawn), 2) + 16
    if not drawn:
        return _document(title, height, _nothing())
    top = max(bar.value for bar in drawn) or 1.0
    room = WIDTH - _LABEL - 110
    parts = [_text(_LABEL, _TOP - 8, unit, "faint")]
    for number, bar in enumerate(drawn):
        y = _TOP + 4 + _ROW * number
        width = bar.value / top * room
        parts.append(_text(_LABEL - 10, y + 14, bar.name, anchor="end"))
        parts.append(f'<rect class="fill0" x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_ROW - 7}" rx="2"/>')
        parts.append(_text(_LABEL + width + 8, y + 14, bar.shown, "faint"))
    return _document(title, height, parts)


def _legend(names: Sequence[str]) -> list[str]:
    parts, x = [], WIDTH - _RIGHT
    for number, name in reversed(list(enumerate(names))):
        x -= 7 * len(name) + 44
        parts.append(f'<path class="line stroke{number}" d="M{x} {_TOP - 14}h26"/>')
        parts.append(_text(x + 32, _TOP - 10, name))
    return parts


def _document(title: str, height: int, parts: Sequence[str]) -> str:
    told, quoted = escape(title), escape(title, {'"': "&quot;"})
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{quoted}">',
            f"<title>{told}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            _text(16, 24, title, "title"),
            *parts,
            "</svg>\n",
        ]
    )


def _nothing() -> list[str]:
    return [_text(WIDTH / 2, _TOP + 40, "nothing to show", "faint", anchor="middle")]


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _nice_top(value: float) -> float:
    """Return the next of 1, 2, 4, 5 and 10 times a power of ten, so that quarters are round."""
    if value < sys.float_info.min:  # nothing, or so little that its powers of ten are not exact
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 10, 20) if step * power >= value)


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"
