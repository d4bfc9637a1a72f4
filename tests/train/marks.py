"""Tests that train: real processes, real gloo."""

import importlib.util

import pytest

TRAINS = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained"),
]
