"""Where each job has a user of its own, its files are hard links to the host's copy, and it can write none of them."""

import ast
import errno
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muster.domain.ids import JobId
from muster.domain.states import JobState
from tests.environments.wheels import source_lock
from tests.fleet_factory import Fleet
from tests.host_case import HostCase
from tests.workers.host.supervisor.user_case import OPEN_PYTHON, PACKAGES, needs_users, own_uid
from workers.host.content import copies
from workers.host.content.places import SET_ASIDE, Place
from workers.host.job_users import JobUsers, open_ways

from .bundle_case import content_of, write_folder
from .collected import collect
from .stored_outputs import outputs_of, reports_of
from .stores import S3, bundles_host

REPOSITORY = Path(__file__).parents[4]
PROGRAM = b"""
import os, pathlib
here = pathlib.Path(os.environ["MUSTER_BUNDLE_DIR"])
file = here / "data" / "words"
def tried(what):
    try:
        what()
    except OSError as fault:
        return type(fault).__name__
    return "done"
print(os.getuid(), file.read_text(), tried(lambda: file.write_text("mine")), tried(lambda: file.chmod(0o666)),
      tried(lambda: os.listdir(here.parent)), tried(lambda: os.listdir(here.parents[1] / "content")))
(here / "data" / "made").write_text("by the program")
file.unlink()
file.write_text("another file")
print(file.read_text())
"""


def _interpreter(folder: Path) -> str:
    """An interpreter that others may run and that has our packages, for us: what a host's package installs."""
    site = folder / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (site / "ours.pth").write_text(f"{PACKAGES}\n{REPOSITORY}\n")
    (folder / "venv" / "pyvenv.cfg").write_text(f"home = {Path(str(OPEN_PYTHON)).parent}\n")
    (folder / "venv" / "bin").mkdir()
    (folder / "venv" / "bin" / "python").symlink_to(str(OPEN_PYTHON))
    return str(folder / "venv" / "bin" / "python")


@pytest.fixture
def host_with_users(fleet: Fleet, api_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCase]:
    with tempfile.TemporaryDirectory(prefix="muster-users-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        monkeypatch.setattr(sys, "executable", _interpreter(Path(name)))
        users = JobUsers(own_uid() + 2_000_000, own_uid() + 2_000_099)
        state_dir = Path(name) / "host"
        open_ways(state_dir, users)
        wheels = Path(name) / "wheels"
        wheels.mkdir(mode=0o755)
        bundles = bundles_host(fleet.units, fleet.node_id, state_dir, api_url)
        bundles = replace(bundles, index={"wheelhouse": str(wheels)})
        case = HostCase(fleet, state_dir, users, sys.executable, bundles=bundles)
        yield case
        case.close()


@needs_users
def test_a_job_reads_its_bundle_and_writes_next_to_it_alone(host_with_users: HostCase, s3: S3, tmp_path: Path) -> None:
    host = host_with_users
    folder = write_folder(tmp_path / "own", **{"main.py": PROGRAM}, data__words=b"of-the-data")
    digest = s3.put(host.fleet, folder)
    place = Place(host.state_dir / "content", host.fleet.tenant_id, digest)
    for _ in range(2):
        program = {"launcher": "command", "argv": [str(OPEN_PYTHON), "main.py"], "bundle": digest}
        job_id = host.fleet.submit(program=program)
        host.fleet.cycle()
        assert host.run(job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.attempts(job_id)[0].attempt.proof)
        uid = own_uid() + 2_000_000 + host.fleet.job(job_id).number % 100
        first, second = host.log(job_id).decode().splitlines()
        assert first == f"{uid} of-the-data PermissionError PermissionError PermissionError PermissionError"
        assert second == "another file"
        assert content_of(place.copy) == content_of(folder)
        work = host.state_dir / "work" / host.fleet.attempts(job_id)[0].attempt.id
        assert (work / "main.py").stat().st_ino == (place.copy / "main.py").stat().st_ino
        assert (work / "main.py").stat().st_uid == os.geteuid()
        assert (work / "data").stat().st_uid == uid
        assert stat.S_IMODE(work.stat().st_mode) == 0o700
        host.run_until_clean()
    record = copies.record_of(place)
    assert record is not None
    assert record.is_whole


WRITES = b"""
import os, pathlib
def tried(what):
    try:
        what()
    except OSError as fault:
        return type(fault).__name__
    return "done"
out = pathlib.Path(os.environ["MUSTER_OUTPUT_DIR"])
(out / "model.pt").write_text("weights")
(out / "closed").write_text("x"); (out / "closed").chmod(0)
pathlib.Path("made.csv").write_text("1,2")
state = out.parents[1]
others = [tried(lambda: os.listdir(out.parent)), tried(lambda: os.listdir(state / "set_aside"))]
print(oct(out.stat().st_mode & 0o777), out.stat().st_uid == os.getuid(), *others)
"""


@needs_users
def test_outputs_of_a_user_are_out_of_reach_of_all_programs_and_read_by_its_rights(
    host_with_users: HostCase, s3: S3, tmp_path: Path
) -> None:
    host = host_with_users
    digest = s3.put(host.fleet, write_folder(tmp_path / "own", **{"main.py": WRITES, "given.csv": b"3,4"}))
    program = {"launcher": "command", "argv": [str(OPEN_PYTHON), "main.py"], "bundle": digest}

    def ran() -> JobId:
        job_id = host.fleet.submit(program=program, outputs=["*.csv"])
        host.fleet.cycle()
        assert host.run(job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.attempts(job_id)[0].attempt.proof)
        host.run_until_clean()
        return job_id

    ran()
    job_id = ran()
    assert host.log(job_id).split() == [b"0o700", b"True", b"PermissionError", b"PermissionError"]
    assert (host.state_dir / SET_ASIDE).stat().st_mode & 0o777 == 0o700
    collect(host)
    [files] = outputs_of(host.fleet, s3, job_id).values()
    assert files == {"given.csv": b"3,4", "made.csv": b"1,2", "model.pt": b"weights"}
    [report] = reports_of(host.fleet, job_id)
    assert report["words"] == "closed: it cannot be read: Permission denied"


BY_ENVIRONMENT = b"""
import os, pathlib, delta
module = pathlib.Path(delta.__file__)
environment = module.parents[4]
def tried(what):
    try:
        what()
    except OSError as fault:
        return type(fault).__name__
    return "done"
print(delta.VERSION, tried(lambda: module.write_text("mine")), tried(lambda: (module.parent / "more").touch()),
      tried(lambda: module.chmod(0o666)), tried(lambda: os.listdir(environment.parent)))
"""


@needs_users
def test_an_environment_is_built_as_the_jobs_user_and_no_job_writes_it(
    host_with_users: HostCase, s3: S3, tmp_path: Path
) -> None:
    host, built_at = host_with_users, Path(tempfile.mkdtemp(dir="/tmp"))
    built_at.chmod(0o777)
    assert host.bundles is not None
    tries = (host.bundles.key_file, host.state_dir / "content", host.state_dir / "work", f"/proc/{os.getpid()}/environ")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    code = (
        f"import socket; refused = socket.socket().connect_ex(('127.0.0.1', {listener.getsockname()[1]}))\n"
        f"    may_read = [os.access(path, os.R_OK) for path in {[*map(str, tries)]!r}]\n"
        f"    seen = [os.getuid(), sorted(os.environ), refused, *may_read]\n"
        f"    open({str(built_at / 'found')!r}, 'w').write(repr(seen))"
    )
    lock = source_lock(host.state_dir.parent / "wheels", code)
    files = {"main.py": BY_ENVIRONMENT, "requirements.txt": lock.encode()}
    digest = s3.put(host.fleet, write_folder(tmp_path / "own", **files))
    recipe = {"lock": "requirements.txt", "allows_source": True}
    program = {"launcher": "command", "argv": ["python", "main.py"], "bundle": digest, "environment": recipe}
    job_id = host.fleet.submit(program=program)

    def is_over() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return host.fleet.job(job_id).state in {JobState.SUCCEEDED, JobState.FAILED, JobState.HELD}

    host.turn_until(is_over)
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert host.log(job_id).decode() == "1.0 PermissionError PermissionError PermissionError PermissionError\n"
    uid, names, refused, *may_read = ast.literal_eval((built_at / "found").read_text())
    assert uid == own_uid() + 2_000_000 + host.fleet.job(job_id).number % 100
    assert not [name for name in names if name.startswith(("MUSTER", "AWS"))]
    assert may_read == [False] * len(tries)
    assert refused == errno.ECONNREFUSED, "its loopback is not the host's"
    with listener, pytest.raises(BlockingIOError):
        listener.accept()
    shutil.rmtree(built_at)
