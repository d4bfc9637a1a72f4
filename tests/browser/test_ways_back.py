"""What a person undoes or brings back: a repair, a retirement, an open breaker, a job that was held."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import expect
from sqlalchemy import select

from control.health import interventions
from control.health.judge import judge_once
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import EvidenceRow, Gpu, Incident
from muster.domain.ids import GpuUuid
from muster.domain.states import JobState, Standing
from tests.browser.acting import act, opened
from tests.browser.browsing import PATIENCE_MS, Browsing
from tests.browser.control_plane import POLICY, ControlPlane
from tests.browser.played_fleet import EVACUATED, JUDGE
from tests.browser.small_fleet import SmallFleet
from tests.fleet_factory import OPERATOR

MANY: Final = 5


def standing(fleet: SmallFleet, gpu: GpuUuid) -> Standing:
    with fleet.units.read() as session:
        return session.get_one(Gpu, gpu).standing


@contextmanager
def narrow_breaker(fleet: SmallFleet) -> Iterator[None]:
    """Rules may take out one GPU of a cohort, and one is out."""
    narrow = POLICY.health.breaker.model_copy(update={"cohort_floor": 1, "cohort_share": 0.001})
    health = POLICY.health.model_copy(update={"breaker": narrow})
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, POLICY.model_copy(update={"health": health}), reason="played")
    try:
        yield
    finally:
        with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, POLICY, reason="as it was")


def take_back(fleet: SmallFleet, gpus: list[GpuUuid]) -> None:
    """They are as they were before: all that is held against them is dismissed."""
    with fleet.units.begin(OPERATOR, interventions.DISMISS) as unit:
        query = select(EvidenceRow).where(EvidenceRow.gpu_uuid.in_(gpus), EvidenceRow.dismissed_at.is_(None))
        for row in unit.session.scalars(query).all():
            interventions.dismiss(unit, GpuUuid(row.gpu_uuid or ""), row.id, reason="played")


def test_a_repair_is_started_fails_is_started_again_and_is_done(console: Browsing, fleet: SmallFleet) -> None:
    gpu = fleet.free_gpus()[-6]
    fleet.report(gpu)
    console.open(f"/console/gpus/{gpu}")
    dialog = opened(console, "Start a repair")
    kinds = dialog.get_by_label("Action")
    assert [each.strip() for each in kinds.locator("option").all_inner_texts()]
    dialog.get_by_role("button", name="Cancel").click()
    would, said = act(console, "Start a repair", reason="ticket 4711")
    assert f"GPU {gpu} moves from QUARANTINED to REPAIR" in would
    assert said == "In repair."
    assert standing(fleet, gpu) is Standing.REPAIR
    assert "in progress" in console.words(":has(> header > #repairs-title)")
    console.inspect("in repair")
    _, said = act(console, "Repair failed", reason="the part was wrong")
    assert said == "The repair failed."
    assert standing(fleet, gpu) is Standing.QUARANTINED
    act(console, "Start a repair", reason="the right part is here")
    _, said = act(console, "Repair is done", reason="reseated")
    assert said == "The repair is done: its burn-in follows."
    assert standing(fleet, gpu) is Standing.UNPROVEN
    assert "reseated" in console.words(":has(> header > #repairs-title)")


def test_a_gpu_is_retired_by_its_name_and_reinstated(console: Browsing, fleet: SmallFleet) -> None:
    gpu = fleet.free_gpus()[-7]
    console.open(f"/console/gpus/{gpu}")
    dialog = opened(console, "Retire")
    do = dialog.locator("button[value=do]")
    expect(do).to_be_disabled()
    dialog.locator("[name=typed]").fill(f"{gpu}-not")
    expect(do).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    _, said = act(console, "Retire", reason="end of its lease", typed=gpu)
    assert said == "Retired: its running job is evacuated."
    assert standing(fleet, gpu) is Standing.RETIRED
    console.inspect("retired")
    expect(console.page.locator("main").get_by_role("button", name="Retire", exact=True)).to_have_count(0)
    _, said = act(console, "Reinstate", reason="the lease continues")
    assert said == "Reinstated: its burn-in follows."
    assert standing(fleet, gpu) is Standing.UNPROVEN


def test_a_breaker_that_holds_quarantines_back_is_closed_with_a_reason_and_they_follow(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    gpu = fleet.free_gpus()[-8]
    with narrow_breaker(fleet):
        fleet.report(gpu)
    assert standing(fleet, gpu) is Standing.HEALTHY
    control_plane.report_events()
    console.open(f"/console/gpus/{gpu}")
    console.see("If the circuit breaker admits it.")
    console.keep("proposed")
    console.open("/console/incidents")
    console.see("breaker")
    console.open("/console/system")
    console.see("open: rules only propose")
    would, said = act(console, "Close", reason="it is one bad batch", within=":has(> header > #breaker-title)")
    assert "rules act there again, up to its cap" in would
    assert said == "Closed: what the rules proposed may now be done."
    while judge_once(fleet.units, JUDGE):
        fleet.beat_all()
    assert standing(fleet, gpu) is Standing.QUARANTINED
    take_back(fleet, [gpu])


def test_a_job_that_is_on_hold_states_why_and_is_released(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    job_id = fleet.submit(name="gpu-eater", restart={"max_restarts": 5})
    broken: list[GpuUuid] = []
    while fleet.job(job_id).state is not JobState.HELD:
        assert len(broken) < MANY, "it is never held"
        fleet.run(job_id)
        broken += fleet.gpus_of(job_id)
        fleet.report(broken[-1], ago_s=0.0)
        fleet.end(job_id, EVACUATED)
    control_plane.report_events()
    console.open(f"/console/jobs/{job_id}")
    console.see("suspect program")
    console.inspect("held")
    would, said = act(console, "Release", reason="the firmware was at fault")
    assert "gpu-eater" in would
    assert said == "Released: it waits to be placed."
    expect(console.page.locator("main").get_by_role("button", name="Release", exact=True)).to_have_count(
        0, timeout=PATIENCE_MS
    )
    fleet.cancel(job_id)
    with fleet.units.read() as session:
        states = session.scalars(select(Incident.closed_at).where(Incident.kind == "suspect_program")).all()
    assert all(states), "the incident is over with the release"
    take_back(fleet, broken)
