"""A host runs the preflight of a gang before it is placed: by a real supervisor, without a GPU, and leaves nothing."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Event, PlacementPreflight
from muster.domain.ids import JobId
from muster.domain.job.preflight import PreflightState
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import JobState
from muster.train.data import dataset_manifest as manifests
from tests.fleet_factory import OPERATOR, enrol_host, make_fleet
from tests.host_case import HostCase
from tests.waiting import wait_until
from workers.host import supervisor
from workers.host.proof_tries import PROVE_SOON_MS
from workers.host.supervisor.files import LOCK
from workers.host.supervisor.lock import is_locked, take_lock

GANGS = Policy(dispatch=DispatchPolicy(preflight_from_nodes=2, preflight_within_s=60))
SHAPE = {"nodes": 2, "gpus_per_node": 1}


class Looking:
    """Two hosts with a launcher each. One is asked first: ``requested`` says which."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.fleet = make_fleet(UnitOfWorkFactory(engine))
        with self.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, GANGS, reason="a test")
        other = replace(self.fleet, node_id=enrol_host(self.fleet.units, "beta"))
        self.cases = [
            HostCase(self.fleet, folder / "alpha" / "state"),
            HostCase(other, folder / "beta" / "state"),
        ]

    def submit(self, *argv: str, **spec: object) -> JobId:
        program: dict[str, object] = {"launcher": "command", "argv": argv or [sys.executable, "-c", ""]}
        return self.fleet.submit(**{"program": program, "shape": SHAPE, **spec})

    def turn_until(self, is_so: Callable[[], object]) -> None:
        def round_is_so() -> bool:
            self.fleet.reconcile()
            self.fleet.cycle()
            self.cases[1].launcher.turn(woken=True)
            self.cases[1].relay.drain_all()
            return bool(is_so())

        self.cases[0].turn_until(round_is_so)

    def row(self, job_id: JobId) -> PlacementPreflight | None:
        with self.fleet.units.read() as session:
            return session.get(PlacementPreflight, job_id)

    def events(self, kind: str) -> list[Event]:
        with self.fleet.units.read() as session:
            return list(session.scalars(select(Event).where(Event.kind == kind).order_by(Event.at, Event.id)))

    def requested(self, job_id: JobId) -> HostCase:
        row = self.row(job_id)
        assert row is not None
        return next(case for case in self.cases if case.fleet.node_id == row.node_id)

    def lay_secret(self, mode: int, *cases: HostCase) -> None:
        for case in cases:
            secret = case.secrets_dir / "acme" / "token"
            secret.parent.mkdir(parents=True, exist_ok=True)
            secret.write_text("value")
            secret.chmod(mode)

    def folders(self) -> list[Path]:
        return [path for case in self.cases for path in (case.state_dir / "attempts").glob("look-*")]


@pytest.fixture
def looking(engine: Engine, tmp_path: Path) -> Iterator[Looking]:
    looking = Looking(engine, tmp_path)
    yield looking
    for case in looking.cases:
        case.close()


def test_what_is_there_is_seen_and_the_gang_runs(looking: Looking) -> None:
    looking.lay_secret(0o600, *looking.cases)
    job_id = looking.submit(secrets=["token"])
    looking.fleet.cycle()
    assert looking.fleet.num_taken_gpus() == 0
    looking.turn_until(lambda: looking.fleet.job(job_id).finished_at is not None)
    assert looking.fleet.job(job_id).state is JobState.SUCCEEDED, looking.fleet.job(job_id).state_reason
    (event,) = looking.events("job.preflight_done")
    assert event.payload["checked"] == ["working folder", "secrets", "disk"]
    looking.turn_until(lambda: not looking.folders())


def test_a_missing_script_holds_the_job_before_any_gpu_is_taken(looking: Looking, tmp_path: Path) -> None:
    job_id = looking.submit(program={"script": str(tmp_path / "absent.py"), "python": sys.executable})
    looking.turn_until(lambda: looking.fleet.job(job_id).state is JobState.HELD)
    assert f"the script {tmp_path}/absent.py does not exist" in looking.fleet.job(job_id).state_reason
    assert looking.fleet.attempts(job_id) == []
    looking.turn_until(lambda: not looking.folders())


def test_a_dataset_with_a_missing_file_holds_the_job_until_it_is_repaired(looking: Looking, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("a.bin", "b.bin"):
        (corpus / name).write_bytes(b"x" * 10)
    manifests.write(corpus, manifests.describe(corpus))
    (corpus / "b.bin").unlink()
    found = "import os, pathlib; assert (pathlib.Path(os.environ['MUSTER_DATASET_CORPUS']) / 'b.bin').exists()"
    program = {"launcher": "command", "argv": [sys.executable, "-c", found]}
    job_id = looking.submit(program=program, datasets=[{"name": "corpus", "path": str(corpus)}])
    looking.turn_until(lambda: looking.fleet.job(job_id).state is JobState.HELD)
    assert (
        f"the dataset corpus: {corpus} is not as its manifest says: b.bin is missing"
        in looking.fleet.job(job_id).state_reason
    )
    assert looking.fleet.attempts(job_id) == []
    (corpus / "b.bin").write_bytes(b"x" * 10)
    with looking.fleet.units.begin(looking.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id, reason="mended")
    looking.turn_until(lambda: looking.fleet.job(job_id).finished_at is not None)
    assert looking.fleet.job(job_id).state is JobState.SUCCEEDED, looking.fleet.job(job_id).state_reason
    assert looking.events("job.preflight_done")[-1].payload["checked"] == ["working folder", "datasets", "disk"]
    looking.turn_until(lambda: not looking.folders())


def test_a_secret_that_a_host_keeps_open_sends_the_check_to_the_next(looking: Looking) -> None:
    job_id = looking.submit(secrets=["token"])
    looking.fleet.cycle()
    first = looking.requested(job_id)
    looking.lay_secret(0o644, first)
    looking.lay_secret(0o600, *(case for case in looking.cases if case is not first))
    looking.turn_until(lambda: looking.fleet.attempts(job_id))
    said = [(event.payload["found"], event.payload["node_id"]) for event in looking.events("job.preflight_done")]
    (other,) = (case.fleet.node_id for case in looking.cases if case is not first)
    assert said == [("unable", first.fleet.node_id), ("fit", other)]
    assert "0600" in looking.events("job.preflight_done")[0].payload["reason"]


def test_a_launcher_that_dies_before_it_has_reported_is_followed_by_one_that_does(looking: Looking) -> None:
    job_id = looking.submit()
    looking.fleet.cycle()
    case = looking.requested(job_id)
    case.launcher.turn(woken=True)
    (folder,) = looking.folders()
    case.client.is_cut = True
    case.turn_until(lambda: supervisor.adopt(folder).state == "exited")
    case.restart()
    case.client.is_cut = False
    looking.turn_until(lambda: looking.fleet.job(job_id).finished_at is not None)
    assert looking.fleet.job(job_id).state is JobState.SUCCEEDED
    assert [event.payload["found"] for event in looking.events("job.preflight_done")] == ["fit"]
    looking.turn_until(lambda: not looking.folders())


def blocking_once(folder: Path) -> tuple[dict[str, object], Path]:
    """A program whose interpreter blocks on the first host alone, as on a file system that does not answer, and what
    exists once it does.
    """
    venv, first_look = folder / "venv", folder / "first"
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    python.write_text(f'#!/bin/sh\nif mkdir {first_look}; then exec sleep 600; fi\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return {"launcher": "command", "argv": [sys.executable, "-c", ""], "venv": str(venv)}, first_look


def test_a_supervisor_that_is_killed_as_it_checks_leaves_it_to_the_next_host(looking: Looking, tmp_path: Path) -> None:
    program, first_look = blocking_once(tmp_path)
    job_id = looking.submit(program=program)
    case, _, pid = begun(looking, job_id, first_look)
    os.kill(pid, signal.SIGKILL)
    looking.turn_until(lambda: (row := looking.row(job_id)) is not None and row.state is not PreflightState.REQUESTED)
    said = [(event.payload["found"], event.payload["node_id"]) for event in looking.events("job.preflight_done")]
    assert said[0] == ("unable", case.fleet.node_id)
    assert said[1][1] != case.fleet.node_id
    looking.turn_until(lambda: not looking.folders())


def within(looking: Looking, seconds: float) -> None:
    shorter = Policy(dispatch=DispatchPolicy(preflight_from_nodes=2, preflight_within_s=seconds))
    with looking.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, shorter, reason="a test")


def begun(looking: Looking, job_id: JobId, first_check: Path) -> tuple[HostCase, Path, int]:
    """A preflight of ``blocking_once`` that blocks: its host, its folder and its supervisor."""
    looking.fleet.cycle()
    case = looking.requested(job_id)
    case.launcher.turn(woken=True)
    (folder,) = looking.folders()
    case.turn_until(first_check.exists)
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    return case, folder, pid


def test_a_check_that_hangs_is_killed_in_time_and_another_host_is_queried(looking: Looking, tmp_path: Path) -> None:
    within(looking, 8.0)
    program, first_look = blocking_once(tmp_path)
    job_id = looking.submit(program=program, secrets=["token"])
    looking.lay_secret(0o600, *looking.cases)
    case, _, pid = begun(looking, job_id, first_look)
    os.kill(pid, signal.SIGSTOP)  # like a supervisor blocked by a dead mount, it receives nothing
    looking.turn_until(lambda: looking.events("job.preflight_done"))
    event = looking.events("job.preflight_done")[0]
    assert (event.payload["found"], event.payload["node_id"]) == ("unable", case.fleet.node_id)
    assert "was killed: a file system or device that it reads does not answer" in event.payload["reason"]
    looking.turn_until(lambda: looking.fleet.job(job_id).finished_at is not None)
    assert looking.fleet.job(job_id).state is JobState.SUCCEEDED
    looking.turn_until(lambda: not looking.folders())


def test_a_check_that_cannot_be_killed_is_left_and_reported_and_goes_once_it_can(
    looking: Looking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    within(looking, 8.0)
    program, first_look = blocking_once(tmp_path)
    job_id = looking.submit(program=program)
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda _pid, _number: None)  # as SIGKILL to a process in a wait that none ends
        case, folder, pid = begun(looking, job_id, first_look)
        os.kill(pid, signal.SIGSTOP)
        looking.turn_until(lambda: looking.events("job.preflight_done"))
        event = looking.events("job.preflight_done")[0]
        assert (event.payload["found"], event.payload["node_id"]) == ("unable", case.fleet.node_id)
        assert f"it hangs in the kernel and cannot be ended: process {pid}" in event.payload["reason"]
        looking.turn_until(lambda: looking.fleet.attempts(job_id))
        assert folder.exists()
    os.kill(pid, signal.SIGKILL)
    looking.turn_until(lambda: not folder.exists())


def test_an_ended_check_of_which_something_hangs_is_reported_with_its_own_reason(looking: Looking) -> None:
    within(looking, 8.0)
    job_id = looking.submit(secrets=["token"])
    looking.lay_secret(0o644, *looking.cases)
    looking.fleet.cycle()
    case = looking.requested(job_id)
    case.launcher.turn(woken=True)
    (folder,) = looking.folders()
    wait_until(lambda: supervisor.adopt(folder).state == "exited" and not is_locked(folder / LOCK))
    (folder / "clean.json").write_text('{"clean": false}')
    lock = take_lock(folder / LOCK)  # no process can prove it clean, as while a child of it is blocked by a mount
    assert lock is not None
    looking.turn_until(lambda: looking.events("job.preflight_done"))
    event = looking.events("job.preflight_done")[0]
    assert (event.payload["found"], event.payload["node_id"]) == ("unable", case.fleet.node_id)
    assert "0600" in event.payload["reason"]
    assert folder.exists()
    os.close(lock)
    case.restart()
    looking.turn_until(lambda: not folder.exists())


def test_a_check_that_was_never_started_and_is_listed_no_more_goes(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher died between the order and the start; before the next one came no job waited for it any more."""
    job_id = looking.submit()
    looking.fleet.cycle()
    case = looking.requested(job_id)
    with monkeypatch.context() as patched:
        patched.setattr(supervisor, "spawn_supervisor", lambda _folder: 0)
        case.launcher.turn(woken=True)
    (folder,) = looking.folders()
    assert supervisor.adopt(folder).state == "not_started"
    looking.fleet.cancel(job_id)
    case.restart()
    looking.turn_until(lambda: not looking.folders())
    assert looking.events("job.preflight_done") == []


def test_nothing_is_reported_before_nothing_is_left_and_that_is_proved_at_a_measured_pace(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = looking.submit()
    looking.fleet.cycle()
    case = looking.requested(job_id)
    case.launcher.turn(woken=True)
    (folder,) = looking.folders()
    assert json.loads((folder / "order.json").read_bytes())["rendezvous"]["port"] == 0, "it listens nowhere"
    wait_until(lambda: supervisor.adopt(folder).state == "exited" and not is_locked(folder / LOCK))
    (folder / "clean.json").write_text('{"clean": false}')
    lock = take_lock(folder / LOCK)  # as a supervisor that is still at its own proof
    assert lock is not None
    tried: list[Path] = []
    prove_clean = supervisor.prove_clean

    def counted(place: Path) -> dict[str, Any]:
        tried.append(place)
        return prove_clean(place)

    monkeypatch.setattr(supervisor, "prove_clean", counted)
    began = time.monotonic()
    for _ in range(60):
        case.launcher.turn(woken=True)
        time.sleep(0.01)
    assert 1 < len(tried) <= 1 + (time.monotonic() - began) * 1000 / PROVE_SOON_MS
    assert looking.events("job.preflight_done") == []
    os.close(lock)
    looking.turn_until(lambda: looking.events("job.preflight_done"))
    looking.turn_until(lambda: not looking.folders())
