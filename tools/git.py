"""The checkout's git, for tools that read what it knows."""

from __future__ import annotations

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


def text_at(root: Path, revision: str, path: str) -> str:
    """Return a file's text at a revision; of a file that was not there, no text."""
    try:
        return git(root, "show", f"{revision}:{path}")
    except GitError:
        return ""
