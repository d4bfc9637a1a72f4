"""Layers: imports against the contracts, and circles of files."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.house.figure import HouseFigure
from tools.import_graph import ImportGraph

CONTRACTS: Final = ".importlinter"
_RESULT: Final = re.compile(r"Contracts: (\d+) kept, (\d+) broken")


def layer_figures(root: Path, graph: ImportGraph) -> list[HouseFigure]:
    """Return how many imports the contracts except or refuse, and how many circles the files have."""
    contracts = configparser.ConfigParser()
    contracts.read(root / CONTRACTS, encoding="utf-8")
    excepted = [line for section in contracts.sections() for line in _excepted(contracts, section)]
    kept, broken = _checked(root)
    circles = graph.circles()
    peers = {"excepted imports": len(excepted), "broken contracts": broken, "kept contracts": kept}
    return [
        HouseFigure("imports against the layers", len(excepted) + broken, "imports", 0, peers),
        HouseFigure("circles of files", len(circles), "circles", 0, {"largest": max(map(len, circles), default=0)}),
    ]


def _excepted(contracts: configparser.ConfigParser, section: str) -> list[str]:
    listed = contracts.get(section, "ignore_imports", fallback="")
    return [line for line in listed.splitlines() if line.strip() and not line.strip().startswith("#")]


def _checked(root: Path) -> tuple[int, int]:
    """Return the numbers of kept and broken contracts. Raises ValueError where the linter gives none."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", CONTRACTS]
    output = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True).stdout
    found = _RESULT.search(output)
    if found is None:
        raise ValueError(f"lint-imports gave no result: {output[-500:]}")
    return int(found.group(1)), int(found.group(2))
