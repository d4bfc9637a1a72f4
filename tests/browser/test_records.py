"""What a person does about jobs, incidents and access."""

from playwright.sync_api import expect

from muster.domain.principals import Role
from tests.browser.acting import act
from tests.browser.browsing import PATIENCE_MS, Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane
from tests.browser.played_fleet import DONE
from tests.browser.small_fleet import SmallFleet


def test_a_tenant_cancels_its_running_job_by_its_name(
    browse: Browse, fleet: SmallFleet, control_plane: ControlPlane
) -> None:
    job_id = fleet.submit(name="not-needed")
    fleet.run(job_id)
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/jobs/{job_id}")
    would, said = act(member, "Cancel", reason="another one is better")
    assert f"not-needed ({job_id})" in would
    assert "ends permanently" in would
    assert said == "It is being cancelled."
    member.see("its programs on")
    member.inspect("leaving")
    assert member.page.get_by_role("button", name="Cancel", exact=True).filter(visible=True).count() == 0
    fleet.end(job_id, {**DONE, "stop_reason": "cancel"})
    control_plane.report_events()
    expect(member.page.locator(".job-state .badge")).to_have_text("CANCELLED", timeout=PATIENCE_MS)


def test_a_job_is_submitted_again_as_it_was(browse: Browse, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="once-more", shape={"gpus_per_node": 2})
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/jobs/{job_id}")
    would, said = act(member, "Submit a copy", reason="a second seed")
    assert "once-more" in would
    assert "starts at once" in would
    assert said == "A copy is submitted: it is the newest in the list."
    both = member.page.get_by_role("link", name="once-more")
    expect(both).to_have_count(2)
    for link in both.all():
        fleet.cancel(str(link.get_attribute("href")).removeprefix("/console/jobs/"))  # type: ignore[arg-type]  # an id


def test_an_elastic_job_is_made_smaller_by_its_tenant(browse: Browse, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="stretches", shape={"min_nodes": 1, "nodes": 2, "max_nodes": 4, "gpus_per_node": 2})
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/jobs/{job_id}")
    member.see("elastic: 1 to 4 hosts")
    would, said = act(member, "Resize", reason="the rest is for the others", fields={"nodes": "1"})
    assert "job stretches is to have 1 host from now on" in would
    assert said == "It is to have 1 host from now on."
    member.see("elastic: 1 to 4 hosts, at most 1 since it was resized")
    member.inspect("resized")
    fleet.cancel(job_id)


def test_a_line_is_found_in_all_that_a_job_has_printed(browse: Browse, fleet: SmallFleet) -> None:
    job_id = fleet.submit(name="diverging")
    fleet.run(job_id)
    for words in ("step 1 loss nan, early on\n", "x" * 99 * 1024 + "\n", "step 2 loss 2.5\n"):
        fleet.write_log(job_id, words)
    member = browse(Role.TENANT_MEMBER)
    member.open(f"/console/jobs/{job_id}")
    expect(member.page.get_by_text("early on")).to_have_count(0)
    member.page.get_by_label("Find in all of it").fill("NaN")
    with member.page.expect_navigation():
        member.press("Enter")
    expect(member.page.get_by_text("1 line has it")).to_be_visible()
    expect(member.page.get_by_label("Lines that have it")).to_contain_text("step 1 loss nan, early on")
    member.inspect("log-search")
    with member.page.expect_navigation():
        member.page.get_by_role("link", name="Back to the end").click()
    expect(member.page.locator("[data-log]")).to_contain_text("step 2 loss 2.5")
    fleet.cancel(job_id)


def test_jobs_are_found_by_state_tier_and_name(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/jobs")
    console.page.get_by_label("State").select_option("FAILED")
    console.page.get_by_label("Tier").select_option("on_demand")
    console.page.get_by_label("Name has").fill("config")
    console.press("Enter")
    console.page.get_by_role("link", name="Show all").wait_for()
    assert [link.inner_text() for link in console.page.locator(".job-name").all()] == ["wrong-config"]


def test_the_field_on_top_leads_to_what_is_meant(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/jobs")
    console.press("/")
    console.page.keyboard.type("GPU-h100-4-3")
    with console.page.expect_navigation():
        console.press("Enter")
    assert console.page.url.endswith("/console/gpus/GPU-h100-4-3")


def test_an_incident_is_closed_by_what_has_seen_to_it(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/incidents?state=open")
    _, said = act(console, "Close", reason="they have a week", within="li:has-text('in the tier spot')")
    assert said == "The incident is closed."
    console.see("they have a week")
    console.inspect("closed")


def test_a_key_is_shown_once_and_opens_nothing_after_it_was_revoked(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/access")
    console.page.get_by_role("button", name="New key").click()
    dialog = console.page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("a reporter")
    dialog.locator("[name=role]").select_option("auditor")
    console.require_accessible()
    dialog.get_by_role("button", name="Make it").click()
    console.see("It is stored nowhere and cannot be shown again.")
    token = console.page.locator(".secret-text code").inner_text()
    assert token.startswith("mst_")
    console.page.get_by_role("link", name="I have it").click()
    row = console.page.locator("tr", has_text="a reporter")
    expect(row).to_contain_text(token[:8])
    assert token not in console.page.content()
    _, said = act(console, "Revoke", reason="no longer read", within="tr:has-text('a reporter')")
    assert said.startswith("The key is revoked")
    expect(row).to_contain_text("revoked")


def test_a_person_is_made_signs_in_and_is_disabled(console: Browsing, browse: Browse, fleet: SmallFleet) -> None:
    console.open("/console/access")
    console.page.get_by_role("button", name="New person").click()
    dialog = console.page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("Ada Example")
    dialog.locator("[name=role]").select_option("auditor")
    dialog.get_by_role("button", name="Make it").click()
    console.see("Ada Example signs in with this password.")
    console.inspect("password")
    password = console.page.locator(".secret-text code").inner_text()
    ada = browse(None)
    ada.open("/console")
    ada.page.fill("[name=name]", "Ada Example")
    ada.page.fill("[name=password]", password)
    ada.press("Enter")
    ada.see("Faults, and the actions on them")
    console.open("/console/access")
    _, said = act(console, "Disable", reason="left", within="tr:has-text('Ada Example')")
    assert said == "They sign in no more."
    ada.open("/console/jobs")
    assert "/sign-in" in ada.page.url, "every session has ended"
