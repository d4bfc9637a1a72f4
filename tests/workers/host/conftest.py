"""Every test of a host's programs ends without a trace of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.host.burial import bury


@pytest.fixture(autouse=True)
def _buried_attempts(tmp_path: Path) -> Iterator[None]:
    """Last of all, when no launcher turns any more: nothing of an attempt may outlive its test."""
    yield
    for folder in tmp_path.rglob("attempts/*/"):
        bury(folder)
