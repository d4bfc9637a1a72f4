"""A person at a page: what they open, press and see, and whether anybody else could as well."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Locator, Page, expect

from tests.browser.accessibility import serious_findings
from tests.browser.watch import Watch
from tests.scaled import IS_SOAK

Theme = Literal["light", "dark"]
ROOT: Final = Path(__file__).parent.parent.parent
SCREENSHOTS: Final = ROOT / ".artefacts" / "screenshots"
KEEPS_PICTURES: Final = IS_SOAK or os.environ.get("PICTURES") == "1"
"""Whether pictures for inspection are stored: they cost a sixth of the CPU time, and no test reads them."""
HEIGHTS: Final = {1280: 900, 390: 844}
PATIENCE_MS: Final = 120_000.0
MOST_TABS: Final = 200

# The element that has the focus, if a person can see that it has it: an outline, or a frame drawn as a shadow.
FOCUSED: Final = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const style = getComputedStyle(at), before = at.matches(":focus-visible");
  const isDrawn = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
  const words = at.ariaLabel || at.labels?.[0]?.innerText || at.innerText || at.textContent || at.title || at.name;
  return { words: (words || "").replace(/\\s+/g, " ").trim(), isSeen: before && isDrawn };
}"""
# Whatever reaches beyond the page's right edge, by itself or by what flows out of it, and tables of which a part is
# seen by scrolling alone; nothing where the page fits.
TOO_WIDE: Final = """() => {
  const room = document.documentElement.clientWidth;
  const cut = [...document.querySelectorAll(".table-wrap")].filter((one) => one.scrollWidth > one.clientWidth + 1);
  if (cut.length) return cut.map((one) => `a table of ${one.scrollWidth} px in ${one.clientWidth} px`);
  if (document.scrollingElement.scrollWidth <= room) return [];
  const flowsOut = (one) => getComputedStyle(one).overflowX === "visible" ? one.scrollWidth : 0;
  return [`${document.scrollingElement.scrollWidth} px`, ...[...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().left + Math.max(one.offsetWidth || 0, flowsOut(one)) > room + 1)
    .slice(0, 8).map((one) => `${one.tagName.toLowerCase()}.${one.className}`)];
}"""


@dataclass(frozen=True, slots=True)
class Check:
    """The way in which a page is checked."""

    theme: Theme
    width_px: int

    def __str__(self) -> str:
        return f"{self.theme}-{self.width_px}"


THEMES_AT: Final[dict[int, tuple[Theme, ...]]] = (
    {1280: ("light", "dark"), 390: ("light", "dark")} if IS_SOAK else {1280: ("light",), 390: ("dark",)}
)
"""Width → the themes in which a page is inspected: each width and each theme once, in `make soak` each pair."""
DEFAULT: Final = Check("light", 1280)
NEXT_FRAME: Final = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
"""Script that ends when the page is laid out again, which includes what its resize observers have changed."""


class Browsing:
    """One signed-in (or unknown) person with one page. ``label`` names the screenshots."""

    def __init__(self, page: Page, watch: Watch, label: str, *, scripts: bool = True) -> None:
        self.page = page
        self.watch = watch
        self._label = label
        self._scripts = scripts
        self._check = DEFAULT
        page.set_default_timeout(PATIENCE_MS)
        self.check(DEFAULT)

    def check(self, check: Check) -> None:
        """Light or dark, a desk's width or a phone's. Without movement, so that pictures are still."""
        self._check = check
        self.page.set_viewport_size({"width": check.width_px, "height": HEIGHTS[check.width_px]})
        self.page.emulate_media(color_scheme=check.theme, reduced_motion="reduce")

    def open(self, path: str, *, ready: str | None = None, status: int = 200) -> None:
        """``ready``: what the page has once its scripts have done their first work."""
        with self.expecting(status) if status >= 400 else self.expecting():
            answer = self.page.goto(f"{self.watch.base_url}{path}")
            assert answer is not None
            assert answer.status == status, f"{path} answered {answer.status}"
            if self._scripts:
                self.page.evaluate("document.fonts.ready.then(() => true)")
        if ready is not None:
            self.page.locator(ready).first.wait_for()

    @contextmanager
    def expecting(self, *statuses: int) -> Iterator[None]:
        """Answers of these statuses are what the test is about, and no faults."""
        with self.watch.expecting(*statuses):
            yield

    def keep(self, name: str = "page") -> None:
        """Store a picture for inspection where the run keeps pictures."""
        if KEEPS_PICTURES:
            self.shot(name)

    def shot(self, name: str = "page") -> Path:
        """Store the whole page as a picture."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{self._label}--{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}-{self._check}.png"
        self.page.screenshot(path=path, full_page=True)
        return path

    def require_accessible(self) -> None:
        """No serious or critical finding of axe-core."""
        findings = serious_findings(self.page)
        assert not findings, "\n".join([f"{self.page.url} ({self._check}):", *findings])

    def require_fit(self) -> None:
        """Nothing makes the page scroll sideways."""
        too_wide: Sequence[str] = self.page.evaluate(TOO_WIDE)
        assert not too_wide, f"{self.page.url} is wider than {self._check.width_px} px: {', '.join(too_wide)}"

    def require_each_id_once(self) -> None:
        """No part of the page stands there twice: headings, links and scripts find parts by their ids."""
        ids: Sequence[str] = self.page.evaluate("() => [...document.querySelectorAll('[id]')].map((one) => one.id)")
        twice = sorted(each for each, number in Counter(ids).items() if number > 1)
        assert not twice, f"{self.page.url} has these ids more than once: {', '.join(twice)}"

    def inspect(self, name: str = "page") -> None:
        """The page as it is now: fits, and can be used by everybody."""
        self.keep(name)
        self.require_fit()
        self.require_each_id_once()
        self.require_accessible()

    def inspect_in_each_check(
        self, path: str, name: str = "page", *, ready: str | None = None, status: int = 200
    ) -> None:
        """Inspect the page at a desk's width and a phone's, light and dark.

        A page with ``ready`` has scripts that draw by width and theme, so it is opened at each width. Any other page is
        the same document at each width: it is opened once, and resized as a person turns a phone. `make soak` opens
        each page at each width.
        """
        is_open = False
        for width, themes in THEMES_AT.items():
            for theme in themes:
                self.check(Check(theme, width))
                if not is_open or (theme == themes[0] and (IS_SOAK or ready is not None)):
                    self.open(path, ready=ready, status=status)
                    is_open = True
                elif self._scripts:
                    self.page.evaluate(NEXT_FRAME)
                self.inspect(name)
        self.check(DEFAULT)

    def tab_to(self, words: str) -> Locator:
        """By the Tab key alone, to what is called so; every stop on the way shows that it has the focus."""
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Tab")
            found = self.page.evaluate(FOCUSED)
            if found is None:
                continue
            assert found["isSeen"], f"a person cannot see that “{found['words']}” has the focus"
            if words.lower() in found["words"].lower():
                return self.page.locator(":focus")
        message = f"the Tab key does not lead to “{words}” on {self.page.url}"
        raise AssertionError(message)

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)

    def wait_for_words(self, selector: str, words: str) -> None:
        """Until this part of the page says exactly that. (``wait_for_function`` evals, which the policy forbids.)"""
        expect(self.page.locator(selector)).to_have_text(words, timeout=PATIENCE_MS)

    def see(self, words: str) -> None:
        """These words stand on the page, now or soon."""
        expect(self.page.get_by_text(words).filter(visible=True).first).to_be_visible(timeout=PATIENCE_MS)

    def words(self, selector: str = "main") -> str:
        """What stands there now, with single spaces."""
        return " ".join(self.page.locator(selector).first.inner_text().split())
