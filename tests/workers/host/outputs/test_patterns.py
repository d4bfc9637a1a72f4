"""Patterns of outputs take the files that they name, and nothing is slow for any of them."""

import time

import pytest

from workers.host.outputs.patterns import Patterns


def takes(patterns: list[str], path: str) -> bool:
    found = Patterns(patterns)
    place = found.start
    for name in path.split("/"):
        place = found.inside(place, name)
    return found.takes(place)


@pytest.mark.parametrize(
    ("pattern", "path", "is_taken"),
    [
        ("model.pt", "model.pt", True),
        ("model.pt", "models/model.pt", False),
        ("*.pt", "a.pt", True),
        ("*.pt", "x/a.pt", False),
        ("*.pt", ".hidden.pt", True),
        ("x/*.pt", "x/a.pt", True),
        ("**/*.pt", "a.pt", True),
        ("**/*.pt", "x/y/a.pt", True),
        ("x/**", "x/y/a", True),
        ("x", "x/y/a", True),
        ("x/**/z", "x/z", True),
        ("x/**/z", "x/y/y/z", True),
        ("x/**/z", "y/z", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("[ab].pt", "a.pt", False),
        ("[ab].pt", "[ab].pt", True),
        ("*.pt", "a\nb.pt", True),
        ("**", "x/y", True),
    ],
)
def test_a_pattern_takes_what_it_names(pattern: str, path: str, *, is_taken: bool) -> None:
    assert takes([pattern], path) is is_taken
    assert takes(["nothing", pattern], path) is is_taken


def test_folders_without_a_fitting_file_are_not_read() -> None:
    patterns = Patterns(["models/*.pt", "logs/**"])
    assert not patterns.inside(patterns.start, "data")
    assert patterns.inside(patterns.start, "models")
    patterns.takes(patterns.inside(patterns.inside(patterns.start, "models"), "a.pt"))
    assert patterns.without_file == ["logs/**"]


def test_a_pattern_of_many_asterisks_is_decided_soon() -> None:
    begun = time.process_time()
    assert not takes(["*a" * 100 + "b"], "a" * 250)
    assert time.process_time() - begun < 1
