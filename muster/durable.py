"""Files that survive a crash at any moment: written to a draft, flushed, renamed, and the folder flushed.

``muster.train`` and ``workers.host.supervisor`` keep their own: they may import nothing else of Muster.
"""

import os
import sys
from pathlib import Path


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path`` by ``content``: after a crash there is the whole old file or the whole new one.

    ``mode``: of the file, less what the umask takes.
    """
    draft = _draft_of(path)
    try:
        _write_flushed(draft, content, mode)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_durably(path: Path, content: bytes) -> bool:
    """Write ``path`` whole, mode 0600, unless it exists. Whether it was written."""
    draft = _draft_of(path)
    try:
        _write_flushed(draft, content)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def place_durably(draft: Path, descriptor: int, path: Path) -> None:
    """Move ``draft``, open as ``descriptor``, to ``path`` of the same disk, where it is whole after any crash.

    For a file that is written in pieces. A file that was there is replaced.
    """
    os.fsync(descriptor)
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # a folder cannot be opened there, and NTFS keeps a journal of its names
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _write_flushed(path: Path, content: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
