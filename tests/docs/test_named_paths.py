"""Files, functions and headings that the pages for engineers name are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, name_of

ENGINEERS = [ROOT / "ARCHITECTURE.md", *sorted(DOCS.glob("internals/*.md")), *sorted(DOCS.glob("decisions/*.md"))]
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)*)(?:::(?P<name>\w+))?")
_HEADING = re.compile(r"(?m)^#+ +(.+?)[ ]*$")
_ANCHOR = re.compile(r"\]\((?P<page>[^)#:]*)#(?P<anchor>[^)]+)\)")
_SUFFIXES = (".py", ".md", ".json", ".toml", ".yaml", ".yml", ".svg", ".sh", ".txt")
FEWEST = 150


def named(page: Path) -> set[tuple[str, str]]:
    """(path, name of a definition or "") of each file and folder of the repository that ``page`` names."""
    spans = _CODE.findall(re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8")))
    found = {(match["path"], match["name"] or "") for span in spans if (match := _PATH.fullmatch(span))}
    return {(path, name) for path, name in found if _is_path(path) or name}


def _is_path(path: str) -> bool:
    """Whether it is named as a path from the root: its first folder is one of the repository's, or was."""
    return "/" in path and (path.split("/", maxsplit=1)[0] in _roots() or path.endswith(".py"))


@cache
def _roots() -> frozenset[str]:
    kept = {
        "muster",
        "health",
        "ledger",
        "watch",
        "scheduler",
        "control",
        "workers",
        "agents",
        "api",
        "console",
        "simulator",
        "local",
    }
    return frozenset(kept | {path.name for path in ROOT.iterdir() if path.is_dir()})


def missing(page: Path) -> list[str]:
    """What ``page`` names and is not there."""
    return sorted(f"{path}::{name}" if name else path for path, name in named(page) if not _is_there(path, name))


def _is_there(path: str, name: str) -> bool:
    return f"{path}/" in _built() or ((ROOT / path).exists() and (not name or name in _definitions(path)))


@cache
def _built() -> frozenset[str]:
    """Folders that a build makes: a fresh checkout has none."""
    return frozenset((ROOT / ".gitignore").read_text(encoding="utf-8").splitlines())


@cache
def _definitions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of ``page``, as they are made for a link."""
    headings = _HEADING.findall(re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ENGINEERS, ids=name_of)
def test_each_path_that_is_named_is_there(page: Path) -> None:
    assert missing(page) == []


def test_the_pages_name_many_paths() -> None:
    assert len({path for page in ENGINEERS for path, _ in named(page)}) >= FEWEST, "the pages are read"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_heading_that_is_linked_is_there(page: Path) -> None:
    links = [(match["page"], match["anchor"]) for match in _ANCHOR.finditer(page.read_text(encoding="utf-8"))]
    targets = [((page.parent / path) if path else page, anchor) for path, anchor in links]
    assert [f"{target}#{anchor}" for target, anchor in targets if anchor not in anchors_of(target)] == []


def test_a_path_and_a_function_that_are_not_there_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`tests/docs/gone.py`, `tests/docs/pages.py::indexed`, `tests/docs/pages.py::gone`, `muster up`\n")
    assert missing(page) == ["tests/docs/gone.py", "tests/docs/pages.py::gone"]
