"""A control plane, a Chromium and people at pages. A test fails by itself on whatever ``watch.Watch`` sees."""

import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Browser, expect

from local.postgres import PostgresServer
from muster.domain.principals import Role
from tests.browser.browsing import KEEPS_PICTURES, PATIENCE_MS, Browsing
from tests.browser.chromium import running_browser
from tests.browser.control_plane import ControlPlane, running_control_plane
from tests.browser.small_fleet import Hit, SmallFleet, small_fleet
from tests.browser.watch import Watch
from tests.warm_python import WarmPython

expect.set_options(timeout=PATIENCE_MS)
COOKIE = "__Host-muster"
SLOW_MACHINE_S = 900
FAILED = pytest.StashKey[bool]()


class Browse(Protocol):
    """A person of that role, signed in; None: an unknown person. Perhaps with a browser without scripts."""

    def __call__(self, role: Role | None, *, scripts: bool = True) -> Browsing: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SLOW_MACHINE_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Gone with the last page: Playwright's event loop would be in the way of other tests' own."""
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def control_plane(
    browser: Browser,
    postgres_server: PostgresServer,
    template_database: str,
    server_folder: Path,
    warm_stack: WarmPython,
) -> Iterator[ControlPlane]:
    """One for all pages of this process; asked for after the browser, without which no API need start."""
    python = warm_stack.daemon
    with running_control_plane(postgres_server, template_database, server_folder, python) as running:
        yield running


@pytest.fixture(scope="package")
def fleet(control_plane: ControlPlane) -> SmallFleet:
    """Shared by the tests of this process: each adds jobs and faults of its own, and asks about those alone."""
    return small_fleet(control_plane)


@pytest.fixture(scope="package")
def hit(fleet: SmallFleet) -> Hit:
    """Return a job of the demo tenant that lost a GPU and continues without it."""
    return fleet.hit


@pytest.fixture
def browse(browser: Browser, control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Browse]:
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{request.path.stem}-{request.node.name}").strip("-")
    watches: list[Watch] = []
    with ExitStack() as stack:

        def begin(role: Role | None, *, scripts: bool = True) -> Browsing:
            person = browser.new_context(locale="en-GB", timezone_id="UTC", java_script_enabled=scripts)
            context = stack.enter_context(person)
            watch = Watch(control_plane.url)
            watch.over(context)
            watches.append(watch)
            if role is not None:
                token = control_plane.session_token(role)
                place = {"domain": "127.0.0.1", "path": "/"}
                context.add_cookies([{"name": COOKIE, "value": token, "secure": True, "httpOnly": True, **place}])  # type: ignore[typeddict-item]  # mypy does not follow the unpacking
            name = label if len(watches) == 1 else f"{label}-{len(watches)}"
            browsing = Browsing(context.new_page(), watch, name, scripts=scripts)
            stack.callback(keep_end, browsing)
            return browsing

        def keep_end(browsing: Browsing) -> None:
            """Store the last page of a test that failed, and of each test where the run keeps pictures."""
            if KEEPS_PICTURES or request.node.stash.get(FAILED, True):
                browsing.shot("end")

        yield begin
    faults = [fault for watch in watches for fault in watch.faults]
    assert not faults, "\n".join(["the page did what no page may:", *faults])


@pytest.fixture
def console(browse: Browse) -> Browsing:
    """An operator, signed in."""
    return browse(Role.OPERATOR)


@pytest.fixture
def stranger(browse: Browse) -> Browsing:
    return browse(None)
