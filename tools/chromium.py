"""Chromium of this machine, and its arguments for our own pages: it downloads nothing."""

import os
import shutil
from typing import Final

VARIABLE: Final = "CHROMIUM"
"""Variable without our prefix, because our processes refuse an unknown setting."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_ARGUMENTS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # a container's /dev/shm is often too small for a page
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def executable() -> str | None:
    """Return the browser that the environment names, or the first on the path."""
    named = os.environ.get(VARIABLE)
    return named or next((found for found in map(shutil.which, NAMES) if found is not None), None)


def arguments() -> list[str]:
    """Return arguments by which it reaches nothing beyond this machine. Root has no sandbox to start it in."""
    return [*_ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else list(_ARGUMENTS)
