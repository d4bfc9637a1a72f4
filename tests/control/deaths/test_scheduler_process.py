"""The process ``muster scheduler`` itself, killed as it places and as it gives notice; the next one continues."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory, utc_now
from local.children import Child, child_environment
from muster.settings import make_secret_key_file
from tests.control.deaths.histories import BOTH, POLICY
from tests.control.reclaim.stage import LEFT, Stage, make_stage
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)


class Scheduler:
    """One process after the other; each but the last is armed to die."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._shared: dict[str, str | int | Path] = {"database_url": database_url}
        self._shared["secret_key_file"] = folder / "secret.key"
        make_secret_key_file(folder / "secret.key")
        self._log = folder / "scheduler.log"
        self.child: Child | None = None

    def start(self, failpoints: str = "") -> None:
        variables = child_environment(**self._shared, failpoints=failpoints)
        self.child = Child("scheduler", ["scheduler"], variables, self._log)
        self.child.start()

    def dies_at(self, point: str) -> None:
        self.start(f"{point}=kill@1")
        assert self.child is not None
        wait_until(lambda: not self.child.is_running())  # type: ignore[union-attr]  # it was started just now
        assert "signal SIGKILL" in str(self.child.keep())

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()


@pytest.fixture
def scheduler(database_url: str, short_folder: Path) -> Iterator[Scheduler]:
    found = Scheduler(database_url, short_folder)
    yield found
    found.stop()


@pytest.fixture
def stage(engine: Engine) -> Stage:
    """In real time, as the scheduler's own."""
    stage = make_stage(UnitOfWorkFactory(engine, utc_now), clock=None)  # type: ignore[arg-type]  # nothing moves it
    tiers = {**POLICY.tiers, "spot": POLICY.tier("spot").model_copy(update={"min_run_s": 0.0})}
    patient = POLICY.contact.model_copy(update={"silent_after_s": 300.0, "lost_after_s": 400.0})
    stage.set_policy(POLICY.model_copy(update={"tiers": tiers, "contact": patient}))
    return stage


def test_killed_as_it_places_and_as_it_gives_notice_it_has_done_each_once(stage: Stage, scheduler: Scheduler) -> None:
    victim = stage.submit("spot", name="victim", shape=BOTH)
    scheduler.dies_at("placement.place.before_commit")
    assert stage.fleet.num_taken_gpus() == 0
    stage.beat_all()
    scheduler.dies_at("placement.place.after_commit")
    stage.beat_all()
    assert stage.running.keys() == {victim}
    beneficiary = stage.submit("reserved", name="beneficiary", shape=BOTH)
    scheduler.dies_at("reclaim.notify.before_commit")
    assert stage.reclaims() == []
    assert stage.assigned_for(beneficiary) == set()
    scheduler.dies_at("reclaim.notify.after_commit")
    notice = stage.reclaim()
    assert len(stage.assigned_for(beneficiary)) == 2
    scheduler.start()
    wait_until(lambda: bool(stage.job(beneficiary).state_reason))
    assert [stop.reason for stop in stage.beat_all()] == ["reclaim"]
    stage.leave(victim, LEFT)
    stage.reconcile()
    wait_until(lambda: bool(stage.beat_all() or beneficiary in stage.running))
    reclaim = stage.reclaim()
    assert (reclaim.id, reclaim.deadline_at) == (notice.id, notice.deadline_at)
    assert len(stage.events("reclaim.notified")) == len(stage.stop_requests()) == 1
    assert stage.assigned_for(beneficiary) == set()
    assert stage.fleet.num_taken_gpus() == 2
