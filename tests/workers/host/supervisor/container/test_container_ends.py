"""How a container ends, with an engine that says and does what each test needs: its words, its codes, its memory."""

import os
import stat
from pathlib import Path

import pytest

from muster.domain.exit.exits import Verdict, classify, parse_exit_record
from muster.domain.states import Cause
from tests.workers.host.supervisor.attempt_case import Attempt
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.cgroup.group import Group
from workers.host.supervisor.cgroup.memory_kills import MemoryKills
from workers.host.supervisor.container.end import remove
from workers.host.supervisor.order import read_order

CREATED = """for word in "$@"; do case $word in --cidfile=*) echo c0ffee >"${word#--cidfile=}";; esac; done"""
BEGUN = """for word in "$@"; do case $word in --pidfile=*) echo 4711 >"${word#--pidfile=}";; esac; done"""
NO_ENGINE = "container engine"
MADE = f"{CREATED}\n{BEGUN}"
RUNC = "Error: runc: runc create failed: unable to start container process: "


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "engines"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def podman(engines: Path, run: str, rm: str = "exit 0") -> None:
    path = engines / "podman"
    path.write_text(f"#!/bin/sh\ncase $1 in\nrun)\n{run}\n;;\nrm)\n{rm}\n;;\nesac\n")
    path.chmod(stat.S_IRWXU | stat.S_IXGRP | stat.S_IRGRP | stat.S_IXOTH | stat.S_IROTH)


def ended(attempt: Attempt) -> Verdict:
    attempt.order(command=["id"], container={"image": "gpt", "engine": "podman"})
    supervisor.spawn_supervisor(attempt.folder)
    return classify(parse_exit_record(attempt.ended()), None)


@pytest.mark.parametrize("code", [125, 126, 127])
def test_a_program_that_ran_is_not_stated_to_have_not(attempt: Attempt, engines: Path, code: int) -> None:
    podman(engines, f"{MADE}\necho 'Error: my own words' >&2\nexit {code}")
    verdict = ended(attempt)
    assert verdict.cause is Cause.USER_ERROR
    assert "not started" not in verdict.proof
    assert "my own words" in verdict.proof


@pytest.mark.parametrize(
    ("stated", "cause", "lacks"),
    [
        ("Error: unresolvable CDI devices nvidia.com/gpu=GPU-1", Cause.LAUNCH_FAILED, None),
        ("Error: crun: executable not found", Cause.LAUNCH_FAILED, None),
        ("Error: initializing source docker://gpt:1: reading manifest 1: manifest unknown", Cause.USER_ERROR, "image"),
        ('Error: short-name "gpt" did not resolve to an alias', Cause.USER_ERROR, "image"),
        ("Error: /data: duplicate mount destination", Cause.USER_ERROR, "image"),
        ("docker: Cannot connect to the Docker daemon at unix:///run/docker.sock.", Cause.LAUNCH_FAILED, NO_ENGINE),
        ("docker: failed to connect to the docker API at unix:///run/docker.sock;", Cause.LAUNCH_FAILED, NO_ENGINE),
        ("Cannot connect to Podman. Please verify your connection", Cause.LAUNCH_FAILED, NO_ENGINE),
        ("docker: permission denied while trying to connect to the Docker daemon", Cause.LAUNCH_FAILED, NO_ENGINE),
        ("Error: initializing source docker://gpt:1: pinging registry: i/o timeout", Cause.LAUNCH_FAILED, None),
    ],
)
def test_why_no_container_was_made_is_the_tenants_or_the_hosts(
    attempt: Attempt, engines: Path, stated: str, cause: Cause, lacks: str | None
) -> None:
    podman(engines, f"echo '{stated}' >&2\nexit 125")
    verdict = ended(attempt)
    assert verdict.cause is cause
    assert f"the container was not started: {stated}" in verdict.proof
    assert attempt.read("exit.json")["lacks"] == lacks


@pytest.mark.parametrize(
    ("code", "stated", "cause"),
    [
        (
            126,
            f"{RUNC}error setting rlimit type 7: operation not permitted: OCI permission denied",
            Cause.LAUNCH_FAILED,
        ),
        (125, "Error: conmon exited with status 1", Cause.LAUNCH_FAILED),
        (127, f'{RUNC}exec: "id": executable file not found in $PATH: OCI runtime attempted', Cause.USER_ERROR),
        (126, f'{RUNC}exec: "id": permission denied: OCI permission denied', Cause.USER_ERROR),
        (126, 'Error: workdir "/nowhere" does not exist on container c0ffee', Cause.USER_ERROR),
        (127, "Error: crun: executable file `id` not found in $PATH: No such file or directory", Cause.USER_ERROR),
    ],
)
def test_a_container_that_was_made_and_whose_program_never_began_is_reported_by_whose_fault_it_is(
    attempt: Attempt, engines: Path, code: int, stated: str, cause: Cause
) -> None:
    podman(engines, f"{CREATED}\necho '{stated}' >&2\nexit {code}")
    verdict = ended(attempt)
    assert verdict.cause is cause
    assert f"the container was not started: {stated}" in verdict.proof


@pytest.mark.parametrize(
    ("stated", "cause"),
    [
        ("docker: Error response from daemon: could not select device driver", Cause.LAUNCH_FAILED),
        ('docker: Error response from daemon: exec: "id": executable file not found in $PATH', Cause.USER_ERROR),
        ("Error: my own words", Cause.USER_ERROR),
    ],
)
def test_docker_states_by_its_last_word_that_it_ran_nothing(
    attempt: Attempt, engines: Path, stated: str, cause: Cause
) -> None:
    podman(engines, f"{CREATED}\necho '{stated}' >&2\nexit 125")
    (engines / "podman").rename(engines / "docker")
    attempt.order(command=["id"], container={"image": "gpt", "engine": "docker"})
    supervisor.spawn_supervisor(attempt.folder)
    verdict = classify(parse_exit_record(attempt.ended()), None)
    assert verdict.cause is cause
    assert ("not started" in verdict.proof) == stated.startswith("docker:")


def test_the_code_of_a_killed_program_is_its_signal(attempt: Attempt, engines: Path) -> None:
    podman(engines, f"{MADE}\nexit 137")
    ended(attempt)
    record = attempt.read("exit.json")
    assert (record["launcher_exit_code"], record["launcher_signal"]) == (None, 9)
    assert (record["ranks"]["0"]["exit_code"], record["ranks"]["0"]["signal"]) == (None, 9)
    assert record["cgroup_oom_kills"] is None


def test_the_group_of_an_engines_client_is_no_evidence_of_memory_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([(None, 4), (None, 5)] * 2)
    monkeypatch.setattr("workers.host.supervisor.cgroup.memory_kills.oom_kills", lambda: next(counts))
    monkeypatch.setattr(Group, "oom_kills", lambda _self: 0)
    record = {"ranks": {"0": {"signal": 9}}, "stop_reason": None}
    assert not MemoryKills(Group("v2", {})).have_ended(-9, record)
    next(counts)
    assert MemoryKills(Group("v2", {}), is_elsewhere=True).have_ended(-9, record)


def test_a_limit_of_io_that_is_not_in_force_is_stated(attempt: Attempt, engines: Path) -> None:
    podman(engines, f"{MADE}\nexit 0")
    limits = {"io_read_bytes_per_s": 1 << 20}
    attempt.order(command=["id"], container={"image": "gpt", "engine": "podman"}, limits=limits)
    supervisor.spawn_supervisor(attempt.folder)
    assert "limits of I/O are not in force in a container" in attempt.ended()["cgroup_reason"]


def test_a_container_that_its_engine_keeps_is_not_clean(attempt: Attempt, engines: Path) -> None:
    gone = engines / "gone"
    podman(engines, f"{MADE}\nexit 0", rm=f"test -e {gone} && exit 0\necho 'Error: device busy' >&2\nexit 1")
    attempt.order(command=["id"], container={"image": "gpt", "engine": "podman"})
    supervisor.spawn_supervisor(attempt.folder)
    proof = attempt.wait_for("clean.json")
    assert (proof["clean"], proof["container_removed"]) == (False, False)
    gone.touch()
    attempt.wait_for("exit.json")
    assert attempt.ended()
    assert supervisor.prove_clean(attempt.folder)["clean"]


def test_what_runs_is_killed_before_its_engine_is_queried(attempt: Attempt, engines: Path) -> None:
    alive = engines / "alive"
    rm = f"kill -0 $(cat {engines}/pid) 2>/dev/null && touch {alive}\nexit 0"
    podman(engines, f"{MADE}\necho $$ >{engines}/pid\necho up\ntrap '' TERM\nwhile :; do sleep 0.1; done", rm=rm)
    attempt.order(command=["id"], container={"image": "gpt", "engine": "podman"})
    supervisor.spawn_supervisor(attempt.folder)
    attempt.wait_for_log("up")
    attempt.stop("cancel", after_s=0.1)
    attempt.ended()
    assert not alive.exists()


def test_an_engine_that_does_not_answer_proves_nothing(attempt: Attempt, engines: Path) -> None:
    podman(engines, "exit 0", rm="exec sleep 600")
    attempt.order(command=["id"], container={"image": "gpt", "engine": "podman"})
    assert not remove(read_order(attempt.folder), attempt.folder, timeout_s=0.2)


def test_where_none_was_made_an_engine_that_fails_keeps_none(attempt: Attempt, engines: Path) -> None:
    podman(engines, "exit 0", rm="echo 'Cannot connect to the daemon' >&2\nexit 1")
    attempt.order(command=["id"], container={"image": "gpt", "engine": "podman"})
    order = read_order(attempt.folder)
    assert remove(order, attempt.folder, timeout_s=60)
    (attempt.folder / "container.id").write_text("c0ffee")
    assert not remove(order, attempt.folder, timeout_s=60)
    assert files.read_json(attempt.folder / files.CLEAN) is None
