"""Jobs that run by an environment of their lock: real hosts, a real store, the real API, uv and a wheelhouse."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from control.policy.policies import ACTIVATE, store_policy
from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from muster.domain.policy.environment import EnvironmentPolicy
from muster.domain.states import JobState
from tests.environments.wheels import make_wheel, sha256_of
from tests.fleet_factory import OPERATOR, Fleet
from tests.host_case import HostCase

from .bundle_case import write_folder
from .environment_case import SlowBuild, one_wheel
from .stores import S3, bundles_host

PROGRAM = b"""
import alpha, os, shutil, sys
print(alpha.VERSION, sys.prefix == os.environ["VIRTUAL_ENV"], shutil.which("say-alpha").startswith(sys.prefix))
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    (tmp_path / "house").mkdir()
    return tmp_path / "house"


@pytest.fixture
def host(fleet: Fleet, api_url: str, tmp_path: Path, house: Path) -> Iterator[HostCase]:
    state_dir = tmp_path / "host" / "state"
    bundles = bundles_host(fleet.units, fleet.node_id, state_dir, api_url)
    case = HostCase(
        fleet, state_dir, bundles=replace(bundles, index={"wheelhouse": str(house), "source_builds": "anywhere"})
    )
    yield case
    case.close()


def bundle(host: HostCase, s3: S3, folder: Path, lock: str) -> str:
    files = {"main.py": PROGRAM, "requirements.txt": lock.encode()}
    return s3.put(host.fleet, write_folder(folder, **files))


def submit(host: HostCase, digest: str, environment: dict[str, Any] | None = None, **program: Any) -> JobId:
    recipe = {"lock": "requirements.txt", **(environment or {})}
    given = {"launcher": "command", "argv": ["python", "main.py"], "bundle": digest, "environment": recipe}
    return host.fleet.submit(program=given | program, restart={"max_restarts": 3})


def turn_until(host: HostCase, is_so: Callable[[], bool]) -> None:
    def round_is_so() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return is_so()

    host.turn_until(round_is_so)


def ended(host: HostCase, job_id: JobId) -> JobState:
    def is_over() -> bool:
        job = host.fleet.job(job_id)
        return job.finished_at is not None or job.state is JobState.HELD

    turn_until(host, is_over)
    return host.fleet.job(job_id).state


def environments(host: HostCase) -> list[Path]:
    return list((host.state_dir / "environments").glob("*/*"))


def test_a_program_runs_by_the_environment_of_its_lock(host: HostCase, s3: S3, house: Path, tmp_path: Path) -> None:
    digest = bundle(host, s3, tmp_path / "own", one_wheel(house, command="say-alpha"))
    for _ in range(2):
        job_id = submit(host, digest)
        assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
        assert host.log(job_id).decode() == "1.0 True True\n"
        host.run_until_clean()
    assert len(environments(host)) == 1


def test_torchrun_takes_torch_from_the_host_by_the_jobs_word(
    host: HostCase, s3: S3, house: Path, tmp_path: Path
) -> None:
    torch = f"torch=={version('torch').split('+')[0]} --hash=sha256:{'b' * 64}\n"
    digest = bundle(host, s3, tmp_path / "own", one_wheel(house, command="say-alpha") + torch)
    job_id = submit(host, digest, {"from_host": ["torch"]}, launcher="torchrun", argv=[], script="main.py")
    assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert b"1.0 True True" in host.log(job_id)


def test_a_wheel_with_another_hash_holds_the_job_with_its_line(
    host: HostCase, s3: S3, house: Path, tmp_path: Path
) -> None:
    wheel = make_wheel(house, "alpha")
    good = sha256_of(wheel)
    digest = bundle(host, s3, tmp_path / "own", f"# packages\nalpha==1.0 --hash=sha256:{good[::-1]}\n")
    job_id = submit(host, digest)
    turn_until(host, lambda: host.fleet.job(job_id).state is JobState.HELD)
    reason = host.fleet.job(job_id).state_reason
    assert "line 2 of the lock" in reason
    assert "Hash mismatch" in reason
    assert host.fleet.attempts(job_id) == [], "no GPU was taken"
    assert environments(host) == []


def submit_slow(host: HostCase, s3: S3, folder: Path, slow: SlowBuild) -> JobId:
    files = {"main.py": b"import delta; print(delta.VERSION)", "requirements.txt": slow.lock.encode()}
    return submit(host, s3.put(host.fleet, write_folder(folder, **files)), {"allows_source": True})


def test_a_cancelled_job_ends_its_build_at_once(host: HostCase, s3: S3, house: Path, tmp_path: Path) -> None:
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:  # no renewal of the claim comes within this test
        store_policy(unit, Policy(environment=EnvironmentPolicy(lease_s=600)), reason="a test")
    with SlowBuild.in_house(house, tmp_path) as slow:
        job_id = submit_slow(host, s3, tmp_path / "own", slow)
        turn_until(host, lambda: bool(slow.processes()))
        host.fleet.cancel(job_id)
        turn_until(host, lambda: not slow.processes())
        assert slow.num_begun() == 1
    assert host.fleet.job(job_id).state is JobState.CANCELLED
    host.turn_until(lambda: not list((host.state_dir / "attempts").glob("look-*")))


def test_a_killed_build_is_begun_again_and_leaves_nothing_that_is_used(
    host: HostCase, s3: S3, house: Path, tmp_path: Path
) -> None:
    with SlowBuild.in_house(house, tmp_path) as slow:
        job_id = submit_slow(host, s3, tmp_path / "own", slow)
        turn_until(host, lambda: bool(slow.processes()))
        [backend] = slow.processes()
        [build] = [one for one in backend.parents() if "workers.host.content.environment_build" in one.cmdline()]
        os.kill(build.pid, signal.SIGKILL)
        turn_until(host, lambda: backend not in slow.processes())  # the installer's own children end too
        with slow.opened():
            assert ended(host, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert host.log(job_id).decode() == "1.0\n"
    host.run_until_clean()
    assert len(environments(host)) == 1
