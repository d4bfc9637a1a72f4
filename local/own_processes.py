"""A stack's own processes, the jobs' too: they work in its state folder, or name it."""

from pathlib import Path


def processes_of(folder: Path) -> list[Path]:
    """Return their folders in ``/proc``."""
    mark = str(folder).encode()
    return [path for path in Path("/proc").iterdir() if path.name.isdigit() and _names(path, mark)]


def _names(process: Path, mark: bytes) -> bool:
    try:
        return (
            mark in (process / "cmdline").read_bytes()
            or mark in (process / "environ").read_bytes()
            or str((process / "cwd").readlink()).encode().startswith(mark)
        )
    except OSError:  # it has ended, or is another user's
        return False
