"""Tests that failed in the last run, once more and alone: what is broken fails again, what hung on time is named.

For machines that are shared: at most three failures are looked at, and each that holds now is told, since it has a race
that somebody has to mend. Nothing is retried within ``make test``.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

MAX_FAILED: Final = 3
FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Zero only where few tests failed and every one of them holds alone."""
    try:
        failed = sorted(json.loads(FAILED.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return _ends("no test was noted as failed; what ended the run was something else")
    if not 0 < len(failed) <= MAX_FAILED:
        return _ends(f"{len(failed)} tests failed, no more than {MAX_FAILED} are looked at twice")
    ended = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False)
    if ended.returncode == 0:
        sys.stderr.write("\n".join(["FAILED BESIDE OTHERS, HELD ALONE (each has a race to mend):", *failed, ""]))
    return ended.returncode


def _ends(why: str) -> int:
    sys.stderr.write(f"second look: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
