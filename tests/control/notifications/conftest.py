"""A tenant with keys, and a receiver on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from tests.control.conftest import SetClock
from tests.control.notifications.route_case import RouteCase
from tests.receivers import Receiver, http_receiver


@pytest.fixture
def case(units: UnitOfWorkFactory, clock: SetClock, tmp_path: Path) -> RouteCase:
    return RouteCase.made(units, clock, tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver
