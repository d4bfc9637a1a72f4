"""Charts into a folder, for ``muster simulate --plots``."""

from collections.abc import Mapping
from pathlib import Path

from muster.cli.framework.exits import CommandError, Exit


def require_folder(folder: Path | None) -> None:
    """Raises CommandError where something stands there that is no folder: it is asked before a trace is played."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise CommandError(f"--plots {folder} is no folder", "Name one, or one that is to be made.", Exit.USAGE)


def write_charts(folder: Path, charts: Mapping[str, str]) -> None:
    """Raises CommandError: the folder cannot be made, or not be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in charts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise CommandError(f"--plots {folder} cannot be written: {fault.strerror}", code=Exit.FAILED) from None
