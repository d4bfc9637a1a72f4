"""Jobs whose program comes as a bundle: real supervisors, a real store, the real API, on a host that shares no disk."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from control.content.reports import check_reports_once
from control.jobs import jobs
from control.policy.policies import ACTIVATE, store_policy
from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.content.manifest import digest_of
from muster.db.models import EvidenceRow, NodeBundle
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import Cause, JobState
from muster.store.keys import chunk_key
from muster.store.objects import ObjectStore
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.store.stores import BUCKET
from workers.host.content.keeping import BundleKeeper
from workers.host.supervisor.files import read_json

from .bundle_case import content_of, write_folder
from .stores import S3, GatedStore

PROGRAM = b"""
import os, pathlib, sys
here = pathlib.Path.cwd()
print(here == pathlib.Path(os.environ["MUSTER_BUNDLE_DIR"]), os.environ["MUSTER_BUNDLE"], *sys.argv[1:])
print((here / "data" / "words").read_text(), pathlib.Path(__file__).parent == here)
(here / "made").write_text("here")
"""


def submit(host: HostCase, digest: str, **program: Any) -> JobId:
    given = {"launcher": "command", "argv": [sys.executable, "main.py", "one"], "bundle": digest, **program}
    job_id = host.fleet.submit(program=given, restart={"max_restarts": 3})
    host.fleet.cycle()
    return job_id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "own", **{"main.py": PROGRAM}, data__words=b"of the data")


def test_a_program_runs_in_its_bundles_folder(host: HostCase, s3: S3, folder: Path) -> None:
    digest = s3.put(host.fleet, folder)
    job_id = submit(host, digest)
    assert host.run(job_id) is JobState.SUCCEEDED, (host.log(job_id), host.fleet.job(job_id).state_reason)
    assert host.log(job_id).decode().split("\n")[:2] == [f"True {digest} one", "of the data True"]
    copy = host.state_dir / "content" / host.fleet.tenant_id / digest
    assert content_of(copy) == content_of(folder), "what the program makes is in its own folder"
    second = submit(host, digest)
    assert host.run(second) is JobState.SUCCEEDED, host.log(second)
    host.run_until_clean()
    keep_up(host)
    assert list((host.state_dir / "work").iterdir()) == []
    assert copy.is_dir()
    with host.fleet.units.read() as session:
        [reported] = session.scalars(select(NodeBundle).where(NodeBundle.node_id == host.fleet.node_id))
    assert (reported.tenant_id, reported.digest) == (host.fleet.tenant_id, bytes.fromhex(digest))


def keep_up(host: HostCase) -> None:
    """One turn of the host's keeper."""
    assert host.bundles is not None
    with closing(HostClient(host.bundles.api_url, KeyFile(host.bundles.key_file))) as client:
        BundleKeeper(host.state_dir, client).turn()


def end_of(host: HostCase, job_id: JobId, store: ObjectStore | None = None) -> tuple[Cause | None, str]:
    """Return the cause of the first attempt's end, with its proof. ``store``: the control plane reads it."""

    def is_over() -> bool:
        check_reports_once(host.fleet.units, store)
        return host.fleet.attempts(job_id)[0].attempt.ended_at is not None

    host.turn_until(is_over)
    attempt = host.fleet.attempts(job_id)[0].attempt
    return attempt.cause, str(attempt.proof)


def test_paths_of_torchrun_and_of_a_command_are_the_bundles(host: HostCase, s3: S3, tmp_path: Path) -> None:
    show = (
        b"import os; print(os.path.basename(os.getcwd()), os.path.relpath(__file__, os.environ['MUSTER_BUNDLE_DIR']))"
    )
    run = b'#!/bin/sh\necho here "$PWD" in "$MUSTER_BUNDLE_DIR" "$@"\n'
    folder = write_folder(tmp_path / "own", **{"src/main.py": show, "bin/run": run})
    (folder / "bin" / "run").chmod(0o755)
    digest = s3.put(host.fleet, folder)
    trained = submit(host, digest, launcher="torchrun", argv=[], script="src/main.py", working_dir="src")
    assert host.run(trained) is JobState.SUCCEEDED, (host.log(trained), host.fleet.job(trained).state_reason)
    assert b"src src/main.py" in host.log(trained)
    ran = submit(host, digest, argv=["./bin/run", "x"], working_dir="/usr")
    assert host.run(ran) is JobState.SUCCEEDED, (host.log(ran), host.fleet.job(ran).state_reason)
    attempt_id = host.fleet.attempts(ran)[0].attempt.id
    assert host.log(ran).decode() == f"here /usr in {host.state_dir / 'work' / attempt_id} x\n"


def test_a_missing_chunk_holds_the_job_and_names_it(host: HostCase, s3: S3, folder: Path) -> None:
    digest = s3.put(host.fleet, folder)
    lost = digest_of(PROGRAM)
    s3.client.delete_object(Bucket=BUCKET, Key=chunk_key(host.fleet.tenant_id, lost))
    job_id = submit(host, digest)
    cause, proof = end_of(host, job_id, s3.store)
    assert cause is Cause.USER_ERROR
    assert f"the content store lacks {lost[:12]} of the bundle" in proof
    assert host.fleet.job(job_id).state is JobState.HELD


def test_a_chunk_with_other_bytes_is_never_used(host: HostCase, s3: S3, folder: Path) -> None:
    digest = s3.put(host.fleet, folder)
    key = chunk_key(host.fleet.tenant_id, digest_of(PROGRAM))
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=PROGRAM[:-1] + b"X")
    job_id = submit(host, digest)
    assert "has other bytes for" in end_of(host, job_id, s3.store)[1]
    assert host.fleet.job(job_id).state is JobState.HELD
    assert not (host.state_dir / "content" / host.fleet.tenant_id / digest).exists()


def within(host: HostCase, ready_within_s: float, **dispatch: Any) -> None:
    policy = Policy(dispatch=DispatchPolicy(ready_within_s=ready_within_s, **dispatch))
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="a test")


def test_a_store_that_is_too_slow_holds_the_job_and_the_next_try_goes_on(
    gated_host: HostCase, gated: GatedStore, folder: Path
) -> None:
    host, digest = gated_host, gated.put(gated_host.fleet, folder)
    within(host, 4)
    job_id = submit(host, digest)
    cause, proof = end_of(host, job_id)
    assert cause is Cause.PREFLIGHT_FAILED
    assert "the bundle was not here within 3 s: 0 of 0 MB were fetched, and stay for the next try" in proof
    host.turn_until(lambda: host.fleet.job(job_id).state is JobState.HELD)
    assert "the bundle was not here" in host.fleet.job(job_id).state_reason
    with host.fleet.units.read() as session:
        assert session.scalars(select(EvidenceRow)).all() == [], "no GPU is blamed"
    gated.is_open.set()
    within(host, 120)
    with host.fleet.units.begin(host.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id, reason="the store answers")
    host.fleet.cycle()
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)


def test_a_store_that_fails_for_a_while_is_tried_again(gated_host: HostCase, gated: GatedStore, folder: Path) -> None:
    host, digest = gated_host, gated.put(gated_host.fleet, folder)
    gated.is_open.set()
    gated.fault = lambda key: 503 if gated.requested.count(key) < 3 else None
    job_id = submit(host, digest)
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    assert [gated.requested.count(key) for key in gated.content] == [3] * len(gated.content)


def test_the_launcher_beats_while_a_bundle_is_fetched_and_may_die(
    gated_host: HostCase, gated: GatedStore, folder: Path
) -> None:
    host, digest = gated_host, gated.put(gated_host.fleet, folder)
    job_id = submit(host, digest)
    host.turn_until(lambda: bool(gated.requested_chunks()))
    begun = time.monotonic()
    host.launcher.turn(woken=True)
    assert time.monotonic() - begun < 5, "a beat waits for no store"
    host.restart()
    host.launcher.turn(woken=True)
    gated.is_open.set()
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    assert len(gated.requested_chunks()) == len(set(gated.requested_chunks()))


def test_a_cancel_ends_a_fetch_at_once(gated_host: HostCase, gated: GatedStore, folder: Path) -> None:
    host, digest = gated_host, gated.put(gated_host.fleet, folder)
    job_id = submit(host, digest)
    host.turn_until(lambda: bool(gated.requested_chunks()))
    [fetching] = fetches_of(host)
    host.fleet.cancel(job_id)
    host.turn_until(lambda: host.fleet.job(job_id).state is JobState.CANCELLED)
    assert not fetching.is_running() or fetching.status() == psutil.STATUS_ZOMBIE
    host.run_until_clean()


def fetches_of(host: HostCase) -> list[psutil.Process]:
    """Return the fetches below this host's supervisors."""
    supervisors = [
        psutil.Process(int(identity["pid"]))
        for path in (host.state_dir / "attempts").glob("*/supervisor.json")
        if (identity := read_json(path)) is not None
    ]
    children = [child for one in supervisors for child in one.children()]
    return [child for child in children if "workers.host.content.fetch_process" in child.cmdline()]


def test_a_killed_supervisor_takes_its_fetch_along_and_the_next_attempt_goes_on(
    gated_host: HostCase, gated: GatedStore, tmp_path: Path
) -> None:
    host = gated_host
    many = {f"f{number:02}": bytes([number]) * 1000 for number in range(40)}
    digest = gated.put(host.fleet, write_folder(tmp_path / "own", **{"main.py": PROGRAM, "data/words": b"!"}, **many))
    job_id = submit(host, digest)
    host.turn_until(lambda: bool(gated.requested_chunks()))
    [fetching] = fetches_of(host)
    gated.fault = lambda _: None if len(gated.requested_chunks()) < 20 else 503
    gated.is_open.set()
    host.turn_until(lambda: len(gated.requested_chunks()) >= 25)
    os.kill(fetching.ppid(), signal.SIGKILL)
    host.turn_until(lambda: not fetching.is_running() or fetching.status() == psutil.STATUS_ZOMBIE)
    num_before = len(gated.requested_chunks())
    gated.fault = lambda _: None
    assert end_of(host, job_id)[0] is Cause.NODE_LOST
    host.fleet.reconcile()
    host.fleet.cycle()
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    assert len(gated.requested_chunks()) - num_before < 42 - 10


def test_a_preflight_fetches_before_any_gpu_is_taken(gated_host: HostCase, gated: GatedStore, folder: Path) -> None:
    host, digest = gated_host, gated.put(gated_host.fleet, folder)
    within(host, 60, preflight_from_nodes=1, preflight_within_s=60)

    def turn_until(is_so: Callable[[], bool]) -> None:
        def round_is_so() -> bool:
            host.fleet.reconcile()
            host.fleet.cycle()
            check_reports_once(host.fleet.units, gated.store)
            return is_so()

        host.turn_until(round_is_so)

    job_id = submit(host, digest)
    turn_until(lambda: bool(gated.requested_chunks()))
    assert host.fleet.num_taken_gpus() == 0
    gated.is_open.set()
    turn_until(lambda: host.fleet.job(job_id).finished_at is not None)
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED, host.log(job_id)
    assert len(gated.requested_chunks()) == len(set(gated.requested_chunks()))
    broken = gated.put(host.fleet, write_folder(folder, other=b"more"))
    gated.content = {}
    job_id = submit(host, broken)
    turn_until(lambda: host.fleet.job(job_id).state is JobState.HELD)
    assert f"the content store lacks {broken[:12]} of the bundle" in host.fleet.job(job_id).state_reason
    assert host.fleet.attempts(job_id) == []
