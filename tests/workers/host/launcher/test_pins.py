"""A pin reaches the program that runs, by way of its host, and comes back as a mark."""

from sqlalchemy import select

from control.jobs import pins
from muster.db.models import Checkpoint
from muster.domain.ids import CheckpointId, JobId
from muster.domain.states import JobState
from tests.host_case import HostCase
from tests.workers.host.launcher.test_training import STATES

WAITS = (
    STATES
    + """
place = f"step-{5:08d}/gen-{fence}"
say(type="checkpoint", step=5, generation=place, status="committed", bytes=10, at_unix_ms=1_800_000_000_000)
step, pinned = 5, b""
channel.settimeout(0.05)
while b"\\n" not in pinned:
    step += 1
    say(type="step", step=step)
    try:
        pinned += channel.recv(4096)
    except TimeoutError:
        pass
order = json.loads(pinned)
assert order == {"type": "pins", "generations": [place]}, order
say(type="checkpoint_pinned", generation=place, is_pinned=True)
"""
)


def checkpoint(host: HostCase, job_id: JobId) -> Checkpoint | None:
    with host.fleet.units.read() as session:
        return session.scalar(select(Checkpoint).where(Checkpoint.job_id == job_id))


def test_a_pin_reaches_the_program_that_runs_and_its_mark_comes_back(host: HostCase) -> None:
    job_id = host.submit(WAITS)
    host.turn_until(lambda: checkpoint(host, job_id) is not None)
    found = checkpoint(host, job_id)
    assert found is not None
    with host.fleet.units.begin(host.fleet.tenant, pins.PIN) as unit:
        pins.pin(unit, job_id, CheckpointId(found.id))
    assert host.run(job_id) is JobState.SUCCEEDED, host.log(job_id)
    host.run_until_clean()
    held = checkpoint(host, job_id)
    assert held is not None
    assert held.pin_applied_at is not None
