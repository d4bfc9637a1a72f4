"""The checkout's git, for tools that read what it knows."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class GitError(Exception):
    """Git is not installed, the folder is no checkout, or a revision is not known."""


def git(root: Path, *words: str) -> str:
    """Return what a command of git prints.

    Raises:
        GitError: with git's own reason.
    """
    program = shutil.which("git")
    if program is None:
        raise GitError("git is not installed")
    ended = subprocess.run([program, *words], cwd=root, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        raise GitError(ended.stderr.strip())
    return ended.stdout


def listed_files(root: Path, *patterns: str) -> list[str]:
    """Return the sorted paths of the files that git tracks or would add. A file that was deleted is left out."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns).split("\0")
    return sorted({name for name in names if name and (root / name).is_file()})


def text_at(root: Path, revision: str, path: str) -> str:
    """Return a file's text at a revision; of a file that was not there, no text."""
    try:
        return git(root, "show", f"{revision}:{path}")
    except GitError:
        return ""


def set_up_hooks(root: Path) -> None:
    """Put the hooks of `.githooks` in force for a developer's checkout; one that has hooks of its own keeps them.

    A clone of CI commits nothing and gets none.
    """
    if os.environ.get("CI") or not (root / ".git").exists():
        return
    with contextlib.suppress(GitError):
        if not git(root, "config", "--default", "", "--get", "core.hooksPath").strip():
            git(root, "config", "core.hooksPath", ".githooks")
