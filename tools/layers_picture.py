"""Writer of docs/pictures/layers.svg (``make layers``), the bird's-eye picture in ARCHITECTURE.md.

Run as ``python -m tools.layers_picture``. With ``--check`` nothing is written, and the exit is 1 where the file is not
what docs/pictures/layers.json says. A test holds that file against the layers in .importlinter. The picture follows a
light or dark theme by itself.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "docs" / "pictures" / "layers.json"
PICTURE: Final = ROOT / "docs" / "pictures" / "layers.svg"
WIDTH: Final = 960
MARGIN: Final = 16
GAP: Final = 10
BOX_HEIGHT: Final = 56
TITLE_HEIGHT: Final = 30
_CHARACTER_WIDTH: Final = 6.3
"""Width of a character of the captions' font at 12 px, about: enough to break lines."""
_STYLE: Final = """\
  text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2933; }
  .module { font-family: ui-monospace, monospace; font-size: 13px; font-weight: 600; }
  .title { font-size: 13px; font-weight: 600; fill: #52606d; }
  .box { fill: #f5f7fa; stroke: #7b8794; }
  .ground { fill: #e3f2ec; stroke: #3f8f6f; }
  .paper { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; }
    .title { fill: #9aa5b1; }
    .box { fill: #1f2933; stroke: #7b8794; }
    .ground { fill: #16332a; stroke: #5fb892; }
    .paper { fill: #0f1419; }
  }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A package in the picture, in pixels from the upper left."""

    module: str
    caption: str
    x: float
    y: float
    width: float
    kind: str = "box"


def draw(data: dict[str, Any]) -> str:
    """Return the picture of ``data`` as SVG."""
    titles, boxes = _lay_out(data)
    height = max(box.y for box in boxes) + BOX_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">',
        f"<title>{escape(data['title'])}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height:g}"/>',
        *(f'<text class="title" x="{x:g}" y="{y:g}">{escape(text)}</text>' for x, y, text in titles),
        *(line for box in boxes for line in _svg(box)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lay_out(data: dict[str, Any]) -> tuple[list[tuple[float, float, str]], list[Box]]:
    """Return the titles and boxes at their places; rows have ``data["grid"]`` columns."""
    unit = (WIDTH - 2 * MARGIN + GAP) / data["grid"]
    titles: list[tuple[float, float, str]] = []
    boxes: list[Box] = []
    top: float = MARGIN
    for row in data["rows"]:
        titles += [
            (round(MARGIN + unit * title["from"], 1), top + TITLE_HEIGHT * 0.6, title["text"])
            for title in row.get("titles", ())
        ]
        top += TITLE_HEIGHT if "titles" in row else 0
        for box in row["boxes"]:
            left, right = unit * box["from"], unit * box["to"] - GAP
            place = (round(MARGIN + left, 1), top, round(right - left, 1))
            boxes.append(Box(box["module"], box["caption"], *place, row.get("kind", "box")))
        top += BOX_HEIGHT + GAP
    return titles, boxes


def _svg(box: Box) -> Iterator[str]:
    yield (f'<rect class="{box.kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{BOX_HEIGHT}" rx="4"/>')
    yield f'<text class="module" x="{box.x + 8:g}" y="{box.y + 17:g}">{escape(box.module)}</text>'
    for number, line in enumerate(wrap(box.caption, int((box.width - 16) / _CHARACTER_WIDTH))[:2]):
        yield f'<text x="{box.x + 8:g}" y="{box.y + 32 + 14 * number:g}">{escape(line)}</text>'


def main(arguments: list[str]) -> int:
    """Write the picture, or say whether it is up to date."""
    text = draw(json.loads(DATA.read_text(encoding="utf-8")))
    if "--check" not in arguments:
        PICTURE.write_text(text, encoding="utf-8")
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/pictures/layers.svg is not what layers.json says: run `make layers` and commit it.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
