"""Waiting for what real processes bring about."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], *, timeout_s: float = 100.0, pause_s: float = 0.05) -> None:
    """Fails the test when it does not come about in time, by the measure of a machine that does ten things at once."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause_s)
