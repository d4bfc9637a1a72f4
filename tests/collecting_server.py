"""The process that has imported the test modules, and of which the workers of pytest-xdist are forks.

Its arguments are a descriptor, ``sys.path`` in JSON, and the arguments of pytest. Each worker collects its tests from
the modules in memory: that takes 2 s of CPU, instead of 10 s, or of 20 s where assertions are not rewritten yet.
"""

import atexit
import json
import sys
from functools import partial
from typing import Final

sys.path[:] = json.loads(sys.argv[2])

import pytest  # noqa: E402  # found by that path

from tests.warm_python_server import serve  # noqa: E402  # as above

_ONLY_IMPORTS: Final = ("--collect-only", "-n", "0", "-p", "no:cacheprovider", "-qqq")


class ImportsOnly:
    """A plugin by which a module is imported and no test of it is made: pytest would keep notes of it in its marks."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        """Return no test."""
        return []


def collect(arguments: list[str]) -> None:
    """Import what a run with these arguments imports. A worker meets what fails here again, and reports it."""
    pytest.main([*arguments, *_ONLY_IMPORTS], plugins=[ImportsOnly()])


if __name__ == "__main__":
    serve(int(sys.argv[1]), partial(collect, sys.argv[3:]), at_end=atexit._run_exitfuncs)
