"""Ranks side by side on a job's page: of two ranks, of many with a slow one, and of a job that reports no pace."""

from typing import Any

from playwright.sync_api import expect

from control.jobs import jobs
from muster.db.models import TrainingRank
from muster.domain.ids import JobId
from tests.browser.browsing import Browsing
from tests.browser.played_fleet import DONE
from tests.browser.small_fleet import SmallFleet

READY = "[data-charts][data-ready], [data-charts] .empty"


def add_ranks(fleet: SmallFleet, job_id: JobId, number: int, slow: int) -> None:
    """Ranks with a pace; the others wait for one of them."""
    newest = fleet.attempts(job_id)[-1]
    with fleet.units.begin(fleet.tenant, jobs.READ, quiet=True) as unit:
        ids: dict[str, Any] = {"attempt_id": newest.attempt.id, "tenant_id": fleet.tenant_id, "node_id": "n"}
        for rank in range(number):
            own_s = 0.75 if rank == slow else 0.5 + rank % 7 * 0.004
            parts = dict.fromkeys(("data_s", "backward_s", "optimizer_s", "other_s", "checkpoint_s"), 0.01)
            pace = {**parts, "forward_s": own_s - 0.03, "collective_s": 0.76 - own_s, "mfu": 0.2 / own_s}
            unit.session.add(TrainingRank(**ids, rank=rank, step=60, step_s=0.76, pace=pace, updated_at=unit.now))


def test_many_ranks_are_a_grid_in_which_the_slow_one_is_outlined(console: Browsing, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="many-ranks", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    add_ranks(fleet, job_id, 64, slow=7)
    console.inspect_in_each_check(f"/console/jobs/{job_id}", "many-ranks", ready=READY)
    odd = console.page.locator(".rank-grid .rank--odd")
    expect(odd).to_have_count(1)
    assert "rank 7" in (odd.get_attribute("title") or "")
    upper, usual = (
        each.locator(".own").evaluate("each => getComputedStyle(each).backgroundColor")
        for each in (odd, console.page.locator(".rank-grid .rank").first)
    )
    assert upper != usual, "a slow rank has another colour"
    fleet.end(job_id, DONE)


def test_two_ranks_have_a_grid_and_none_stands_out(console: Browsing, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="two-ranks", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    add_ranks(fleet, job_id, 2, slow=1)
    console.inspect_in_each_check(f"/console/jobs/{job_id}", "two-ranks", ready=READY)
    expect(console.page.locator(".rank-grid .rank")).to_have_count(2)
    expect(console.page.locator(".rank-grid .rank--odd")).to_have_count(0)
    fleet.end(job_id, DONE)


def test_a_job_without_a_pace_shows_no_grid_and_states_the_need_of_its_charts(
    console: Browsing, fleet: SmallFleet
) -> None:
    job_id = fleet.submit(name="no-pace", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    console.inspect_in_each_check(f"/console/jobs/{job_id}", "no-pace", ready=READY)
    expect(console.page.locator(".rank-grid")).to_have_count(0)
    fleet.end(job_id, DONE)
