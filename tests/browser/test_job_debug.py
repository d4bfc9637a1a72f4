"""The debug page of a job: a slow rank among many, with its own steps next to all steps, at a desk and on a phone."""

from typing import Any

from playwright.sync_api import expect

from control.hosts import protocol
from control.jobs import jobs
from muster.db.models import LineFindingRow, TrainingRank
from muster.domain.exit.fault_lines import Role
from muster.domain.ids import JobId
from tests.browser.browsing import Browsing
from tests.browser.played_fleet import DONE
from tests.browser.small_fleet import SmallFleet

READY = "[data-charts][data-ready]"
SLOW = 7


def report(fleet: SmallFleet, job_id: JobId, number: int) -> None:
    """Ranks with all figures; one computes longer, and has a few very long steps."""
    newest = fleet.attempts(job_id)[-1]
    node_id = newest.hosts[0].part.node_id
    with fleet.units.begin(fleet.tenant, jobs.READ, quiet=True) as unit:
        ids: dict[str, Any] = {"attempt_id": newest.attempt.id, "tenant_id": fleet.tenant_id, "node_id": node_id}
        for rank in range(number):
            own_s = 0.75 if rank == SLOW else 0.5 + rank % 7 * 0.004
            parts = dict.fromkeys(("backward_s", "optimizer_s", "other_s", "checkpoint_s"), 0.01)
            pace = {**parts, "data_s": 0.02 + rank % 5 * 0.002, "forward_s": own_s - 0.05, "own_s": own_s}
            pace |= {"wait_s": 0.76 - own_s, "collective_s": 0.1 + rank % 3 * 0.01, "samples": 123_456 + rank}
            pace |= {"samples_per_step": 8.0, "tokens_per_s": 12_000.0 + rank * 40, "memory_mib": 61_440.0 + rank * 96}
            times = [0.76 + step % 9 * 0.003 + (12.0 if rank == SLOW and step % 31 == 30 else 0) for step in range(100)]
            points = [[step + 1, 2.0, step_s] for step, step_s in enumerate(times)]
            row = {**ids, "rank": rank, "step": 100, "step_s": 0.76, "world_size": number, "updated_at": unit.now}
            unit.session.add(TrainingRank(**row, pace=pace, history={"stride": 1, "points": points}))
    with fleet.units.begin(fleet.tenant, protocol.LOGS, quiet=True) as unit:
        own: dict[str, Any] = {"attempt_id": newest.attempt.id, "node_id": node_id, "key": "a", "rank": SLOW}
        own |= {"host": "", "peer": "", "port": 0, "hca": "", "count": 2, "role": Role.ROOT}
        own |= dict.fromkeys(("first_at", "last_at", "received_at"), unit.now)
        words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.15 GiB in all"
        unit.session.add(LineFindingRow(**own, pattern="cuda.out_of_memory", text=words))


def test_a_slow_rank_is_found_and_its_steps_are_drawn(console: Browsing, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="debugged", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    report(fleet, job_id, 64)
    console.open(f"/console/jobs/{job_id}")
    console.page.get_by_role("link", name="Debug: rank by rank").click()
    expect(console.page.get_by_text("× the median")).to_be_visible()
    console.page.get_by_role("link", name="Its steps").click()
    address = f"/console/jobs/{job_id}/debug?attempt=1&rank={SLOW}"
    console.inspect_in_each_check(address, "slow", ready=READY)
    chart = console.page.get_by_role("img", name="Step time")
    assert f"rank {SLOW}: from" in (chart.get_attribute("aria-label") or "")
    first = console.page.locator(".ranks tbody tr").nth(1)
    expect(first).to_contain_text("slow")
    console.page.locator(".ranks thead").get_by_role("link", name="Memory").click()
    expect(first).to_contain_text("65.9 GiB")
    fleet.end(job_id, DONE)


def test_a_job_without_reports_has_a_page_too(console: Browsing, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="silent", shape={"gpus_per_node": 2})
    fleet.run(job_id)
    console.inspect_in_each_check(f"/console/jobs/{job_id}/debug", "silent")
    expect(console.page.get_by_text("No rank of attempt 1 has reported yet")).to_be_visible()
    fleet.end(job_id, DONE)
