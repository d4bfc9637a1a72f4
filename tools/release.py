"""`make release`: may this commit be released under its version? It is refused with every reason at once, or checked.

What is released is a commit, so the tree is clean; its version has a section of its own in the changelog, and nothing
is left under "Unreleased"; each result of a benchmark was measured by the benchmark as it is. Then `make check` runs.
Nothing is tagged or published: the command that does so is printed.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.runs import git
from benchmarks.stale import stale

ROOT: Final = Path(__file__).resolve().parent.parent
CHANGELOG: Final = "CHANGELOG.md"
UNRELEASED: Final = "Unreleased"


def main() -> int:
    """Return the exit code: 0 where the commit may be released."""
    found = list(refusals(ROOT))
    if found:
        sys.stderr.write("".join(f"make release: {reason}\n" for reason in found))
        return 1
    checked = subprocess.run(["make", "check"], cwd=ROOT, check=False)  # noqa: S607  # the make of the path
    if checked.returncode != 0:
        sys.stderr.write("make release: `make check` failed\n")
        return 1
    tag = f"v{version_of(ROOT)}"
    print(f"{tag} may be released: git tag --annotate {tag} --message 'Muster {tag}'")  # noqa: T201  # its answer
    return 0


def refusals(root: Path) -> Iterator[str]:
    """Say everything that stands against a release, without running a test."""
    version = version_of(root)
    if git("status", "--porcelain", root=root) != "":
        yield "the tree is not clean: commit what belongs to the release, remove the rest"
    if git("rev-parse", "--verify", "--quiet", f"refs/tags/v{version}", root=root):
        yield f"v{version} is tagged already: raise `version` in pyproject.toml"
    yield from _changelog_refusals((root / CHANGELOG).read_text(encoding="utf-8"), version)
    for result in stale(root):
        yield f"the result of {result.name} is stale ({result.why}): `{result.command}` measures it again"


def version_of(root: Path) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def _changelog_refusals(text: str, version: str) -> Iterator[str]:
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    names = {_name_of(section): section.partition("\n")[2].strip() for section in sections}
    if not names.get(version):
        yield f"{CHANGELOG} has no section `## {version}` with what is new in it"
    if names.get(UNRELEASED):
        yield f"{CHANGELOG} still has entries under `## {UNRELEASED}`: move them below `## {version}`"


def _name_of(section: str) -> str:
    """Return the version that a section's heading names, such as 0.1.0 of ``[0.1.0] - 2026-11-30``."""
    return section.partition("\n")[0].split()[0].strip("[]")


if __name__ == "__main__":
    sys.exit(main())
