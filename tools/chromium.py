"""Where this machine has a Chromium, and how it is started for pages of our own: nothing is downloaded by it."""

import os
import shutil
from typing import Final

VARIABLE: Final = "CHROMIUM"
"""Without our prefix: a process of ours refuses a setting that it does not know."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_ARGUMENTS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # a container's /dev/shm is often too small for a page
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def executable() -> str | None:
    """The browser that the environment names, or the first that the path has."""
    named = os.environ.get(VARIABLE)
    return named or next((found for found in map(shutil.which, NAMES) if found is not None), None)


def arguments() -> list[str]:
    """Nothing beyond this machine is reached. Root has no sandbox to start it in."""
    return [*_ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else list(_ARGUMENTS)
