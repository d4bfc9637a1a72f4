"""A small repository for tests: files by path, committed."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


def git(root: Path, *arguments: str) -> str:
    ended = subprocess.run(["git", *AUTHOR, *arguments], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607  # the git of the path
    return ended.stdout.strip()


def commit(root: Path, files: Mapping[str, str]) -> str:
    """Write the files, commit them with all else that changed, and return the commit."""
    root.mkdir(exist_ok=True)
    if not (root / ".git").exists():
        git(root, "init", "--quiet")
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "any")
    return git(root, "rev-parse", "HEAD")
