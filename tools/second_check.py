"""Second run of the tests that failed in the last run, alone (`make second-look`).

A broken test fails again. A test that passes alone failed only together with others: it has a race. On a shared machine
that may happen once: the first time is recorded and accepted. At most three failures are tried. ``make test`` retries
nothing.

The record is ``tests/failed_beside_others.tsv``, a file of the repository: a line a test, with day and revision. A
developer commits the new line. A run in a fresh clone, as in CI, leaves the line in ``.artefacts`` too, to be committed
from there. A test that stands in the file and fails together with others again fails the run: the race has to be
removed, and the line with it.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools.git import GitError, git

MAX_FAILED: Final = 3
FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")
RECORD: Final = Path("tests/failed_beside_others.tsv")
ARTEFACT: Final = Path(".artefacts/failed_beside_others.tsv")
HEADER: Final = "day\trevision\ttest\n"


def main() -> int:
    """Return zero only where few tests failed, every one of them holds alone, and none is on record."""
    try:
        failed = sorted(json.loads(FAILED.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return _refuse("no test was noted as failed; something else ended the run")
    if not 0 < len(failed) <= MAX_FAILED:
        return _refuse(f"{len(failed)} tests failed, no more than {MAX_FAILED} are tried again")
    recorded = read_record(RECORD)
    ended = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False)
    if ended.returncode != 0:
        return ended.returncode
    again = [test for test in failed if test in recorded]
    _record([test for test in failed if test not in recorded])
    sys.stderr.write("\n".join(["FAILED WITH OTHERS, PASSED ALONE (each has a race to remove):", *failed, ""]))
    if again:
        return _refuse(
            f"{RECORD} has these tests already, so they failed with others for the second time; remove the race and"
            f" the line: {', '.join(f'{test} (since {recorded[test]})' for test in again)}"
        )
    sys.stderr.write(f"Commit the new lines of {RECORD}: the next such failure of these tests fails the run.\n")
    return 0


def read_record(path: Path) -> dict[str, str]:
    """Return the day of each test on record."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return {test: day for day, _, test in (line.split("\t", 2) for line in lines if line)}


def _record(tests: list[str]) -> None:
    """Add the tests to the repository's file, and to the run's artefact."""
    if not tests:
        return
    day, revision = datetime.now(UTC).date().isoformat(), _revision()
    for path in (RECORD, ARTEFACT):
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_text(encoding="utf-8") if path.is_file() else HEADER
        added = "".join(f"{day}\t{revision}\t{test}\n" for test in tests)
        path.write_text(known + added, encoding="utf-8")


def _revision() -> str:
    try:
        return git(Path.cwd(), "rev-parse", "--short", "HEAD").strip()
    except GitError:
        return "unknown"


def _refuse(why: str) -> int:
    sys.stderr.write(f"second look: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
