"""Files that are whole or not there, also after the machine has lost its power."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Whole or not at all, and on disk when this returns."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
