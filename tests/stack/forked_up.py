"""``python -m tests.stack.forked_up PYTHON up …``: `muster up`, whose own processes PYTHON runs.

For tests of a stack's work, not of its start: PYTHON is a fork of an interpreter that has imported every part already.
A fresh interpreter spends up to 4 CPU seconds on the imports of one part, and a stack of two hosts has seven parts.
"""

import sys
from functools import partial
from pathlib import Path

import local.hosts
import local.stack
from local.children import Child
from muster.cli import main
from tests.warm_python import WarmPython


def forked_up(warm: WarmPython, *words: str) -> list[str]:
    """Return the command line of `muster up` with ``words``, whose processes are forks of ``warm``."""
    return [sys.executable, "-m", "tests.stack.forked_up", str(warm.daemon), "up", *words]


def run(python: Path, words: list[str]) -> None:
    """Run the ``muster`` command with ``words``, as a user types them."""
    for module in (local.hosts, local.stack):
        module.Child = partial(Child, python=str(python))  # type: ignore[attr-defined]  # it is called as the class is
    sys.argv = ["muster", *words]
    main()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
