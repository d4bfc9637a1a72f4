"""A release is refused with every reason at once."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.repository import commit, git
from tools.release import refusals

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## [0.1.0] - 2026-11-30\n\n### Added\n\n- All of it.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    files = {
        "pyproject.toml": '[project]\nname = "muster"\nversion = "0.1.0"\n',
        "CHANGELOG.md": CHANGELOG,
        "benchmarks/tour.py": "",
        "benchmarks/calibration.py": "",
    }
    first = commit(root, files)
    commit(
        root, {"benchmarks/results/tour.json": "[]", "benchmarks/results/runs/tour.json": json.dumps({"commit": first})}
    )
    return root


def reasons(root: Path) -> str:
    return "\n".join(refusals(root))


def test_a_clean_commit_with_its_changelog_and_fresh_results_may_be_released(root: Path) -> None:
    assert not reasons(root)


def test_a_tree_that_is_not_clean_is_refused(root: Path) -> None:
    (root / "left.txt").write_text("")
    assert "the tree is not clean" in reasons(root)


def test_a_version_that_is_tagged_is_refused(root: Path) -> None:
    git(root, "tag", "v0.1.0")
    assert "v0.1.0 is tagged already" in reasons(root)


def test_a_changelog_without_the_version_or_with_entries_left_over_is_refused(root: Path) -> None:
    commit(root, {"CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- All of it.\n"})
    assert "has no section `## 0.1.0`" in reasons(root)
    assert "still has entries under `## Unreleased`" in reasons(root)


def test_a_stale_result_is_refused(root: Path) -> None:
    commit(root, {"benchmarks/tour.py": "VALUE = 1\n"})
    assert "the result of tour is stale" in reasons(root)
    assert "`make bench-tour` measures it again" in reasons(root)
