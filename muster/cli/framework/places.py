"""Folders of the command in a person's home: settings with keys, and state."""

import os
import sys
from pathlib import Path


def config_folder() -> Path:
    """Return the folder of profiles and keys. On Windows it is private by the rights of the person's own folder."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "muster"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "muster"


def state_folder() -> Path:
    """Return the folder of what commands remember, such as changes that were not answered."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "muster"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "muster"
