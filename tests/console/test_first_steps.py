"""The first steps of a tenant: the commands name this control plane, and what is done is marked."""

import re
import shlex
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import console.app
from api.app import create_app
from api.dependencies import AppDependencies
from console.served_wheels import ServedWheels
from control.tenants import logins, sessions
from muster.domain.ids import JobId
from tests.browser.played_fleet import DONE
from tests.console.conftest import Console
from tests.console.test_plans import submit
from tests.docs.named_commands import Named, fault_of
from tests.played_host import PlayedHost
from tests.signing_store import signing_store
from tools.build_client_wheel import build_served

ADDRESS = "http://127.0.0.1"
MARKED = re.compile(r"first-mark--done.*?<h2>([^<]+)</h2>", re.DOTALL)
COMMAND = re.compile(r'<div class="line"><code>(.*?)</code>', re.DOTALL)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> ServedWheels:
    folder = tmp_path_factory.mktemp("first-steps")
    build_served(folder)
    return ServedWheels(folder)


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch, wheels: ServedWheels) -> None:
    monkeypatch.setattr(console.app, "ServedWheels", lambda: wheels)


def done(seen: Console, actor: str = "tenant_member") -> Sequence[str]:
    return MARKED.findall(seen.get("/console/start", actor).text)


def commands(seen: Console) -> Sequence[str]:
    return [unescape(each) for each in COMMAND.findall(seen.get("/console/start", "tenant_member").text)]


def log_in(seen: Console) -> None:
    """As ``muster login`` and the page that confirms it do."""
    signed_in = sessions.resume(seen.units, seen.cookies["tenant_member"], address=None, request_id=None)
    started = logins.begin(seen.units, device="laptop", address=None)
    with seen.units.begin(signed_in.principal, logins.DECIDE) as unit:
        logins.decide(unit, started.login.code, session_id=signed_in.session_id, is_confirmed=True)
    assert logins.take(seen.units, started.token.text, address=None, request_id=None).made is not None


def test_each_step_is_marked_once_it_is_done(seen: Console) -> None:
    assert done(seen) == []
    log_in(seen)
    assert done(seen) == ["Install the command and sign in"]
    job_id = submit(seen, "hello")
    assert done(seen) == ["Install the command and sign in", "Submit a first job"]
    assert f'href="/console/jobs/{job_id}"' in seen.get("/console/start", "tenant_member").text
    _run_to_its_end(seen, job_id)
    assert done(seen) == ["Install the command and sign in", "Submit a first job", "Get its results"]
    assert done(seen, "other_tenant") == [], "what others did is none of its own"


def _run_to_its_end(seen: Console, job_id: JobId) -> None:
    host = PlayedHost(seen.units, seen.fleet.node_id)
    host.beat()
    seen.fleet.cycle()
    attempt = seen.fleet.attempts(job_id)[-1].attempt
    assert host.claim(attempt.id, attempt.fence).granted
    host.report(attempt.id, attempt.fence, "started", "exited", "cleaned", record=DONE)
    seen.fleet.reconcile()


def test_the_steps_are_on_a_tenants_first_page_until_it_has_a_job(seen: Console) -> None:
    assert "Install the command and sign in" in seen.text("/console", "tenant_member")
    assert "Install the command and sign in" not in seen.text("/console", "operator")
    submit(seen, "hello")
    assert "Install the command and sign in" not in seen.text("/console", "tenant_member")
    assert "Install the command and sign in" in seen.text("/console", "other_tenant")


def test_a_person_of_no_tenant_is_redirected_to_the_fleet(seen: Console) -> None:
    answer = seen.get("/console/start", "operator")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert "First steps" not in seen.text("/console/jobs", "operator")


def test_the_commands_name_this_control_plane_and_exist(seen: Console, tmp_path: Path) -> None:
    without_store = commands(seen)
    assert without_store[:2] == [f"pip install -r {ADDRESS}/install/client.txt", f"muster login {ADDRESS}"]
    dependencies = AppDependencies(units=seen.units, secret_key=b"x" * 32, store=signing_store(tmp_path))
    with TestClient(create_app(dependencies, console.app.install), base_url=ADDRESS) as client:
        with_store = commands(Console(client, seen.fleet, seen.units, seen.other_tenant, seen.cookies))
    assert "muster job submit --follow --gpus 1 -- hello.py" in with_store
    named = [tuple(shlex.split(each)) for each in {*without_store, *with_store}]
    faults = [fault_of(Named("the page", words)) for words in named if words[0] == "muster"]
    assert len(faults) == 6
    assert [fault for fault in faults if fault is not None] == []


def test_without_wheels_the_page_leads_to_what_builds_them(
    seen: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(console.app, "ServedWheels", lambda: ServedWheels(tmp_path))
    app = create_app(AppDependencies(units=seen.units, secret_key=b"x" * 32), console.app.install)
    with TestClient(app, base_url=ADDRESS) as client:
        without = Console(client, seen.fleet, seen.units, seen.other_tenant, seen.cookies)
        page = without.text("/console/start", "tenant_member")
    assert "No wheel of this version was built on this control plane" in page
    assert "pip install" not in page
