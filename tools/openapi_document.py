"""Writer of docs/openapi.json (``make openapi``), the description of the API of this checkout.

Run as ``python -m tools.openapi_document``. With ``--check`` nothing is written, and the exit code is 1 if the file
differs from the code, or if a change breaks clients and CHANGELOG.md does not name it.
"""

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine

from api.app import create_inner_app
from api.dependencies import AppDependencies
from control.core.unit_of_work import UnitOfWorkFactory
from tools.openapi_changes import breaking_changes, unnamed

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "openapi.json"
CHANGELOG: Final = ROOT / "CHANGELOG.md"
VERSIONS_COMPARED: Final = 5
"""Number of versions of the file that are compared: a commit with a break is the newest in CI already."""

Document = dict[str, Any]


def described() -> Document:
    """Return the document of the code as it stands. No database is queried."""
    units = UnitOfWorkFactory(create_engine("postgresql+psycopg://"))
    return create_inner_app(AppDependencies(units=units, secret_key=b"never used" * 4)).openapi()


def written(document: Document) -> str:
    """Return the text of the file: sorted, so that a difference shows what changed and nothing else."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def committed_versions(*, limit: int = VERSIONS_COMPARED) -> list[Document]:
    """Return the newest versions of the file in the history, the newest first; none if there is no history."""
    path = DOCUMENT.relative_to(ROOT).as_posix()
    # First parents: no client could rely on a version of a branch before its merge.
    commits = _git("log", "--first-parent", f"-{limit}", "--format=%H", "--", path)
    if commits is None:
        return []
    return [json.loads(text) for commit in commits.split() if (text := _git("show", f"{commit}:{path}")) is not None]


def undeclared_breaks(current: Document, earlier: list[Document], changelog: str) -> list[str]:
    """Return the breaks of ``current`` and its predecessors, each against the one before, that the changelog does not
    name.
    """
    versions = [current, *earlier]
    return [str(found) for new, old in pairwise(versions) for found in unnamed(breaking_changes(old, new), changelog)]


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run([git, "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def main(arguments: list[str]) -> int:
    current = described()
    if "--check" not in arguments:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(written(current), encoding="utf-8")
    stale = not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != written(current)
    if stale:
        sys.stderr.write("docs/openapi.json is not what the code says: run `make openapi` and commit it.\n")
    breaks = undeclared_breaks(current, committed_versions(), CHANGELOG.read_text(encoding="utf-8"))
    for found in breaks:
        sys.stderr.write(f"breaks clients, and CHANGELOG.md does not say so: {found}\n")
    return 1 if stale or breaks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
