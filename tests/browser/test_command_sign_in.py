"""The command as a new tenant gets it: installed from the control plane by pip, signed in by a code in the console."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from control.tenants import persons
from muster.domain.principals import Role
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane
from tests.fleet_factory import OPERATOR
from tests.installed_wheels import Place
from tests.recorded_server import Answer, serving
from tools.build_client_wheel import build_served, client_wheel

LATEST_S = 120


@pytest.fixture(scope="module")
def command(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Install the client from the control plane, with what it requires from elsewhere; nothing but that is there."""
    build_served()
    place = Place.make(tmp_path_factory.mktemp("installed") / "venv")
    place.link(*(each for each in client_wheel().requires if not each.startswith("muster")))
    with serving(lambda _asked, _number: Answer(404)) as index:
        requirements = f"{control_plane.url}/install/client.txt"
        place.pip("install", "--quiet", "--index-url", f"{index.url}/simple/", "-r", requirements)
        assert [each.path for each in index.requested if "muster" in each.path] == [], "no index is asked for our names"
    return place


@pytest.fixture
def member(control_plane: ControlPlane) -> Iterator[tuple[str, str]]:
    """Name and password of a member of the demo tenant."""
    with control_plane.units.begin(OPERATOR, persons.CREATE) as unit:
        made = persons.create(unit, name="nora", role=Role.TENANT_MEMBER, tenant_id=control_plane.identities.tenant_id)
    yield made.person.name, made.password
    with control_plane.units.begin(OPERATOR, persons.DISABLE) as unit:
        persons.disable(unit, made.person.id)


@contextmanager
def signing_in(command: Place, url: str, home: Path) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Start ``muster login``; yield the process, the address of the page and the code that it shows."""
    words = [str(command.folder / "bin" / "muster"), "login", url, "--as", "here"]
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=home, env=variables, **pipes) as process:  # type: ignore[call-overload]
        assert process.stderr is not None
        page = process.stderr.readline().strip().removeprefix("Open ")
        code = re.search(r"[B-Z]{4}-[B-Z]{4}", process.stderr.readline())
        assert code is not None
        try:
            yield process, page, code[0]
        finally:
            process.kill()


def test_a_new_member_installs_signs_in_submits_and_signs_out(
    command: Place, stranger: Browsing, control_plane: ControlPlane, member: tuple[str, str], tmp_path: Path
) -> None:
    with signing_in(command, control_plane.url, tmp_path) as (process, page, code):
        stranger.open(page.removeprefix(control_plane.url))
        stranger.page.fill("[name=name]", member[0])
        stranger.page.fill("[name=password]", member[1])
        with stranger.page.expect_navigation():
            stranger.press("Enter")
        stranger.see(code)
        expect(stranger.page.locator(".facts")).to_contain_text("(Linux)")
        stranger.inspect("to confirm")
        with stranger.page.expect_navigation():
            stranger.page.get_by_role("button", name="Confirm").click()
        stranger.see("go back to the terminal")
        output, faults = process.communicate(timeout=LATEST_S)
        assert process.returncode == 0, faults
        assert "(tenant_member); the profile here is in use" in " ".join(output.split())
    submitted = command.run("muster", "job", "submit", "--gpus", "1", "--", "/srv/train.py", home=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.split()[0]
    assert job in command.run("muster", "job", "list", home=tmp_path).stdout
    assert command.run("muster", "job", "cancel", job, home=tmp_path).returncode == 0
    assert "may event:read, job:cancel" in command.run("muster", "whoami", home=tmp_path).stdout
    key = (tmp_path / ".config" / "muster" / "keys" / "here.key").read_text()
    assert "its key is revoked" in command.run("muster", "logout", home=tmp_path).stdout
    (tmp_path / "old.key").write_text(key)
    refused = command.run(
        "muster", "whoami", home=tmp_path, MUSTER_API_URL=control_plane.url, MUSTER_API_KEY_FILE="old.key"
    )
    assert refused.returncode == 4, "the revoked key opens nothing"


def test_a_code_that_was_typed_is_denied_and_the_command_ends(
    command: Place, browse: Browse, control_plane: ControlPlane, tmp_path: Path
) -> None:
    person = browse(Role.TENANT_ADMIN, scripts=False)
    with signing_in(command, control_plane.url, tmp_path) as (process, _, code):
        person.open("/console/login")
        person.page.fill("[name=code]", code.lower().replace("-", " "))
        with person.page.expect_navigation():
            person.page.get_by_role("button", name="Look it up").click()
        with person.page.expect_navigation():
            person.page.get_by_role("button", name="Deny").click()
        person.see("The command gets no key")
        _, faults = process.communicate(timeout=LATEST_S)
    assert process.returncode == 4
    assert "denied in the console" in faults


def test_an_unknown_code_is_refused_in_words(console: Browsing) -> None:
    console.open("/console/login?code=BCDF-GHJK", status=404)
    console.see("no sign-in waits under this code")
    console.inspect("unknown code")


def test_the_page_of_installation_holds_at_every_width_and_in_both_themes(command: Place, stranger: Browsing) -> None:
    stranger.inspect_in_each_check("/install")
    expect(stranger.page.locator("#by-pip")).to_contain_text("/install/client.txt")


def test_the_page_of_a_code_holds_at_every_width_and_in_both_themes(console: Browsing) -> None:
    console.inspect_in_each_check("/console/login")
