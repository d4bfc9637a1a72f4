"""Profiles: which control plane, and the source of the choice; a key never goes to another's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.framework import profile
from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, serving

pytestmark = pytest.mark.timeout(600)  # several processes each, on a machine that does ten things at once


def answered(requested: Requested, _number: int) -> Answer:
    if requested.path == "/v1/whoami":
        return Answer(200, {"name": "ann", "role": "operator"})
    return Answer(200, {"items": [], "next_cursor": None})


def local_stack(folder: Path, url: str) -> None:
    (folder / ".muster").mkdir()
    (folder / "local.key").write_text("mst_local")
    document = {"api_url": url, "key_file": str(folder / "local.key")}
    (folder / ".muster" / "cli.json").write_text(json.dumps(document))


def add(muster: Command, name: str, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return muster.run("profile", "add", name, "--api-url", url, "--key-file", str(muster.key_file), *words)


def test_the_one_that_was_chosen_is_used_until_another_is_named(muster: Command, tmp_path: Path) -> None:
    with serving(answered) as prod, serving(answered) as local:
        local_stack(tmp_path, local.url)
        added = add(muster, "prod", prod.url)
        assert "ann (operator)" in added.stdout
        muster.run("job", "list")
        assert len(local.requested) == 1, "adding is not choosing"
        muster.run("profile", "use", "prod")
        muster.run("job", "list")
        assert len(prod.requested) == 2
        assert prod.requested[-1].headers["authorization"] == "Bearer mst_test"
        muster.run("--profile", "local", "job", "list")
        muster.run("job", "list", MUSTER_PROFILE="local")
        assert len(local.requested) == 3
        listed = muster.run("profile", "list", "--wide").stdout
        shown = json.loads(muster.run("profile", "show", "--json").stdout)
    assert [line.split()[:2] for line in listed.splitlines()[1:3]] == [["local", local.url], ["prod", "yes"]], listed
    assert "prod is in use by `muster profile use`" in listed
    assert (shown["name"], shown["is_in_use"]) == ("prod", True)


def test_a_key_from_a_pipe_is_kept_where_no_other_reads_it(muster: Command) -> None:
    with serving(answered) as server:
        line = f"echo mst_piped | python -m muster profile add prod --use --api-url {server.url}"
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(muster.folder)}
        subprocess.run(["/bin/sh", "-c", line], env=environment, cwd=muster.folder, check=True, timeout=120)
        assert server.requested[0].headers["authorization"] == "Bearer mst_piped"
    kept = muster.folder / ".config" / "muster" / "keys" / "prod.key"
    assert kept.read_text() == "mst_piped\n"
    assert kept.stat().st_mode & 0o077 == 0
    muster.run("profile", "remove", "prod")
    assert not kept.exists()
    assert muster.run("profile", "show", "prod").returncode == Exit.USAGE


def test_one_variable_alone_is_refused_since_the_other_half_would_be_another_control_planes(
    muster: Command, tmp_path: Path
) -> None:
    with serving(answered) as server:
        local_stack(tmp_path, server.url)
        answer = muster.run("job", "list", MUSTER_API_URL="https://elsewhere.example")
    assert answer.returncode == Exit.USAGE
    assert "MUSTER_API_KEY_FILE is not set" in answer.stderr
    assert not server.requested


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("use", "nowhere"), "there is no profile 'nowhere'"),
        (("show", "local"), "no local stack"),
        (("add", "Prod!", "--api-url", "https://x.example", "--key-file", "test.key"), "cannot be a profile's name"),
        (("add", "prod", "--api-url", "http://x.example", "--key-file", "test.key"), "must be https://"),
        (("add", "prod", "--api-url", "https://x.example", "--key-file", "none.key"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_stated_with_what_is_accepted(muster: Command, words: tuple[str, ...], reported: str) -> None:
    answer = muster.run("profile", *words)
    assert answer.returncode == Exit.USAGE
    assert reported in answer.stderr


def test_a_stack_elsewhere_is_reached_by_the_words_that_are_printed(
    muster: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "else where"
    for folder in (here / "below", elsewhere):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MUSTER_STATE_DIR", "MUSTER_API_URL", "MUSTER_API_KEY_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", [str(here / ".venv/bin/muster")])
    monkeypatch.chdir(here)
    assert profile.words_for_local(here / ".muster") == ".venv/bin/muster"
    assert profile.words_for_local(elsewhere) == f"MUSTER_STATE_DIR='{elsewhere}' .venv/bin/muster"
    monkeypatch.chdir(here / "below")
    assert profile.words_for_local(here / ".muster") == f"{here}/.venv/bin/muster"
    with serving(answered) as local:
        (elsewhere / "cli.json").write_text(json.dumps({"api_url": local.url, "key_file": str(muster.key_file)}))
        assert muster.run("job", "list", MUSTER_STATE_DIR=str(elsewhere)).returncode == Exit.OK
        assert len(local.requested) == 1
        assert add(muster, "prod", local.url, "--use").returncode == Exit.OK
        monkeypatch.setenv("HOME", str(muster.folder))
        assert profile.words_for_local(elsewhere).endswith("muster --profile local")


def test_faults_are_injected_into_the_local_stack_whatever_its_profile_is_called(
    muster: Command, tmp_path: Path
) -> None:
    with serving(answered) as local, serving(answered) as prod:
        local_stack(tmp_path, local.url)
        path = tmp_path / ".muster" / "cli.json"
        faults = {"faults_file": str(tmp_path / "faults.json")}
        path.write_text(json.dumps({**json.loads(path.read_text()), **faults}))
        add(muster, "mine", local.url)
        add(muster, "prod", prod.url)
        assert muster.run("--profile", "mine", "sim", "list").returncode == Exit.OK
        refused = muster.run("--profile", "prod", "sim", "list")
        assert refused.returncode == Exit.USAGE
        assert "has no simulated GPUs" in refused.stderr
        assert "muster --profile local sim" in refused.stderr
