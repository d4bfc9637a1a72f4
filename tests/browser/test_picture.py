"""The picture of the running fleet that README.md shows: `make screenshot` keeps it."""

import os
import struct
from pathlib import Path

from tests.browser.browsing import ROOT, Browsing
from tests.browser.small_fleet import Hit

VARIABLE = "PICTURE"
"""Where the picture is kept with the artefacts, from the folder of the repository."""
PICTURE = ROOT / "docs" / "fleet.png"
MOST_BYTES = 250_000
REPORTING = "live"


def width_of(picture: Path) -> int:
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    (width,) = struct.unpack(">I", content[16:20])
    return int(width)


def test_the_running_fleet_is_pictured(console: Browsing, hit: Hit) -> None:
    """With the GPU that is out, the running jobs, and the fault timeline of both."""
    console.open("/console", ready="[data-map][data-ready]")
    console.page.locator("[data-map-age]", has_text=REPORTING).wait_for()
    console.see("XID 95")
    picture = console.shot("fleet")
    if VARIABLE in os.environ:
        (ROOT / os.environ[VARIABLE]).write_bytes(picture.read_bytes())
    assert width_of(picture) == 1280
    assert picture.stat().st_size < MOST_BYTES


def test_the_readme_shows_a_picture_that_was_kept() -> None:
    assert "](docs/fleet.png)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert width_of(PICTURE) == 1280
    assert PICTURE.stat().st_size < MOST_BYTES
