"""``muster login``, ``logout`` and ``whoami`` against a server that answers as a test says."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli.framework import places
from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, RecordedServer, Requested, problem, serving

PRINCIPAL = {
    "name": "key:command-bcdfghjk",
    "role": "tenant_member",
    "key_id": "key_1",
    "tenant_id": "ten_1",
    "node_id": None,
    "permissions": ["job:read"],
}
STARTED = {
    "code": "BCDF-GHJK",
    "page": "http://elsewhere.example/console/login",
    "login_token": "mst_waiting",
    "expires_at": "2026-11-28T12:10:00Z",
    "interval_s": 0.1,
}
PENDING = {"state": "pending", "token": None, "key": None}
CONFIRMED = {"state": "confirmed", "token": "mst_new", "key": None}


def answering(*answers: Answer) -> Callable[[Requested, int], Answer]:
    """Each question about a login gets the next of ``answers``, the last one again and again."""
    left = list(answers)

    def answer(requested: Requested, _number: int) -> Answer:
        if requested.path == "/v1/logins":
            return Answer(201, STARTED)
        if requested.path == "/v1/logins/answer":
            return left.pop(0) if len(left) > 1 else left[0]
        if requested.path == "/v1/sign-out":
            return Answer(200, {"is_revoked": True})
        return Answer(200, PRINCIPAL)

    return answer


def stored(muster: Command) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((muster.folder / ".config" / "muster" / "profiles.json").read_text())
    return document


def paths(server: RecordedServer) -> list[str]:
    return [each.path for each in server.requested]


def test_a_confirmed_code_gives_a_profile_with_a_key_that_no_other_reads(muster: Command) -> None:
    with serving(answering(Answer(200, PENDING), Answer(200, CONFIRMED))) as server:
        answer = muster.run("login", server.url, "--as", "prod")
        assert answer.returncode == 0, answer.stderr
        assert f"Open {server.url}/console/login?code=BCDF-GHJK\n" in answer.stderr, "the typed address, no other"
        assert "signed in to" in answer.stdout
        assert "authorization" not in server.requested[0].headers
        assert [json.loads(each.body) for each in server.requested[1:3]] == [{"login_token": "mst_waiting"}] * 2
        assert server.requested[3].headers["authorization"] == "Bearer mst_new", "the key is checked by a call"
        assert "tenant_member) of ten_1" in muster.run("whoami").stdout
    key = Path(stored(muster)["profiles"]["prod"]["key_file"])
    assert (stored(muster)["current"], key.read_text()) == ("prod", "mst_new\n")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "mst_" not in answer.stdout + answer.stderr


@pytest.mark.parametrize("fault", [problem(503, "unavailable"), problem(429, "rate_limited")])
def test_a_server_that_cannot_answer_now_gets_the_request_again(muster: Command, fault: Answer) -> None:
    with serving(answering(fault, Answer(200, PENDING), Answer(200, CONFIRMED))) as server:
        assert muster.run("login", server.url).returncode == 0
        assert paths(server).count("/v1/logins/answer") == 3


@pytest.mark.parametrize(
    ("state", "words"), [("denied", "denied in the console"), ("expired", "the code was not confirmed in time")]
)
def test_a_code_that_is_denied_or_over_stores_nothing(muster: Command, state: str, words: str) -> None:
    with serving(answering(Answer(200, {**PENDING, "state": state}))) as server:
        answer = muster.run("login", server.url)
    assert answer.returncode == Exit.DENIED
    assert words in answer.stderr
    assert not (muster.folder / ".config").exists()


def test_a_key_is_given_by_a_pipe_or_a_file_and_stored_once_it_opens(muster: Command) -> None:
    with serving(answering(Answer(200, PENDING))) as server:
        piped = subprocess.run(
            [sys.executable, "-m", "muster", "login", server.url, "--with-key"],
            input="mst_piped\n",
            env={"PATH": os.environ["PATH"], "HOME": str(muster.folder)},
            cwd=muster.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert piped.returncode == 0, piped.stderr
        assert muster.run("login", server.url, "--as", "two", "--key-file", str(muster.key_file)).returncode == 0
        assert set(paths(server)) == {"/v1/whoami"}
    keys = {name: Path(each["key_file"]).read_text() for name, each in stored(muster)["profiles"].items()}
    assert keys == {server.url.removeprefix("http://").replace(":", "-"): "mst_piped\n", "two": "mst_test\n"}


def test_a_key_that_opens_nothing_is_not_stored(muster: Command) -> None:
    with serving(lambda _asked, _number: problem(401, "unauthenticated")) as server:
        answer = muster.run("login", server.url, "--key-file", str(muster.key_file))
    assert answer.returncode == Exit.DENIED
    assert not (muster.folder / ".config").exists()


@pytest.mark.parametrize("fault", [problem(404, "not_found"), problem(405, "method_not_allowed")])
def test_a_control_plane_without_this_sign_in_is_named_with_the_other_way(muster: Command, fault: Answer) -> None:
    """As one of 0.1.0 answers."""
    with serving(lambda _requested, _number: fault) as server:
        answer = muster.run("login", server.url)
        said = " ".join(answer.stderr.split())
        assert f"the control plane at {server.url} has no sign-in by the console" in said
    assert "muster login --with-key" in said
    assert answer.returncode == Exit.NOT_FOUND
    assert not (muster.folder / ".config").exists()


def test_a_second_sign_in_revokes_the_key_that_it_replaces(muster: Command) -> None:
    with serving(answering(Answer(200, CONFIRMED), Answer(200, {**CONFIRMED, "token": "mst_newer"}))) as server:
        muster.run("login", server.url, "--as", "prod")
        assert muster.run("login", "--no-browser", "--as", "prod").returncode == 0, "of the profile in use"
        (signed_out,) = [each for each in server.requested if each.path == "/v1/sign-out"]
    assert signed_out.headers["authorization"] == "Bearer mst_new"
    assert Path(stored(muster)["profiles"]["prod"]["key_file"]).read_text() == "mst_newer\n"


def test_signing_out_revokes_the_key_and_forgets_the_profile(muster: Command) -> None:
    with serving(answering(Answer(200, CONFIRMED))) as server:
        muster.run("login", server.url, "--as", "prod")
        key = Path(stored(muster)["profiles"]["prod"]["key_file"])
        answer = muster.run("logout")
        assert (answer.returncode, server.requested[-1].path) == (0, "/v1/sign-out")
    assert "its key is revoked" in answer.stdout
    assert stored(muster) == {"current": "local", "profiles": {}}
    assert not key.exists()


def test_one_that_is_no_sign_in_is_not_signed_out(muster: Command) -> None:
    with serving(answering(Answer(200, PENDING))) as server:
        answer = muster.run("logout", url=server.url)
        assert server.requested == []
    assert answer.returncode == Exit.USAGE
    assert "MUSTER_API_KEY_FILE" in answer.stderr


def test_a_name_of_another_control_plane_is_not_taken_over(muster: Command) -> None:
    with serving(answering(Answer(200, CONFIRMED))) as one, serving(answering(Answer(200, CONFIRMED))) as other:
        muster.run("login", one.url, "--as", "prod")
        answer = muster.run("login", other.url, "--as", "prod")
        assert other.requested == []
    assert answer.returncode == Exit.USAGE
    assert one.url in answer.stderr


@pytest.mark.parametrize("address", ["http://192.0.2.1", "ftp://host", "https://", "https://host/?q=1"])
def test_an_address_that_cannot_be_one_is_refused(muster: Command, address: str) -> None:
    assert muster.run("login", address).returncode == Exit.USAGE


def test_folders_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert places.config_folder() == tmp_path / "config" / "muster"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("APPDATA", str(tmp_path / "Roaming"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert (places.config_folder(), places.state_folder()) == (
        tmp_path / "Roaming" / "muster",
        tmp_path / "Local" / "muster",
    )
