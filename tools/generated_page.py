"""A page of the documents that a program writes: written, or compared with the program's output."""

import sys
from pathlib import Path


def write_or_check(page: Path, text: str, arguments: list[str], *, source: str, command: str) -> int:
    """Return the exit code. With ``--check`` nothing is written, and it is 1 if the page is not ``text``."""
    if "--check" not in arguments:
        page.write_text(text, encoding="utf-8")
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"docs/reference/{page.name} is not what {source} says: run `{command}` and commit it.\n")
    return 1
