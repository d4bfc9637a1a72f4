"""A chunk is deleted from the store, or damaged there: the folder is stored again, and its jobs continue."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from control.content import bundles
from control.content.manifests import reading_of
from control.content.reports import check_reports_once
from control.jobs.lost_bundles import keep_jobs_once
from control.policy.policies import ACTIVATE, store_policy
from muster.content.manifest import digest_of
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import JobState
from muster.domain.stored_content import FolderState
from muster.store.keys import chunk_key
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.store.stores import BUCKET

from .bundle_case import stored, write_folder
from .environment_case import one_wheel
from .stores import S3

PROGRAM = b"print('it runs')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "own", **{"main.py": PROGRAM}, words=b"of the data")


def submit(host: HostCase, digest: str, **program: object) -> JobId:
    python = "python" if "environment" in program else sys.executable
    given = {"launcher": "command", "argv": [python, "main.py"], "bundle": digest}
    return host.fleet.submit(program=given | program, restart={"max_restarts": 3})


def turn_until(host: HostCase, s3: S3, is_so: Callable[[], bool]) -> None:
    def round_is_so() -> bool:
        check_reports_once(host.fleet.units, s3.store)
        keep_jobs_once(host.fleet.units)
        host.fleet.reconcile()
        host.fleet.cycle()
        return is_so()

    host.turn_until(round_is_so)


def state_of(host: HostCase, job_id: JobId) -> JobState:
    return host.fleet.job(job_id).state


def ended(host: HostCase, s3: S3, job_id: JobId) -> JobState:
    turn_until(host, s3, lambda: host.fleet.job(job_id).finished_at is not None)
    return state_of(host, job_id)


def with_preflight(host: HostCase) -> None:
    policy = Policy(dispatch=DispatchPolicy(preflight_from_nodes=1, preflight_within_s=60))
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="a test")


def delete(s3: S3, key: str) -> None:
    s3.client.delete_object(Bucket=BUCKET, Key=key)


def damage(s3: S3, key: str) -> None:
    content = s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=content[:-1] + bytes([content[-1] ^ 1]))


def send_again(host: HostCase, s3: S3, folder: Path) -> list[str]:
    """Upload the folder as a client does. Return what was uploaded."""
    digest, _, chunks, manifest = stored(folder)
    with host.fleet.units.begin(host.fleet.tenant, bundles.BEGIN) as unit:
        wanted = [each.digest for each in bundles.begin(unit, reading_of(manifest)).wanted]
    for name in wanted:
        s3.client.put_object(Bucket=BUCKET, Key=chunk_key(host.fleet.tenant_id, name), Body=chunks[name])
    with host.fleet.units.begin(host.fleet.tenant, bundles.CONFIRM, quiet=True) as unit:
        assert bundles.confirm(unit, digest, wanted).folder.state is FolderState.COMPLETE
    return wanted


@pytest.mark.parametrize("has_preflight", [False, True])
@pytest.mark.parametrize("lose", [delete, damage])
def test_a_lost_chunk_holds_the_job_until_the_folder_is_sent_again(
    host: HostCase, s3: S3, folder: Path, lose: Callable[[S3, str], None], *, has_preflight: bool
) -> None:
    if has_preflight:
        with_preflight(host)
    digest, lost = s3.put(host.fleet, folder), digest_of(PROGRAM)
    lose(s3, chunk_key(host.fleet.tenant_id, lost))
    job_id = submit(host, digest)
    turn_until(host, s3, lambda: state_of(host, job_id) is JobState.HELD)
    assert "submit the same folder again, and this job continues by itself" in host.fleet.job(job_id).state_reason
    assert host.fleet.num_taken_gpus() == 0 or not has_preflight
    assert send_again(host, s3, folder) == [lost]
    assert ended(host, s3, job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert host.log(job_id) == b"it runs\n"


@pytest.mark.parametrize("lose", [delete, damage])
def test_an_environment_that_lost_a_chunk_is_built_again_by_itself(
    host: HostCase, s3: S3, tmp_path: Path, lose: Callable[[S3, str], None]
) -> None:
    assert host.bundles is not None
    house = tmp_path / "house"
    house.mkdir()
    host.bundles = replace(host.bundles, index={"wheelhouse": str(house)})
    host.restart()
    lock = one_wheel(house).encode()
    own = write_folder(tmp_path / "own", **{"main.py": b"import alpha; print(alpha.VERSION)", "requirements.txt": lock})
    digest = s3.put(host.fleet, own)
    first = submit(host, digest, environment={"lock": "requirements.txt"})
    assert ended(host, s3, first) is JobState.SUCCEEDED, host.fleet.job(first).state_reason
    host.run_until_clean()
    [archive] = (host.state_dir / "content").rglob("*.tar")
    lose(s3, chunk_key(host.fleet.tenant_id, digest_of(archive.read_bytes())))
    for name in ("content", "environments"):  # as on a host that never had it
        forget(host.state_dir / name)
    second = submit(host, digest, environment={"lock": "requirements.txt"})
    assert ended(host, s3, second) is JobState.SUCCEEDED, host.fleet.job(second).state_reason
    assert host.log(second) == b"1.0\n"


def forget(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
