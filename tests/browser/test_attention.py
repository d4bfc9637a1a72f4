"""What needs a person, as an operator sees it: one list, and the same on the pages of what it is about."""

from datetime import timedelta

from control.attempts.attempts import lock_job, step_job
from control.fleet import cordons, overrides
from control.health.rule_repairs import start_repairs_once
from control.incidents.keeping import KEEP
from control.policy.policies import active_policy, store_policy
from control.system.attention import keep_attention_once
from muster.domain.lifecycle.job import HoldRequested
from muster.domain.policy.attention import AttentionPolicy
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from tests.browser.browsing import Browsing
from tests.browser.control_plane import POLICY, ControlPlane
from tests.browser.played_fleet import JUDGE
from tests.browser.small_fleet import Hit, SmallFleet
from tests.fleet_factory import OPERATOR

AT_ONCE = POLICY.model_copy(update={"attention": AttentionPolicy(remedy_due_after_s=0)})


def test_what_needs_a_person_is_listed_and_stands_on_the_pages_of_its_subjects(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane, hit: Hit
) -> None:
    job_id = fleet.submit(name="no-image", shape={"gpus_per_node": 2})
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        store_policy(unit, AT_ONCE, reason="test")
        step_job(unit, lock_job(unit, job_id), HoldRequested("its image is not there"), active_policy(unit.session))
    start_repairs_once(fleet.units, JUDGE)
    keep_attention_once(fleet.units, system_principal("reconciler"))
    console.inspect_in_each_check("/console/incidents?state=open", "incidents")
    console.see("is HELD: its image is not there")
    console.see(f"{hit.gpu} needs a person for its")
    console.open(f"/console/gpus/{hit.gpu}")
    console.see(f"{hit.gpu} needs a person for its")
    console.inspect_in_each_check(f"/console/jobs/{job_id}", "job")
    console.see(f"muster job release {job_id}")
    fleet.cancel(job_id)
    keep_attention_once(fleet.units, system_principal("reconciler"))
    control_plane.report_events()
    console.open("/console/incidents?state=open")
    assert "its image is not there" not in console.page.locator("main").inner_text()
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        store_policy(unit, POLICY, reason="test")
    start_repairs_once(fleet.units, JUDGE)


def test_a_quarantine_by_hand_and_a_cordon_are_counted_on_the_tiles(console: Browsing, fleet: SmallFleet) -> None:
    uuid = fleet.gpus_of(fleet.victim)[0]
    console.open("/console")
    before = _counts(console)
    with fleet.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        until = unit.now + timedelta(days=1)
        overrides.override(unit, uuid, Standing.QUARANTINED, until=until, reason="it smells")
        cordon = cordons.create(unit, gpu_uuid=uuid, reason="it smells")
    console.inspect_in_each_check("/console", "tiles")
    now = _counts(console)
    assert now["QUARANTINED"] == before["QUARANTINED"] + 1
    assert now["cordoned"] == before["cordoned"] + 1
    console.inspect_in_each_check("/console/gpus?standing=QUARANTINED", "gpus")
    console.see("QUARANTINED set by a person; its own: HEALTHY")
    console.inspect_in_each_check("/console/nodes", "nodes")
    with fleet.units.begin(OPERATOR, overrides.RELEASE) as unit:
        overrides.release(unit, uuid, reason="it does not")
        cordons.release(unit, cordon.id)


def _counts(console: Browsing) -> dict[str, int]:
    tiles = console.page.locator("[data-count]").all()
    found = {str(each.get_attribute("data-count")): int(each.inner_text()) for each in tiles}
    return {**found, "cordoned": int(console.page.locator("[data-count-cordoned]").inner_text())}
