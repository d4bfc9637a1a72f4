"""A mutant finds its line again in files that moved, and reports where it cannot."""

from pathlib import Path

import pytest

from tools.mutants.mutant import Mutant
from tools.mutants.placing import Checkout

RULE = "class Rule:\n    def holds(self, a, b):\n        if a < b:\n            return True\n        return False\n"
MUTANT = Mutant("muster/services/rules.py", "Rule.holds", "if a < b:", 0, "comparison", "if a <= b:")


def place(root: Path, *mutants: Mutant, **files: str) -> tuple[str, int] | None:
    """Return where the mutant stands in a checkout of these files; ``__`` in a name is a folder's end."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    placed = Checkout(root).place(*(mutants or (MUTANT,)))
    return None if placed is None else (placed.path, placed.number)


def test_it_stands_where_it_was(tmp_path: Path) -> None:
    assert place(tmp_path, muster__services__rules=RULE) == ("muster/services/rules.py", 3)


@pytest.mark.parametrize("name", ["control__jobs__rules", "control__jobs__commands"])
def test_it_moves_with_its_file(tmp_path: Path, name: str) -> None:
    assert place(tmp_path, **{name: f"import os\n\n{RULE}"}) == (f"{name.replace('__', '/')}.py", 5)


def test_of_two_equal_functions_the_file_of_its_name_is_meant(tmp_path: Path) -> None:
    assert place(tmp_path, control__rules=RULE, control__others=RULE) == ("control/rules.py", 3)


def test_two_places_that_are_equally_likely_are_no_place(tmp_path: Path) -> None:
    assert place(tmp_path, control__one=RULE, control__two=RULE) is None


def test_a_renamed_function_is_found_by_a_line_that_stands_once(tmp_path: Path) -> None:
    assert place(tmp_path, control__rules=RULE.replace("holds", "is_met")) == ("control/rules.py", 3)


def test_a_rewritten_line_has_no_place(tmp_path: Path) -> None:
    assert place(tmp_path, muster__services__rules=RULE.replace("a < b", "b > a")) is None


def test_the_second_of_equal_lines_is_found(tmp_path: Path) -> None:
    text = "def f(a):\n    a.b()\n    a.b()\n"
    mutant = Mutant("health/it.py", "f", "a.b()", 1, "deletion", "pass")
    assert place(tmp_path, mutant, health__it=text) == ("health/it.py", 3)


def test_the_key_does_not_depend_on_the_path() -> None:
    moved = Mutant(
        "control/rules.py", *(getattr(MUTANT, name) for name in Mutant.__dataclass_fields__ if name != "path")
    )
    assert moved.key == MUTANT.key
