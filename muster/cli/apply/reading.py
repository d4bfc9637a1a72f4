"""The documents of files, folders or stdin, each with its place; with all faults at once."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.cli.apply.kinds import DOCUMENT_KINDS, VERSION, Document
from muster.cli.framework.document_files import MOST_FAULTS, decoded, faults_in_json, place_words, unreadable
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.yaml_loading import UNREADABLE, Placed, placed_documents
from muster.domain.errors import ValidationFailedError
from muster.domain.validation import validated

STDIN: Final = "-"
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True)
class Wanted:
    """A document and its place. ``name``: of its file."""

    document: Document
    name: str
    placed: Placed

    @property
    def where(self) -> str:
        return f"{self.name}, line {self.placed.line}"

    def fault(self, detail: str, pointer: str = "") -> str:
        """Return a fault of the document with its line and field."""
        return _fault(self.name, self.placed, pointer, detail)


def read_documents(paths: Sequence[Path]) -> list[Wanted]:
    """Return the documents. Raises ``CommandError`` with every fault of all of them."""
    found: list[Wanted] = []
    faults: list[str] = []
    for name, text in _texts(paths):
        for placed in _documents(name, text):
            wrong = list(_faults_of(name, placed))
            faults += wrong
            if not wrong:
                found.append(Wanted(validated(DOCUMENT_KINDS[placed.value["kind"]], placed.value), name, placed))
    require_none(faults)
    if not found:
        raise CommandError("the files hold no document", "A document has `kind`, `version` and fields.", Exit.INVALID)
    return found


def require_none(faults: Sequence[str]) -> None:
    """Require that there are no faults. Raises ``CommandError`` with all of them, and that nothing was changed."""
    if not faults:
        return
    more = [f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    words = "\n  ".join(["nothing was changed:", *faults[:MOST_FAULTS], *more])
    raise CommandError(words, "Correct them, and apply the files again.", Exit.INVALID)


def _texts(paths: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        is_stdin = str(path) == STDIN
        for file in [path] if is_stdin else _files(path):
            name = "stdin" if is_stdin else str(file)
            try:
                content = sys.stdin.buffer.read() if is_stdin else file.read_bytes()
            except OSError as error:
                words = f"{name}: cannot be read ({error.strerror})"
                raise CommandError(words, "Name a file, a folder or -.", Exit.USAGE) from None
            yield name, decoded(name, content)


def _files(path: Path) -> list[Path]:
    """Return the files of a folder, not of folders in it, by name; of a file itself."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and not each.name.startswith("."))
    if not found:
        suffixes = ", ".join(sorted(SUFFIXES))
        raise CommandError(f"{path}: holds no file that ends in {suffixes}", "Folders in it are not read.", Exit.USAGE)
    return found


def _documents(name: str, text: str) -> list[Placed]:
    try:
        return [each for each in placed_documents(text) if each.value is not None]
    except UNREADABLE as error:
        raise unreadable(name, error, "JSON is YAML too.") from error


def _faults_of(name: str, placed: Placed) -> Iterator[str]:
    document = placed.value
    if not isinstance(document, dict):
        yield _fault(name, placed, "", "is no mapping with `kind`, `version` and fields")
        return
    if beyond := faults_in_json(document):
        yield from (_fault(name, placed, "", words) for words in beyond)
        return
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in DOCUMENT_KINDS:
        yield _fault(
            name, placed, "/kind", f"there are the kinds {', '.join(DOCUMENT_KINDS)}; this is {json.dumps(kind)}"
        )
        return
    if document.get("version") != VERSION:
        yield _fault(name, placed, "/version", f"must be {VERSION}, the version of a {kind} that this release knows")
        return
    try:
        validated(DOCUMENT_KINDS[kind], document)
    except ValidationFailedError as refused:
        yield from (_fault(name, placed, fault.pointer, fault.detail) for fault in refused.faults)


def _fault(name: str, placed: Placed, pointer: str, detail: str) -> str:
    place = place_words(pointer, "the whole")
    return f"{name}, line {placed.line_of(pointer)}, {place}: {detail}"
