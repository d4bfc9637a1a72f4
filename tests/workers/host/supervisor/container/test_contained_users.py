"""A container where jobs have users of their own: it runs as its job's, and reaches what that user may reach."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from tests.workers.host.burial import bury
from tests.workers.host.supervisor.attempt_case import Attempt
from tests.workers.host.supervisor.user_case import OPEN_PYTHON, needs_users, own_uid, spawn
from workers.host.supervisor import files
from workers.host.supervisor.container.containers import ENROOT, Engine, engine_environment
from workers.host.supervisor.container.mounts import hand_over
from workers.host.supervisor.order import read_order

pytestmark = needs_users


@pytest.fixture
def attempt(open_folder: Path, rendezvous_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """On a host whose podman does nothing: the arguments that it would get are what counts here."""
    monkeypatch.setattr(sys, "executable", OPEN_PYTHON)
    engines = open_folder / "engines"
    engines.mkdir()
    (engines / "podman").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{engines}:/usr/bin:/bin")
    folder = open_folder / "attempts" / "att_1"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o711)
    made = Attempt(folder, rendezvous_port)
    yield made
    bury(made.folder)


def run(attempt: Attempt, container: dict[str, Any], **fields: Any) -> dict[str, Any]:
    attempt.order(command=["id"], container={"image": "gpt", **container}, user={"uid": own_uid()}, **fields)
    spawn(attempt)
    return attempt.ended()


def reported_to_the_engine(attempt: Attempt) -> list[str]:
    lines = (attempt.folder / files.EVENTS).read_text().splitlines()
    notes = [json.loads(line) for line in lines]
    return next(list(note["command"]) for note in notes if note["event"] == "container")


def test_it_runs_as_its_jobs_user_with_what_is_the_jobs(attempt: Attempt, open_folder: Path) -> None:
    data = open_folder / "data"
    data.mkdir(mode=0o755)
    run(attempt, {"mounts": [{"source": str(data)}]})
    words = reported_to_the_engine(attempt)
    assert f"--user={own_uid()}:{own_uid()}" in words
    assert f"--mount=type=bind,source={data},target={data},readonly" in words
    assert attempt.read("clean.json")["clean"]


def test_another_user_is_refused_with_how_to_mend_it(attempt: Attempt) -> None:
    verdict = classify(parse_exit_record(run(attempt, {"user": "0:0"})), None)
    assert verdict.cause is Cause.USER_ERROR
    assert "leave the container's user out" in verdict.proof


def test_what_its_user_may_not_reach_is_not_mounted_either(attempt: Attempt, open_folder: Path) -> None:
    closed = open_folder / "closed"
    (closed / "open").mkdir(parents=True, mode=0o755)
    closed.chmod(0o700)
    verdict = classify(parse_exit_record(run(attempt, {"mounts": [{"source": str(closed / "open")}]})), None)
    assert verdict.cause is Cause.USER_ERROR
    assert f"closed to the job's user {own_uid()}" in verdict.proof


def test_secrets_are_mounted_where_the_program_is_reported(attempt: Attempt, open_folder: Path) -> None:
    source = open_folder / "secrets"
    source.mkdir(mode=0o700)
    (source / "token").write_text("s3cret-value")
    (source / "token").chmod(0o600)
    run(attempt, {}, secrets={"source": str(source), "names": ["token"]})
    words = reported_to_the_engine(attempt)
    place = next(word for word in words if "muster-secrets-" in word)
    assert place.endswith(",readonly")
    assert "s3cret-value" not in " ".join(words)
    assert attempt.read("clean.json")["clean"]


def test_the_checkpoint_folder_is_made_with_the_jobs_users_rights(attempt: Attempt, open_folder: Path) -> None:
    shared = open_folder / "ckpt"
    shared.mkdir()
    shared.chmod(0o777)
    run(attempt, {}, env={"MUSTER_CHECKPOINT_DIR": str(shared / "new" / "job_test")})
    made = (shared / "new" / "job_test").stat()
    assert (made.st_uid, made.st_mode & 0o777) == (own_uid(), 0o700)


@pytest.mark.parametrize(("kind", "words"), [("closed", "cannot make the checkpoint folder"), ("link", "is a link to")])
def test_a_checkpoint_folder_that_is_not_the_jobs_is_refused(
    attempt: Attempt, open_folder: Path, kind: str, words: str
) -> None:
    (open_folder / "closed").mkdir(mode=0o755)
    (open_folder / "link").symlink_to("/usr")
    place = open_folder / kind / "job" if kind == "closed" else open_folder / kind
    verdict = classify(parse_exit_record(run(attempt, {}, env={"MUSTER_CHECKPOINT_DIR": str(place)})), None)
    assert verdict.cause is Cause.USER_ERROR
    assert words in verdict.proof
    assert not (open_folder / "closed" / "job").exists()


def test_a_program_of_a_jobs_user_has_its_home(attempt: Attempt) -> None:
    run(attempt, {})
    lines = (attempt.folder / "container.env").read_text().splitlines()
    assert f"HOME={files.scratch_path(attempt.folder)}" in lines


def test_enroot_finds_the_home_of_the_jobs_user(monkeypatch: pytest.MonkeyPatch, attempt: Attempt) -> None:
    attempt.order(command=["id"], container={"image": "/srv/gpt.sqsh"}, user={"uid": own_uid()})
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/0")
    found = engine_environment(Engine(ENROOT, "/e"), read_order(attempt.folder), {"HOME": "/scratch"})
    assert found["HOME"] == "/scratch"
    assert "XDG_RUNTIME_DIR" not in found


def test_what_is_handed_over_leaves_links_and_the_inside_of_checkpoints_alone(open_folder: Path) -> None:
    target, scratch, checkpoints = open_folder / "target", open_folder / "scratch", open_folder / "checkpoints"
    target.write_text("not the tenant's")
    for place in (scratch, checkpoints, open_folder / files.RANKS):
        place.mkdir()
    (scratch / "link").symlink_to(target)
    (checkpoints / "old").write_text("")
    hand_over(open_folder, scratch, [checkpoints], f"{own_uid()}:{own_uid()}")  # neither pipes nor a launch folder
    assert [path.stat().st_uid for path in (target, scratch, checkpoints, checkpoints / "old")] == [
        0,
        own_uid(),
        own_uid(),
        0,
    ]
