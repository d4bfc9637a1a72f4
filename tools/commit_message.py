"""The commit-msg hook: a subject ``area: imperative`` of at most 72 characters, a blank line, and why.

Run by ``.githooks/commit-msg``, which ``make setup`` puts in force for this checkout. Standard library only: the hook
runs on the system's python.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from tools.git import GitError, git

MAX_SUBJECT: Final = 72
MAX_LINE: Final = 100
WITHOUT_BODY: Final = 3
"""Changed files up to which the subject may say all."""
SUBJECT: Final = re.compile(r"(?P<area>[a-z][a-z0-9./_-]*(?:, [a-z][a-z0-9./_-]*)*): (?P<words>\S.*)")
OF_GIT: Final = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS: Final = "# ------------------------ >8 ------------------------"
NOT_IMPERATIVE: Final = re.compile(
    r"(?:\w+(?:ed|ing)|adds|fixes|makes|removes|changes|moves|updates|uses|the|a|an)", re.IGNORECASE
)
"""First words that begin no request. Some verbs end alike: ``IMPERATIVE`` lists them."""
IMPERATIVE: Final = frozenset(
    {"bring", "feed", "embed", "need", "ping", "seed", "shed", "speed", "string", "bed", "exceed"}
)


def faults_of(text: str, changed: int = 0) -> list[str]:
    """Return what is wrong with the message of ``changed`` files, each as a sentence that says what to write."""
    lines = [line.rstrip() for line in _written(text)]
    while lines and not lines[0]:
        lines.pop(0)
    if not lines:
        return ["The message is empty: write `area: imperative`, such as `scheduler: keep a held gang's order`."]
    if lines[0].startswith(OF_GIT):
        return []
    faults = _subject_faults(lines[0])
    if len(lines) > 1 and lines[1]:
        faults.append("The second line is not blank: leave one line free between subject and body.")
    body = [line for line in lines[1:] if line]
    faults += [
        f"A line of the body has {len(line)} characters: wrap it at {MAX_LINE}. It begins {line[:30]!r}."
        for line in body
        if len(line) > MAX_LINE and " " in line.strip()
    ]
    if not body and changed > WITHOUT_BODY:
        faults.append(f"{changed} files change and the message has no body: say why, after a blank line.")
    return faults


def _written(text: str) -> list[str]:
    """Return the lines that go into the history: git removes comments, and all below its scissors."""
    lines = text.partition(SCISSORS)[0].splitlines()
    return [line for line in lines if not line.startswith("#")]


def _subject_faults(subject: str) -> list[str]:
    faults = []
    if len(subject) > MAX_SUBJECT:
        faults.append(
            f"The subject has {len(subject)} characters, {MAX_SUBJECT} are allowed: move the why to the body."
        )
    if subject.endswith("."):
        faults.append("The subject ends with a full stop: leave it out.")
    found = SUBJECT.fullmatch(subject)
    if found is None:
        faults.append("The subject has no area: write `area: imperative`, such as `api: refuse an empty tenant name`.")
        return faults
    first = found["words"].split()[0]
    if NOT_IMPERATIVE.fullmatch(first) and first.lower() not in IMPERATIVE:
        faults.append(
            f"The subject begins with {first!r}: begin with a verb in the imperative, such as add, fix, keep."
        )
    return faults


def _staged() -> int:
    """Return how many files the commit changes."""
    try:
        return len(git(Path.cwd(), "diff", "--cached", "--name-only").splitlines())
    except GitError:
        return 0


def main() -> int:
    """Refuse the message in the file that git names, with the reasons."""
    path = Path(sys.argv[1])
    faults = faults_of(path.read_text(encoding="utf-8"), _staged())
    if not faults:
        return 0
    sys.stderr.write("".join(f"commit message: {fault}\n" for fault in faults))
    sys.stderr.write(f"The message is kept: `git commit -eF {path}` opens it again.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
