"""What an operator does about a GPU or a node: with a reason, seen first, typed where it destroys, then seen done."""

from playwright.sync_api import expect

from control.fleet import overrides
from muster.db.models import Gpu
from muster.domain.ids import GpuUuid
from muster.domain.principals import Role
from muster.domain.states import Standing
from tests.browser.acting import act, confirmed, opened, previewed
from tests.browser.browsing import PATIENCE_MS, Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane
from tests.browser.played_fleet import RECLAIMED
from tests.browser.small_fleet import Hit, SmallFleet
from tests.fleet_factory import OPERATOR

LEFT = {**RECLAIMED, "stop_reason": "maintenance"}


def is_taken_out(fleet: SmallFleet, gpu: GpuUuid) -> bool:
    with fleet.units.begin(OPERATOR, overrides.OVERRIDE, quiet=True) as unit:
        return overrides.is_taken_out(unit, gpu)


def test_a_gpu_is_quarantined_by_a_person_that_saw_what_it_would_do(console: Browsing, fleet: SmallFleet) -> None:
    gpu = fleet.free_gpus()[-2]
    console.open(f"/console/gpus/{gpu}")
    dialog = opened(console, "Quarantine")
    dialog.get_by_label("Reason").fill("it smells")
    would = previewed(dialog)
    assert "none: no job has to leave, ends, or starts because of it" in would
    assert f"GPU {gpu} counts as QUARANTINED until" in would
    console.require_accessible()
    console.keep("previewed")
    assert not is_taken_out(fleet, gpu), "a preview changes nothing"
    expect(dialog.locator("[name=typed]")).to_have_count(0)
    assert confirmed(console, dialog) == "Quarantined by you: its running job is evacuated."
    assert is_taken_out(fleet, gpu)
    console.see("QUARANTINED set by")
    console.inspect("quarantined")
    _, said = act(console, "Release", reason="it was the cable")
    assert said == "Released: its own standing counts again."
    assert not is_taken_out(fleet, gpu)
    expect(console.page.get_by_role("button", name="Quarantine")).to_be_visible()


def test_what_a_dialog_lacks_it_states_where_it_was_requested(console: Browsing, fleet: SmallFleet) -> None:
    gpu = fleet.free_gpus()[-2]
    console.open(f"/console/gpus/{gpu}")
    dialog = opened(console, "Quarantine")
    with console.expecting(422):
        dialog.get_by_role("button", name="What would it do?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("say why, in 1 to 500 characters", timeout=PATIENCE_MS)
        console.require_accessible()
        dialog.get_by_label("Reason").fill("it smells")
        dialog.locator("[name=days]").fill("0")
        dialog.get_by_role("button", name="What would it do?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("days from 1 to 365", timeout=PATIENCE_MS)
    console.keep("refused")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert not is_taken_out(fleet, gpu)


def test_a_gpu_is_cordoned_and_released_again(console: Browsing, fleet: SmallFleet) -> None:
    gpu = fleet.free_gpus()[-3]
    console.open(f"/console/gpus/{gpu}")
    would, said = act(console, "Cordon", reason="cable is being changed")
    assert f"{gpu} takes no new job" in would
    assert said.startswith("Cordoned")
    console.see("cable is being changed")
    act(console, "Release", reason="cable is in", within=":has(> header > #cordons-title)")
    console.see("None. Placement here depends on its standing alone.")


def test_the_way_back_of_a_gpu_that_is_out_is_ordered_and_seen(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    gpu = fleet.free_gpus()[-4]
    fleet.report(gpu)
    console.open(f"/console/gpus/{gpu}")
    would, said = act(console, "Burn-in", reason="reseated")
    assert f"GPU {gpu} gets a burn-in" in would
    assert said.startswith("A burn-in is ordered")
    assert "ORDERED" in console.words(":has(> header > #burn-title)")
    console.inspect("ordered")


def test_evidence_is_dismissed_with_a_reason_though_the_page_changes_meanwhile(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    gpu = fleet.free_gpus()[-5]
    fleet.report(gpu)
    control_plane.report_events()
    console.open(f"/console/gpus/{gpu}")
    dialog = opened(console, "Dismiss")
    dialog.get_by_label("Reason").fill("the driver")
    with console.page.expect_event("console", lambda said: said.text == "changed"):
        console.page.evaluate("document.body.addEventListener('muster:changed', () => console.info('changed'))")
        fleet.report(gpu, code=79)
        control_plane.report_events()
    expect(dialog.get_by_label("Reason")).to_have_value("the driver")
    dialog.get_by_role("button", name="Cancel").click()
    console.see("XID 79")
    for number in (1, 2):
        _, said = act(console, "Dismiss", reason=f"the driver's fault, {number}")
        assert said == "The evidence is dismissed; it stays on record."
    assert console.words("dl.facts").startswith("Since")
    console.see("dismissed by")
    with fleet.units.read() as session:
        assert session.get_one(Gpu, gpu).standing is Standing.HEALTHY


def test_a_node_is_drained_by_its_name_and_taken_back(
    console: Browsing, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    job_id = fleet.submit(name="in-the-way", shape={"gpus_per_node": 8})
    fleet.run(job_id)
    part = fleet.attempts(job_id)[-1].hosts[0]
    console.open(f"/console/nodes/{part.part.node_id}")
    would, said = act(console, "Drain", reason="new firmware")
    assert f"in-the-way ({job_id})" in would
    assert "has to leave: its node is needed empty" in would
    assert "is drained: 1 job has to leave" in would
    assert said == "Draining: its running jobs save and leave."
    console.see("in-the-way")
    console.see("maintenance")
    console.inspect("draining")
    fleet.end(job_id, LEFT)
    fleet.cancel(job_id)
    control_plane.report_events()
    console.see("No job")
    _, said = act(console, "Release", reason="firmware is in", within=":has(> header > #cordons-title)")
    assert said == "That cordon is released."
    console.see("None: work is placed here")


def test_a_maintenance_window_is_declared_for_later_and_ended(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/nodes/h100-7")
    would, said = act(console, "Maintenance", reason="new optics", fields={"begins_in": "2", "lasts": "3"})
    assert "h100-7 takes no new job from" in would
    assert said.startswith("The window is declared")
    console.see("new optics")
    console.see("findings in it do not count")
    console.see("None: work is placed here")
    console.inspect("a window to come")
    act(console, "End", reason="the optics came late", within=":has(> header > #windows-title)")
    assert console.page.locator("#windows-title").count() == 0


def test_a_node_is_cordoned_and_the_map_shows_it(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/nodes/h100-8")
    act(console, "Cordon", reason="the rack is rewired")
    console.see("the rack is rewired")
    console.open("/console", ready="[data-map][data-ready]")
    console.tab_to("Map of the fleet")
    said = console.page.locator("[data-map-said]")
    for _ in range(8):
        console.press("ArrowDown")
    assert said.inner_text().startswith("h100-8, GPU 0, rack-2. ")
    while "cordoned" not in said.inner_text():  # the map is read each second
        console.page.wait_for_timeout(100)
        console.press("ArrowRight")
        console.press("ArrowLeft")
    console.keep("on the map")
    console.open("/console/nodes/h100-8")
    act(console, "Release", reason="rewired", within=":has(> header > #cordons-title)")


def test_a_tenant_is_offered_nothing_that_governs_the_fleet(browse: Browse, fleet: SmallFleet, hit: Hit) -> None:
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/gpus/{fleet.gpus_of(hit.job_id)[0]}")
    assert member.page.locator("main").get_by_role("button", name="Copy").count() == 1
    assert member.page.locator("dialog").count() == 0
