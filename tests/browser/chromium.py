"""The machine's own Chromium, driven by Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

from tools.chromium import VARIABLE, arguments, executable

START_MS: Final = 180_000


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Skips the test, loudly, where the machine has no Chromium."""
    path = executable()
    if path is None:
        pytest.skip(
            "NO CHROMIUM HERE, so no page was opened: install it (Debian: apt install chromium) "
            f"or name one in {VARIABLE}"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments(), timeout=START_MS)
        try:
            yield browser
        finally:
            browser.close()
