"""The machine's own Chromium, driven by Playwright: nothing is ever downloaded, and nothing outside is reached."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

VARIABLE: Final = "MUSTER_CHROMIUM"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # a container's /dev/shm is often too small for a page
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
START_MS: Final = 180_000


def executable() -> str | None:
    """The browser that the run names, or the first that the path has."""
    named = os.environ.get(VARIABLE)
    return named or next((found for found in map(shutil.which, NAMES) if found is not None), None)


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
        arguments = [*ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else list(ARGUMENTS)  # root has no sandbox
        browser = playwright.chromium.launch(executable_path=path, args=arguments, timeout=START_MS)
        try:
            yield browser
        finally:
            browser.close()
