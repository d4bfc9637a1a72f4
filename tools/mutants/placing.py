"""Search for the line of a mutant in a checkout whose files may have moved since it was chosen.

The function's name and the line's text decide; the path is a hint among several equal lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.mutants.mutant import Mutant, Placed
from tools.mutants.sites import Scope, product_files, scopes_of


@dataclass(frozen=True, slots=True)
class _File:
    lines: tuple[str, ...]
    scopes: tuple[Scope, ...]

    def in_function(self, mutant: Mutant) -> int | None:
        """Return the number of the line within its function."""
        for scope in self.scopes:
            if scope.name == mutant.function:
                return self._nth(mutant, scope.first, scope.last)
        return None

    def anywhere(self, mutant: Mutant) -> int | None:
        """Return the number of the line where the file holds it once."""
        found = [number for number, line in enumerate(self.lines, 1) if line == mutant.line]
        return found[0] if len(found) == 1 else None

    def _nth(self, mutant: Mutant, first: int, last: int) -> int | None:
        found = [number for number in range(first, last + 1) if self.lines[number - 1] == mutant.line]
        return found[mutant.nth] if mutant.nth < len(found) else None


class Checkout:
    """The product's files of one checkout, read once."""

    def __init__(self, root: Path) -> None:
        self._files: dict[str, _File] = {}
        self._holding: dict[str, list[str]] = defaultdict(list)
        for path in product_files(root):
            text = (root / path).read_text(encoding="utf-8")
            lines = tuple(line.strip() for line in text.splitlines())
            self._files[path] = _File(lines, tuple(scopes_of(text)))
            for line in set(lines):
                self._holding[line].append(path)

    def place(self, mutant: Mutant) -> Placed | None:
        """Return where the mutant stands here; None if its line was removed, or stands at several equal places."""
        holding = self._holding.get(mutant.line, [])
        in_function = {path: self._files[path].in_function(mutant) for path in holding}
        path = _nearest((path for path, number in in_function.items() if number is not None), mutant.path)
        if path is not None:
            return Placed(mutant, path, in_function[path] or 0)
        anywhere = {path: self._files[path].anywhere(mutant) for path in holding}
        found = [(path, number) for path, number in anywhere.items() if number is not None]
        return Placed(mutant, *found[0]) if len(found) == 1 and len(holding) == 1 else None


def _nearest(paths: Iterable[str], hint: str) -> str | None:
    """Return the path that is most like the hint; None where two are equally like it."""
    ranked = sorted(((_likeness(path, hint), path) for path in paths), reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    return ranked[0][1]


def _likeness(path: str, hint: str) -> tuple[bool, bool, int]:
    """Compare the whole path, then the file's name, then the folders that both have."""
    one, other = PurePosixPath(path), PurePosixPath(hint)
    return path == hint, one.name == other.name, len(set(one.parts) & set(other.parts))
