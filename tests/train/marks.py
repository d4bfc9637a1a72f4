"""Tests that train: real processes, real gloo. Some are repeated: often with ``MUSTER_LONG_SCENARIOS=1``, as in ``make
soak``, and a few times without, since each time takes seconds.
"""

import importlib.util
import os

import pytest

TRAINS = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained"),
]


def times(long: int, short: int) -> range:
    """How often: ``long`` where somebody has asked for that."""
    return range(long if os.environ.get("MUSTER_LONG_SCENARIOS") == "1" else short)
