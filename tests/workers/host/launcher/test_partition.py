"""A host cut off for longer than its lease: its program has ended before the job starts anywhere else."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from sqlalchemy import select

from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Allocation, AllocationGpu
from muster.domain.ids import JobId
from muster.domain.policy.document import ContactPolicy, DispatchPolicy, Policy
from muster.domain.states import AllocationState, AttemptState, Cause, JobState
from tests.fleet_factory import OPERATOR, enrol_host
from tests.host_case import HostCase
from tests.waiting import wait_until
from workers.host.supervisor import files

pytestmark = pytest.mark.timeout(600)
SHORT = Policy(
    contact=ContactPolicy(
        heartbeat_s=0.2,
        silent_after_s=0.4,
        lost_after_s=1.0,
        agent_lease_s=6.0,
        server_lease_extra_s=12.0,
        kill_grace_s=2.0,
        lease_margin_s=1.0,
        no_expiry_after_start_s=0.1,
    ),
    dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2),
)
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fence, is_again = os.environ["MUSTER_FENCE"], os.path.exists("WITNESS")
with open("WITNESS", "a", buffering=1) as witness:
    for _ in range(50 if is_again else 100_000):
        witness.write(f"{fence} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.02)
"""
"""Program that writes the fence under which it runs, again and again; the first attempt ignores each stop request."""


@pytest.fixture
def witness(host: HostCase, tmp_path: Path) -> Path:
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, SHORT, reason="no quarter of an hour")
    return tmp_path / "witness"


def _allocations(host: HostCase, job_id: JobId) -> list[set[AllocationState]]:
    """The states of the GPUs of each attempt, the first attempt first."""
    query = (
        select(Allocation.id, AllocationGpu.state)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(Allocation.job_id == job_id)
        .order_by(Allocation.created_at)
    )
    with host.fleet.units.read() as session:
        rows = session.execute(query).all()
    return [{state for _, state in group} for _, group in itertools.groupby(rows, key=lambda row: row[0])]


def _lives(witness: Path) -> list[tuple[int, int]]:
    """First and last word of each attempt, in the order of their fences."""
    lines = [line.split() for line in witness.read_text(encoding="ascii").splitlines()]
    words = sorted((int(fence), int(at)) for fence, at in lines)
    groups = ([at for _, at in group] for _, group in itertools.groupby(words, key=lambda word: word[0]))
    return [(times[0], times[-1]) for times in groups]


@pytest.mark.parametrize("is_launcher_dead", [False, True], ids=["cut off", "its launcher dead too"])
def test_a_partition_longer_than_the_lease_never_lets_two_attempts_run(
    host: HostCase, witness: Path, tmp_path: Path, *, is_launcher_dead: bool
) -> None:
    job_id = host.submit(STUBBORN.replace("WITNESS", str(witness)))
    host.run_until_started(job_id)
    (folder,) = (host.state_dir / "attempts").iterdir()
    beta = HostCase(
        dataclasses.replace(host.fleet, node_id=enrol_host(host.fleet.units, "beta")), tmp_path / "beta"
    )  # from here on the job could run elsewhere
    host.client.is_cut = True
    if is_launcher_dead:
        host.close()

    def is_over() -> bool:
        if not is_launcher_dead:
            host.launcher.turn(woken=True)
        beta.launcher.turn(woken=True)
        host.fleet.reconcile()
        if host.fleet.attempts(job_id)[0].attempt.state is not AttemptState.ENDED:
            assert _allocations(host, job_id) == [{AllocationState.ASSIGNED}], "the longer lease is waited out"
        else:
            assert (folder / files.EXIT).is_file(), "it has fenced itself long before"
        host.fleet.cycle()
        return host.fleet.job(job_id).finished_at is not None

    wait_until(is_over, timeout_s=240)
    _assert_what_stands(host, job_id, witness, folder)
    host.client.is_cut = False
    host.restart()

    def is_clean() -> bool:
        host.launcher.turn(woken=True)
        beta.launcher.turn(woken=True)
        return all(states == {AllocationState.RELEASED} for states in _allocations(host, job_id))

    wait_until(is_clean)
    first, *_, last = host.fleet.attempts(job_id)
    assert (first.attempt.cause, last.attempt.cause) == (Cause.NODE_LOST, Cause.SUCCEEDED)
    beta.close()


def _assert_what_stands(host: HostCase, job_id: JobId, witness: Path, folder: Path) -> None:
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED
    first, *others = host.fleet.attempts(job_id)
    assert (first.attempt.cause, first.hosts[0].part.node_id) == (Cause.NODE_LOST, host.fleet.node_id)
    assert others
    assert all(each.hosts[0].part.node_id != host.fleet.node_id for each in others)
    assert all(each.attempt.fence > first.attempt.fence for each in others)
    record = files.read_json(folder / files.EXIT)
    assert record is not None
    assert record["self_fenced"]
    lives = _lives(witness)
    assert len(lives) > 1
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(lives)), "no two at once"
    assert _allocations(host, job_id)[0] == {AllocationState.CLEANING}, "no host has proved those GPUs clean yet (I22)"
