"""Tests that train: real processes, real gloo. Some are repeated, often in ``make soak``: each time takes seconds."""

import importlib.util

import pytest

from tests.scaled import examples

TRAINS = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained"),
]


def times(long: int, short: int) -> range:
    """Number the repetitions: ``long`` of them in ``make soak``, otherwise ``short``."""
    return range(examples(long, quick=short))
