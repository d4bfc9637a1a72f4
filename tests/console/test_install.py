"""The page of how to install the command, the requirements it names, and the simple index of our wheels."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from console.served_wheels import ServedWheels
from muster import __version__
from tests.console.conftest import Console
from tools.build_client_wheel import build_served

WHEEL = re.compile(r'<a href="([^"]+)" data-requires-python="&gt;=3.11">([^<]+)</a>')
ADDRESS = "http://127.0.0.1"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold every wheel, and one of a version that is not this control plane's."""
    folder = tmp_path_factory.mktemp("served")
    build_served(folder)
    (folder / "muster_client-9.9.9-py3-none-any.whl").write_bytes(b"another version's")
    return folder


@pytest.fixture
def served(seen: Console, folder: Path) -> TestClient:
    _state(seen.client).wheels = ServedWheels(folder)
    return seen.client


def _state(client: TestClient) -> Any:
    app: Any = client.app
    while not hasattr(app, "state"):
        app = app._app
    return app.state


def test_the_page_has_two_lines_for_each_installer(served: TestClient) -> None:
    page = served.get("/install")
    assert page.status_code == 200
    assert f"pip install -r {ADDRESS}/install/client.txt" in page.text
    assert page.text.count(f"<code>muster login {ADDRESS}</code>") == 3
    assert "extra-index-url" not in page.text


def test_the_requirements_name_files_by_their_hashes_which_are_served(served: TestClient) -> None:
    lines = served.get("/install/client.txt").text.splitlines()
    assert [line.partition(" @ ")[0] for line in lines] == ["muster-base", "muster-client"]
    for line in lines:
        address, _, sha256 = line.partition(" @ ")[2].partition("#sha256=")
        answer = served.get(address.removeprefix(ADDRESS))
        assert answer.headers["content-type"] == "application/zip"
        assert hashlib.sha256(answer.content).hexdigest() == sha256
    assert "muster-train @ " in served.get("/install/train.txt").text


def test_the_index_is_a_simple_one(served: TestClient) -> None:
    projects = re.findall(r'<a href="([^"]+)">([^<]+)</a>', served.get("/install/simple/").text)
    assert [name for _, name in projects] == ["muster-base", "muster-client", "muster-train"]
    for address, _ in projects:
        ((to, text),) = re.findall(
            r'<a href="([^"]+)" data-requires-python="&gt;=3.11">([^<]+)</a>', served.get(address).text
        )
        assert text.endswith(f"-{__version__}-py3-none-any.whl")
        assert re.fullmatch(rf"/install/wheels/{re.escape(text)}#sha256=[0-9a-f]{{64}}", to)


def test_another_spelling_of_a_name_leads_to_the_normal_one(served: TestClient) -> None:
    answer = served.get("/install/simple/Muster_Client/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (301, "/install/simple/muster-client/")


@pytest.mark.parametrize(
    "path",
    [
        "/install/wheels/muster_client-9.9.9-py3-none-any.whl",
        "/install/wheels/..%2f..%2fpyproject.toml",
        "/install/wheels/wheels",
        "/install/simple/requests/",
    ],
)
def test_only_the_wheels_of_its_own_version_are_served(served: TestClient, path: str) -> None:
    assert served.get(path).status_code == 404


def test_a_wheel_that_is_built_again_is_served_as_it_is_now(seen: Console, tmp_path: Path) -> None:
    wheels = ServedWheels(tmp_path)
    assert wheels.by_project() == {}
    build_served(tmp_path)
    before = wheels.by_project()["muster-client"]
    path = tmp_path / before.name
    path.write_bytes(path.read_bytes() + b"\0")
    assert wheels.by_project()["muster-client"].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert wheels.by_project()["muster-client"].sha256 != before.sha256


def test_without_wheels_page_and_requirements_name_the_command_that_builds_them(seen: Console, tmp_path: Path) -> None:
    _state(seen.client).wheels = ServedWheels(tmp_path / "none")
    page = seen.client.get("/install")
    assert page.status_code == 200
    assert "No wheel of this version was built here" in page.text
    assert "make wheels" in page.text
    refused = seen.client.get("/install/client.txt")
    assert refused.status_code == 404
    assert "`make wheels`" in refused.json()["suggestion"]


def test_one_address_downloads_at_a_bounded_pace(served: TestClient) -> None:
    answers = [served.get("/install/simple/").status_code for _ in range(130)]
    assert answers[0] == 200
    assert 429 in answers
