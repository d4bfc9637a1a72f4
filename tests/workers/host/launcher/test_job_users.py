"""A host worker chooses the user of each job's programs, and opens to them no more than their own folders."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from muster.db.models import AttemptHost, Event, Tenant
from muster.domain.states import Cause, JobState
from muster.settings import SettingsError, load_settings
from tests.fleet_factory import make_fleet
from tests.host_case import HostCase
from tests.workers.host.supervisor.user_case import OPEN_PYTHON, needs_users, own_uid
from workers.host.job_users import JobUsers, job_users, open_ways

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT CHECKED: only root may have programs run as others")


def settings(**words: str) -> JobUsers:
    return job_users(load_settings({f"MUSTER_{name.upper()}": value for name, value in words.items()}))


def test_a_jobs_user_is_the_same_everywhere_and_no_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    users = JobUsers(70_000, 70_009)
    assert [users.document(number)["uid"] for number in (1, 2, 10, 11)] == [70_001, 70_002, 70_000, 70_001]
    assert users.document(None)["refusal"].startswith("the control plane is older than this host")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert JobUsers().document(1) == {
        "uid": None,
        "reason": "MUSTER_JOB_UIDS is not set on this host: programs run as the host worker's user 4711",
    }


@pytest.mark.parametrize("words", ["all", "70000", "-1-70000", "70000-x", "70000-69999", "0-70000", "70000-2147483647"])
def test_a_range_that_is_none_is_refused_with_what_is_accepted(words: str) -> None:
    with pytest.raises(SettingsError, match=r"MUSTER_JOB_UIDS: must (be FIRST-LAST|go up, from 65536)"):
        settings(job_uids=words)


def test_only_root_may_have_others_run_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(SettingsError, match="needs a host worker that runs as root, and this is user 4711"):
        settings(job_uids="70000-70009")
    assert settings() == JobUsers()


@needs_root
def test_simulated_hosts_share_their_users_and_are_refused() -> None:
    with pytest.raises(SettingsError, match="is not for simulated hosts"):
        settings(job_uids="70000-70009", simulated_boot_id="boot-1")
    assert settings(job_uids="70000-70009") == JobUsers(70_000, 70_009)


@needs_root
def test_a_range_with_a_user_of_the_host_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    person = type("Person", (), {"pw_name": "ada", "pw_uid": 70_003})()
    monkeypatch.setattr("pwd.getpwall", lambda: [person])
    with pytest.raises(SettingsError, match=r"70000-70009 holds users of this host: ada \(70003\)"):
        settings(job_uids="70000-70009")


def test_programs_pass_through_the_state_folder_and_see_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir(mode=0o755)
    (tmp_path / "ledger.json").write_text("{}")
    open_ways(tmp_path, JobUsers(70_000, 70_009))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, *tmp_path.iterdir())}
    assert modes.pop(tmp_path.name) == 0o711
    passed = dict.fromkeys(("attempts", "checkpoints", "environments", "outputs", "work"), 0o711)
    assert modes == {"agent": 0o700, "ledger.json": 0o600, **passed}


def test_without_users_the_state_folder_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    open_ways(tmp_path, JobUsers())
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def host_with_users(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCase]:
    monkeypatch.setattr(sys, "executable", OPEN_PYTHON)
    with tempfile.TemporaryDirectory(prefix="muster-users-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        users = JobUsers(own_uid() + 2_000_000, own_uid() + 2_000_099)
        open_ways(Path(name) / "host", users)
        case = HostCase(make_fleet(UnitOfWorkFactory(engine)), Path(name) / "host", users)
        yield case
        case.close()


@needs_users
def test_a_job_runs_as_the_user_of_its_number_and_keeps_its_checkpoints(host_with_users: HostCase) -> None:
    host = host_with_users
    code = "import os; os.mkdir(os.environ['MUSTER_CHECKPOINT_DIR'] + '/gen'); print(os.getuid(), os.getcwd())"
    job_id = host.submit(code)
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    uid = own_uid() + 2_000_000 + host.fleet.job(job_id).number % 100
    assert host.log(job_id).split()[0] == str(uid).encode()
    assert (host.state_dir / "checkpoints" / job_id / "gen").stat().st_uid == uid
    host.run_until_clean()
    with host.fleet.units.begin(host.fleet.tenant, jobs.READ) as unit:
        part = unit.session.scalars(select(AttemptHost)).one()
        said = unit.session.scalars(select(Event).where(Event.kind == "attempt.host_exited")).one()
    assert (part.exit_record or {})["uid"] == (part.clean_proof or {})["uid"] == said.payload["uid"] == uid


def test_where_programs_run_as_we_do_the_job_reports_it(host: HostCase) -> None:
    job_id = host.submit("print('ran')")
    assert host.run(job_id) is JobState.SUCCEEDED
    with host.fleet.units.begin(host.fleet.tenant, jobs.READ) as unit:
        said = unit.session.scalars(select(Event).where(Event.kind == "attempt.host_exited")).one()
    assert said.payload["uid"] is None
    assert said.payload["uid_reason"].startswith("MUSTER_JOB_UIDS is not set on this host: programs run as ")


def test_a_job_reads_its_own_tenants_secret_and_nothing_of_it_is_stored(host: HostCase) -> None:
    with host.fleet.units.begin(host.fleet.tenant, jobs.READ) as unit:
        [tenant] = unit.session.scalars(select(Tenant)).all()
    for name, value in ((tenant.name, "the-value-of-ours"), ("another", "the-value-of-others")):
        (host.secrets_dir / name).mkdir(parents=True)
        (host.secrets_dir / name / "wandb").write_text(value)
        (host.secrets_dir / name / "wandb").chmod(0o600)
    read = "import os; value = open(os.environ['MUSTER_SECRETS_DIR'] + '/wandb').read(); print(value, value[4:9])"
    job_id = host.submit(read, secrets=["wandb"])
    assert host.run(job_id) is JobState.SUCCEEDED
    host.turn_until(lambda: host.log(job_id) == b"[secret] value\n")
    host.run_until_clean()
    with host.fleet.units.begin(host.fleet.tenant, jobs.READ) as unit:
        part = unit.session.scalars(select(AttemptHost)).one()
    assert (part.clean_proof or {})["secrets_removed"] is True


def test_a_secret_that_the_host_has_not_is_the_jobs_error_by_name(host: HostCase) -> None:
    job_id = host.submit("print('ran')", secrets=["hf-token"])
    assert host.run(job_id) is JobState.FAILED
    attempt = host.fleet.attempts(job_id)[-1].attempt
    assert attempt.cause is Cause.USER_ERROR
    assert "the secret hf-token is not on this host" in str(attempt.proof)
