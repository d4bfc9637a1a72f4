"""Results of `results/` that no longer match what their benchmark measures: ``make bench-stale``.

A result is stale when a file of its own benchmark changed since the commit at which it was measured: the suite's
modules and all modules of `benchmarks` that these import, at any depth, also inside functions. What only stores or
shows figures is not among them; the calibration loop is, since it scales values. A change of the product does not make
a result stale: that would be every change.
"""

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import runs
from benchmarks.suites import SUITES

PACKAGE: Final = "benchmarks"
SCALES: Final = "calibration"
"""Every suite's values depend on it, and the driver imports it."""
SHOWS_AND_STORES: Final = frozenset({"figures", "measuring", "runs", "sizes", "smoke", "stale", "suites"})


@dataclass(frozen=True, slots=True)
class Stale:
    """A suite whose result is to be measured again, and why."""

    name: str
    why: str

    @property
    def command(self) -> str:
        """Return what measures it again."""
        return "make bench" if self.name == "main" else f"make bench-{self.name.replace('_', '-')}"


def stale(root: Path = runs.ROOT) -> list[Stale]:
    """Return the suites of the checkout whose result is stale or missing, in the order of their names."""
    here = [name for name, modules in SUITES.items() if (root / PACKAGE / f"{modules[0]}.py").exists()]
    return [Stale(name, why) for name in sorted(here) if (why := why_stale(name, root)) is not None]


def why_stale(name: str, root: Path) -> str | None:
    """Return why the suite's result is stale or missing; None where it is not."""
    results = root / PACKAGE / "results"
    if not (results / f"{name}.json").exists():
        return "it has no result"
    path = runs.run_path(name, results)
    if not path.exists():
        return "no commit is recorded for it"
    commit = json.loads(path.read_text(encoding="utf-8"))["commit"]
    if commit is None or runs.git("cat-file", "-e", f"{commit}^{{commit}}", root=root) is None:
        return f"its commit {commit} is not in this repository"
    own = [f"{PACKAGE}/{module}.py" for module in closure(SUITES[name], root / PACKAGE)]
    changed = runs.git("diff", "--name-only", commit, "--", *own, root=root)
    return f"changed since {commit[:8]}: {', '.join(changed.splitlines())}" if changed else None


def closure(modules: tuple[str, ...], folder: Path) -> list[str]:
    """Return the modules of the package that these are made of, themselves included, sorted."""
    found, ahead = {SCALES}, list(modules)
    while ahead:
        module = ahead.pop()
        if module not in found | SHOWS_AND_STORES:
            found.add(module)
            ahead += _imported(folder / f"{module}.py")
    return sorted(found)


def _imported(path: Path) -> Iterator[str]:
    """Name the modules of the package that a file imports, by any form, or names in a text as programs are named."""
    modules = {other.stem for other in path.parent.glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith(f"{PACKAGE}."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.removeprefix(f"{PACKAGE}/").removeprefix(f"{PACKAGE}.").removesuffix(".py")
            if words in modules and words != node.value:
                yield words


def main() -> int:
    """Print the stale and missing results. Return the exit code: 1 where there are any."""
    found = stale()
    for one in found:
        print(f"{one.name:<12} {one.why}; `{one.command}` measures it again")
    print(f"stale or missing results: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
