"""Charts in a folder, for ``muster simulate --plots``."""

from collections.abc import Mapping
from pathlib import Path

from muster.cli.framework.exits import CommandError, Exit


def require_folder(folder: Path | None) -> None:
    """Raise CommandError if the path exists and is no folder. It is called before a trace is played."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise CommandError(f"--plots {folder} is no folder", "Name a folder that exists, or a new one.", Exit.USAGE)


def write_charts(folder: Path, charts: Mapping[str, str]) -> None:
    """Write the charts. Raises CommandError: the folder cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in charts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise CommandError(f"--plots {folder} cannot be written: {fault.strerror}", code=Exit.FAILED) from None
