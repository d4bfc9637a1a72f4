"""What a work folder leaves out: git's own rules for `.gitignore`, the same rules in `.musterignore`, and caches."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from muster.content.faults import FolderError, shown

RULE_FILES: Final = (".gitignore", ".musterignore")
"""Later ones win: ``!data/`` in `.musterignore` takes a folder that git leaves out."""
FOLDERS_LEFT_OUT: Final = frozenset({".git", ".hg", ".svn", ".muster", "__pycache__"})
"""Left out wherever they lie, as ``FILES_LEFT_OUT``, unless a file of patterns takes them: ``!.git/``."""
FILES_LEFT_OUT: Final = (".pyc", ".pyo", ".DS_Store")
ENVIRONMENT_MARK: Final = "pyvenv.cfg"
"""A folder with this file is a virtual environment. Its paths fit the machine that made it, and no other."""
_MAX_BYTES: Final = 1 << 20


class Rules:
    """The rules of one folder, and of the folders above it."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec, str], ...] = ()) -> None:
        """``specs``: the folder where each stands, with a slash at its end, its patterns, and its path. The weakest is
        the first.
        """
        self._specs = specs

    def inside(self, folder: Path, path: str, names: set[str]) -> Rules:
        """Return the rules inside of ``folder``, which has the path ``path`` and files with these names.

        Raises FolderError: a file of patterns cannot be read.
        """
        more = tuple((path, _read(folder / name, path + name), path + name) for name in RULE_FILES if name in names)
        return Rules((*self._specs, *more)) if more else self

    def leave_out(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a path is left out. The rule that stands nearest to it, and last there, decides."""
        for base, spec, _ in reversed(self._specs):
            found = spec.check_file(path[len(base) :] + ("/" if is_folder else "")).include
            if found is not None:
                return found
        return path.rpartition("/")[2] in FOLDERS_LEFT_OUT if is_folder else path.endswith(FILES_LEFT_OUT)

    def source_of(self, path: str, *, is_folder: bool) -> str | None:
        """Return the file whose rule decides on a path; None: none does."""
        for base, spec, file in reversed(self._specs):
            if spec.check_file(path[len(base) :] + ("/" if is_folder else "")).include is not None:
                return file
        return None


def _read(file: Path, shown_as: str) -> GitIgnoreSpec:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise FolderError(f"{shown(shown_as)}: it has more than {_MAX_BYTES:,} bytes; write fewer patterns")
        return GitIgnoreSpec.from_lines(content.decode().splitlines())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FolderError(f"{shown(shown_as)}: its patterns cannot be read: {error}") from error
