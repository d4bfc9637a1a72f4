"""The pages of the repository: all of them, and the pages that a test types, in the order of their indexes."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
FOLDERS: Final = ("operator", "tenant", "api")
"""Whose pages are typed: one page of that name, or a folder whose README.md is the index, a row of its table a page."""
GROUPS: Final = (("operator",), ("tenant", "api"))
"""The folders that one stack serves, in this order. Groups are typed at the same time, each on a stack of its own."""
RUNBOOKS: Final = sorted((DOCS / "runbooks").glob("*.md"))
PAGES: Final = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
_LINK: Final = re.compile(r"\]\(([^)#:]+\.md)\)")


def indexed(folder: Path) -> list[Path]:
    """Return the pages that the index of ``folder`` names in its table, in their order."""
    rows = [line for line in (folder / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [(folder / name).resolve() for row in rows for name in _LINK.findall(row)]


def typed_of(folder: str) -> list[Path]:
    """Return the pages of ``folder`` in the order in which a test types them."""
    return indexed(DOCS / folder) if (DOCS / folder).is_dir() else [DOCS / f"{folder}.md"]


def name_of(page: Path) -> str:
    """Return the path of ``page`` within the repository."""
    return page.relative_to(ROOT).as_posix()


TYPED: Final = [page for folder in FOLDERS for page in typed_of(folder)]
STARTS_THE_STACK: Final = TYPED[0] if TYPED[0].name == "operator.md" else DOCS / "quickstart-operator.md"
"""The page that says with which words the stack is started."""
