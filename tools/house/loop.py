"""The loop: how long the recorded runs took, and how many tests a change reaches."""

from __future__ import annotations

import json
import re
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.calibration import slowness_of
from tools.fixture_users import add_fixtures
from tools.house.figure import HouseFigure
from tools.house.sources import SERVES_DEVELOPMENT, package_of
from tools.import_graph import AT_IMPORT, RUNS
from tools.reachable_tests import is_test_file
from tools.test_durations import OF_RUN, RECORDED
from tools.typical_changes import TYPICAL_CHANGES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tools.import_graph import ImportGraph
    from tools.import_statements import Kind

TEST_RUN: Final = RECORDED / OF_RUN
QUICK_RUNS: Final = ".artefacts/quick-runs.json"
"""``{name of a typical change: {"wall_s": seconds, "revision": commit, …}}``, by ``python -m tools.house --quick``."""
_TEST: Final = re.compile(r"^\s*(?:async )?def test_", re.MULTILINE)


def run_figures(root: Path) -> list[HouseFigure]:
    """Return the times of the recorded runs; nothing is run here."""
    whole = _read(root / TEST_RUN)
    is_whole = bool(whole.get("asks_for_all")) and whole.get("exit_status") == 0
    value = round(reference_s(whole), 1) if is_whole else None
    quick = _read(root / QUICK_RUNS)
    return [
        HouseFigure("make test, as recorded", value, "s", 720, whole),
        *(_quick_figure(name, quick.get(name, {})) for name in TYPICAL_CHANGES),
    ]


def reference_s(run: Mapping[str, Any]) -> float:
    """Return the seconds of a recorded run on the reference machine of every bar (``benchmarks/calibration.py``).

    Of the wall time, the share in which the cores were busy is divided by the machine's slowness: by the lower of the
    samples before and after the run, since a sample that another program disturbs makes the machine look slow. The
    rest is waits, which count as they are. A record without samples counts as it is.
    """
    wall_s: float = run["wall_s"]
    if "calibration_ms" not in run:
        return wall_s
    busy_s: float = wall_s * run["busy_share"]
    return wall_s - busy_s + busy_s / slowness_of(min(run["calibration_ms"]))


def reach_figure(root: Path, graph: ImportGraph) -> HouseFigure:
    """Return the median share of all tests that a change of one module of the product reaches.

    A test is reached by imports at the head of modules, from its file and from fixtures that it uses. The peers have
    the same with imports in functions, by which commands and stacks reach nearly everything.
    """
    whole = add_fixtures(root, graph)
    paths = [path for path in graph.modules if is_test_file(path)]
    tests = {path: len(_TEST.findall((root / path).read_text(encoding="utf-8"))) for path in paths}
    at_head, anywhere = (_shares_reached(whole, tests, kinds) for kinds in (AT_IMPORT, RUNS))
    peers = {
        "tests": sum(tests.values()),
        "modules": len(at_head),
        "90th percentile": round(at_head[len(at_head) * 9 // 10], 1),
        "median with imports in functions": round(median(anywhere), 1),
    }
    return HouseFigure("tests that a change reaches, median", round(median(at_head), 2), "% of tests", 5, peers)


def _shares_reached(graph: ImportGraph, tests: Mapping[str, int], kinds: Collection[Kind]) -> list[float]:
    """Return for each module of the product the percentage of tests that reach it, lowest first."""
    reached = {module: 0 for path, module in graph.modules.items() if _is_product(path)}
    for path, number in tests.items():
        for module in graph.imports_of([graph.modules[path]], kinds):
            if module in reached:
                reached[module] += number
    return sorted(100 * number / sum(tests.values()) for number in reached.values())


def _is_product(path: str) -> bool:
    return package_of(path) not in SERVES_DEVELOPMENT and "/" in path


def _quick_figure(name: str, run: Mapping[str, Any]) -> HouseFigure:
    is_good = run.get("exit_status") == 0
    peers = {key: value for key, value in run.items() if key != "wall_s"}
    return HouseFigure(f"make quick: {name}", run["wall_s"] if is_good else None, "s", 60, peers)


def _read(path: Path) -> dict[str, Any]:
    """Return a recorded run; empty where there is no record."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
