"""The machine's own Chromium, driven by Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

from tools.chromium import VARIABLE, arguments, executable

START_MS: Final = 180_000
NO_OPTIMISERS: Final = "--js-flags=--no-opt --no-maglev"
"""Argument without V8's optimising compilers: a page of a test ends before their code repays what it cost."""


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
        words = [*arguments(), NO_OPTIMISERS]
        browser = playwright.chromium.launch(executable_path=path, args=words, timeout=START_MS)
        try:
            yield browser
        finally:
            browser.close()
