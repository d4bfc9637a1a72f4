"""Jobs whose program is a commit of a git repository: real hosts, a real store, the real API, git over http."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from control.jobs import environments, jobs
from control.policy.policies import ACTIVATE, store_policy
from control.secrets.key_file import FileKeys
from muster.content.manifest import digest_of
from muster.content.tree import remove_folder
from muster.db.models import AuditEntry, EnvironmentBuild, Event, FolderJob, ObjectReport, StoredFolder
from muster.domain.ids import JobId
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.document import Policy
from muster.domain.policy.environment import EnvironmentPolicy
from muster.domain.states import JobState
from muster.domain.stored_content import FolderKind
from muster.store.keys import chunk_key
from tests.control.secrets.secret_case import key_file, rotate_secret, set_secret
from tests.fleet_factory import OPERATOR, Fleet, enrol_host
from tests.host_case import HostCase
from tests.waiting import wait_until
from tests.workers.host.supervisor.user_case import OPEN_PYTHON, needs_users, own_uid

from .git_server import GitServer, WorkTree, git_server
from .stores import S3, bundles_host, served_api
from .test_environment_jobs import ended, turn_until
from .test_job_users import host_with_users
from .test_lost_content import delete
from .test_lost_content import ended as ended_by_reports

__all__ = ["host_with_users"]

TOKEN = "glpat-0f-acme-deploys"
PROGRAM = b"""
import os
secrets = os.environ.get("MUSTER_SECRETS_DIR")
print(os.environ["MUSTER_BUNDLE"], open("data/words").read().strip(), sorted(os.listdir()), secrets)
"""


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    return key_file(tmp_path / "keys", "k1")


@pytest.fixture
def api_url(fleet: Fleet, s3: S3, keys: FileKeys) -> Iterator[str]:
    with served_api(fleet.units, s3.store, keys) as url:
        yield url


@pytest.fixture
def server(tmp_path: Path, fleet: Fleet) -> Iterator[GitServer]:
    (tmp_path / "served").mkdir()
    with git_server(tmp_path / "served") as served:
        allow(fleet, served.origin)
        yield served


@pytest.fixture
def commit(tmp_path: Path, server: GitServer) -> str:
    tree = WorkTree.new(tmp_path / "tree", server.root)
    return tree.commit(**{"main.py": PROGRAM, "data__words": b"of the commit\n"})


def allow(fleet: Fleet, *hosts: str, build_s: float = 120.0) -> None:
    policy = Policy(content=ContentPolicy(git_hosts=hosts), environment=EnvironmentPolicy(build_s=build_s))
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="repositories of this test")


def submit(fleet: Fleet, server: GitServer, commit: str, secret: str | None = None) -> JobId:
    git = {"url": server.url, "commit": commit, "secret": secret}
    given = {"launcher": "command", "argv": ["python3", "main.py"], "git": git}
    return fleet.submit(program=given, restart={"max_restarts": 3})


def reason_of_hold(host: HostCase, job_id: JobId) -> str:
    turn_until(host, lambda: host.fleet.job(job_id).state is JobState.HELD)
    return host.fleet.job(job_id).state_reason


def bundle_of(fleet: Fleet, job_id: JobId) -> StoredFolder:
    with fleet.units.read() as session:
        query = select(StoredFolder).join(FolderJob).where(FolderJob.job_id == job_id)
        return session.scalars(query.where(StoredFolder.kind == FolderKind.BUNDLE)).one()


def events_of(fleet: Fleet, job_id: JobId) -> list[str]:
    with fleet.units.read() as session:
        kinds = session.scalars(select(Event.kind).where(Event.subject_id == job_id).order_by(Event.id)).all()
    return [kind for kind in kinds if kind.startswith("job.bundle_")]


def test_a_job_runs_a_commit_as_an_ordinary_bundle(host: HostCase, server: GitServer, commit: str) -> None:
    job_id = submit(host.fleet, server, commit)
    host.fleet.cycle()
    assert host.fleet.num_taken_gpus() == 0, "no GPU waits for a repository"
    assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    folder = bundle_of(host.fleet, job_id)
    assert host.log(job_id).decode() == f"{folder.digest} of the commit ['data', 'main.py'] None\n"
    assert events_of(host.fleet, job_id) == ["job.bundle_building", "job.bundle_built"]
    host.run_until_clean()
    num_fetched = server.num_packs()
    again = submit(host.fleet, server, commit)
    assert ended(host, again) is JobState.SUCCEEDED, host.fleet.job(again).state_reason
    assert host.log(again).decode().startswith(folder.digest)
    assert server.num_packs() == num_fetched, "the second job takes what the first one made"
    assert events_of(host.fleet, again) == []


def submit_with_a_part_lost(host: HostCase, server: GitServer, commit: str, s3: S3) -> JobId:
    """Run a job of the commit, lose a part of its bundle, and return a second job of it, on a host without a copy."""
    first = submit(host.fleet, server, commit)
    assert ended(host, first) is JobState.SUCCEEDED, host.fleet.job(first).state_reason
    host.run_until_clean()
    delete(s3, chunk_key(host.fleet.tenant_id, digest_of(PROGRAM)))
    remove_folder(host.state_dir / "content")  # as on a host that never had it
    return submit(host.fleet, server, commit)


def test_a_commit_whose_bundle_lost_a_part_is_fetched_again_by_itself(
    host: HostCase, server: GitServer, commit: str, s3: S3
) -> None:
    again = submit_with_a_part_lost(host, server, commit, s3)
    num_fetched = server.num_packs()
    assert ended_by_reports(host, s3, again) is JobState.SUCCEEDED, host.fleet.job(again).state_reason
    assert server.num_packs() == num_fetched + 1
    with host.fleet.units.read() as session:
        words = " ".join(str(payload) for payload in session.scalars(select(Event.payload).order_by(Event.id)))
    ways = "a host fetches its commit again, and this job continues by itself", "a host makes it from its commit again"
    assert any(way in words for way in ways), "found by the attempt's host, or earlier by the keeper"
    assert "submit the same folder" not in words


def test_a_part_that_is_found_lost_before_the_job_is_placed_is_fetched_again_by_itself(
    host: HostCase, server: GitServer, commit: str, s3: S3
) -> None:
    """The preflight has the bundle, and reports the part before the next cycle: the job is still QUEUED."""
    again = submit_with_a_part_lost(host, server, commit, s3)
    num_fetched = server.num_packs()
    host.fleet.cycle()
    host.turn_until(lambda: is_reported(host.fleet))
    assert ended_by_reports(host, s3, again) is JobState.SUCCEEDED, host.fleet.job(again).state_reason
    assert server.num_packs() == num_fetched + 1


def is_reported(fleet: Fleet) -> bool:
    with fleet.units.read() as session:
        return session.scalars(select(ObjectReport)).first() is not None


def test_a_secret_opens_the_repository_and_is_nowhere_else(
    host: HostCase, server: GitServer, commit: str, keys: FileKeys
) -> None:
    server.token = TOKEN
    secret = set_secret(host.fleet.units, keys, host.fleet.tenant_id, "deploy", b"wrong-token")
    job_id = submit(host.fleet, server, commit, "deploy")
    reason = reason_of_hold(host, job_id)
    assert "does not accept the secret deploy: rotate it by `muster secret rotate deploy`" in reason
    assert host.fleet.attempts(job_id) == [], "no GPU was taken"
    with host.fleet.units.begin(host.fleet.tenant, jobs.READ) as unit:
        [build] = environments.builds_of(unit, job_id)
    assert (build.source, "Authentication failed" in build.log) == (f"{server.url} {commit}", True)
    rotate_secret(host.fleet.units, keys, secret, TOKEN.encode())
    with host.fleet.units.begin(host.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id)
    assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert host.log(job_id).endswith(b" None\n"), "the program gets no secret"
    with host.fleet.units.read() as session:
        read = session.scalars(select(AuditEntry.detail).where(AuditEntry.action == "secret.read")).all()
    assert {(entry["name"], entry["job_id"]) for entry in read} == {("deploy", job_id)}
    assert {entry["version"] for entry in read} == {1, 2}
    host.run_until_clean()
    files = [path for path in host.state_dir.parent.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_a_commit_that_is_not_there_holds_the_job_and_a_later_one_is_tried(
    host: HostCase, server: GitServer, commit: str
) -> None:
    job_id = submit(host.fleet, server, "ab" * 20)
    assert f"the repository {server.url} has no such commit: was it pushed?" in reason_of_hold(host, job_id)
    num_requests = len(server.requested)
    again = submit(host.fleet, server, "ab" * 20)
    assert "was it pushed?" in reason_of_hold(host, again)
    assert len(server.requested) > num_requests, "it may have been pushed since"


def test_a_server_that_does_not_answer_holds_the_job_once_hosts_have_tried(
    host: HostCase, server: GitServer, commit: str
) -> None:
    allow(host.fleet, "http://127.0.0.1:1", build_s=10.0)
    nowhere = replace(server, url="http://127.0.0.1:1/code.git")
    reason = reason_of_hold(host, submit(host.fleet, nowhere, commit))
    assert "its bundle or environment could not be made on one host" in reason
    assert "http://127.0.0.1:1/code.git could not be read" in reason


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _is_fetch_of(host: HostCase, process: psutil.Process) -> bool:
    """Other tests fetch meanwhile."""
    if "workers.host.content.git_build" not in _words_of(process):
        return False
    try:
        return process.environ().get("HOME", "").startswith(str(host.state_dir))
    except psutil.NoSuchProcess:
        return False


def test_a_killed_fetch_is_begun_again(host: HostCase, server: GitServer, commit: str) -> None:
    server.is_open.clear()
    job_id = submit(host.fleet, server, commit)
    turn_until(host, lambda: server.num_packs() > 0)
    [build] = [one for one in psutil.process_iter() if _is_fetch_of(host, one)]
    os.kill(build.pid, signal.SIGKILL)
    wait_until(lambda: not build.is_running() or build.status() == psutil.STATUS_ZOMBIE)
    server.is_open.set()
    assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert server.num_packs() >= 2
    host.run_until_clean()
    assert not list((host.state_dir / "work").glob("*.build")), "nothing of the killed fetch is left"
    assert not [one for one in psutil.process_iter() if any(str(host.state_dir) in word for word in _words_of(one))]


def test_two_jobs_at_once_on_two_hosts_fetch_it_once(
    host: HostCase, server: GitServer, commit: str, tmp_path: Path, api_url: str
) -> None:
    other_fleet = replace(host.fleet, node_id=enrol_host(host.fleet.units, "beta"))
    state_dir = tmp_path / "other" / "state"
    bundles = bundles_host(host.fleet.units, other_fleet.node_id, state_dir, api_url)
    other = HostCase(other_fleet, state_dir, bundles=bundles)
    try:
        server.is_open.clear()
        job_ids = [submit(host.fleet, server, commit) for _ in range(2)]

        def waits() -> bool:
            other.launcher.turn(woken=False)
            with host.fleet.units.read() as session:
                kinds = session.scalars(select(Event.kind).where(Event.subject_id.in_(job_ids))).all()
            return kinds.count("job.preflight_requested") == 2 and server.num_packs() > 0

        turn_until(host, waits)
        num_packs = server.num_packs()
        server.is_open.set()

        def are_over() -> bool:
            other.launcher.turn(woken=False)
            return all(host.fleet.job(job_id).finished_at is not None for job_id in job_ids)

        turn_until(host, are_over)
        assert {host.fleet.job(job_id).state for job_id in job_ids} == {JobState.SUCCEEDED}
        assert len({bundle_of(host.fleet, job_id).digest for job_id in job_ids}) == 1
        assert server.num_packs() == num_packs, "one of them fetched it"
        with host.fleet.units.read() as session:
            assert len(session.scalars(select(EnvironmentBuild)).all()) == 1
    finally:
        other.close()


@needs_users
def test_a_repository_is_fetched_as_the_user_of_the_job(
    host_with_users: HostCase, server: GitServer, commit: str, keys: FileKeys
) -> None:
    host = host_with_users
    server.token = TOKEN
    set_secret(host.fleet.units, keys, host.fleet.tenant_id, "deploy", TOKEN.encode())
    server.is_open.clear()
    git = {"url": server.url, "commit": commit, "secret": "deploy"}
    program = {"launcher": "command", "argv": [str(OPEN_PYTHON), "main.py"], "git": git}
    job_id = host.fleet.submit(program=program)
    turn_until(host, lambda: server.num_packs() > 0 or host.fleet.job(job_id).state is JobState.HELD)
    assert host.fleet.job(job_id).state is not JobState.HELD, host.fleet.job(job_id).state_reason
    uid = own_uid() + 2_000_000 + host.fleet.job(job_id).number % 100
    running = [one for one in psutil.process_iter() if one.name().startswith("git") and one.uids().real == uid]
    assert {one.name() for one in running} >= {"git", "git-remote-http"}
    server.is_open.set()
    assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert b" of the commit ['data', 'main.py'] None" in host.log(job_id)
    host.run_until_clean()
