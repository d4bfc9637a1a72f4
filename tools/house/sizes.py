"""Sizes: shares of packages, folders, files and functions."""

from __future__ import annotations

import ast
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Final

from tools.house.figure import HouseFigure
from tools.house.sources import RECORDS, package_of, packages_alone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST_PACKAGE: Final = "muster"
_SHOWN: Final = 5


def size_figures(sources: Mapping[str, str]) -> list[HouseFigure]:
    """Return the figures of sizes. Lines are counted over everything but tests; a folder by its own files."""
    lines = {path: text.count("\n") for path, text in sources.items()}
    ours = {path: lines[path] for path in packages_alone(sources) if not path.startswith(RECORDS)}
    functions = [length for path in ours for length in _function_lengths(sources[path])]
    files = list(ours.values())
    return [
        *_shares(lines, sum(lines.values())),
        _largest_folder(ours),
        HouseFigure("lines of a file, median", median(files), "lines", 91, {"files": len(files)}),
        HouseFigure("lines of a file, 90th percentile", percentile(files, 0.9), "lines", 233, {"largest": max(files)}),
        HouseFigure("lines of a function, median", median(functions), "lines", 7, {"functions": len(functions)}),
        HouseFigure(
            "lines of a function, 90th percentile", percentile(functions, 0.9), "lines", 18, {"largest": max(functions)}
        ),
    ]


def percentile(values: Sequence[int], share: float) -> int:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * len(ordered)))]


def _shares(lines: Mapping[str, int], whole: int) -> list[HouseFigure]:
    by_package = Counter[str]()
    for path, number in lines.items():
        by_package[package_of(path)] += number
    shares = {package: round(100 * number / whole, 1) for package, number in by_package.most_common()}
    others = {package: share for package, share in shares.items() if package != LARGEST_PACKAGE}
    largest = max(others, key=lambda package: others[package])
    shown = dict(list(others.items())[:_SHOWN])
    return [
        HouseFigure("muster/ of the source", shares[LARGEST_PACKAGE], "% of lines", 30, {"lines": whole}),
        HouseFigure(f"the largest other package ({largest}/)", others[largest], "% of lines", 20, shown),
    ]


def _largest_folder(ours: Mapping[str, int]) -> HouseFigure:
    modules = (path for path in ours if not path.endswith("/__init__.py"))
    folders = Counter(path.rpartition("/")[0] for path in modules)
    largest = dict(folders.most_common(_SHOWN))
    return HouseFigure("files of the largest folder of logic", max(folders.values()), "files", 34, largest)


def _function_lengths(source: str) -> list[int]:
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
