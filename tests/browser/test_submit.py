"""A new tenant in a browser: its first steps, its secrets, and a job that it submits by the form."""

import pytest
from playwright.sync_api import expect

from control.tenants import persons, sessions, tenants
from muster.domain.principals import Role
from tests.browser.acting import act, opened
from tests.browser.browsing import Browsing
from tests.browser.conftest import COOKIE, Browse
from tests.browser.control_plane import ControlPlane
from tests.browser.small_fleet import SmallFleet
from tests.fleet_factory import OPERATOR

VALUE = "canary-of-a-value"


@pytest.fixture(scope="module")
def newcomer_token(control_plane: ControlPlane) -> str:
    """The session of the admin of a tenant that has done nothing yet."""
    units = control_plane.units
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        tenant_id = tenants.create(unit, name="newcomers").id
    with units.begin(OPERATOR, persons.CREATE) as unit:
        made = persons.create(unit, name="nadia", role=Role.TENANT_ADMIN, tenant_id=tenant_id)
    return sessions.sign_in_by_password(units, made.person.name, made.password, address=None).text


@pytest.fixture
def newcomer(browse: Browse, newcomer_token: str, fleet: SmallFleet) -> Browsing:
    return signed_in(browse, newcomer_token)


def signed_in(browse: Browse, token: str, *, scripts: bool = True) -> Browsing:
    person = browse(None, scripts=scripts)
    cookie = {"name": COOKIE, "value": token, "secure": True, "httpOnly": True, "domain": "127.0.0.1", "path": "/"}
    person.page.context.add_cookies([cookie])  # type: ignore[list-item]  # a mapping of mixed values
    return person


def test_a_new_tenant_begins_with_three_steps(newcomer: Browsing) -> None:
    newcomer.inspect_in_each_check("/console/start", "start")
    newcomer.open("/console")
    newcomer.see("Install the command and sign in")
    newcomer.keep("first page")
    newcomer.require_fit()
    assert f"muster login {newcomer.watch.base_url}" in newcomer.words(".first-steps")
    expect(newcomer.page.locator(".first-mark--done")).to_have_count(0)
    newcomer.page.get_by_role("link", name="Fill in a first job").click()
    expect(newcomer.page.get_by_label("Name name", exact=True)).to_have_value("hello")
    newcomer.inspect_in_each_check("/console/submit?begin=hello", "form")


def test_what_is_wrong_stands_next_to_its_field_and_the_rest_is_planned_then_submitted(newcomer: Browsing) -> None:
    newcomer.open("/console/submit?begin=hello")
    page = newcomer.page
    page.get_by_label("Hosts shape.nodes").fill("0")
    page.get_by_text("Secrets and data").click()
    page.get_by_label("Secrets secrets").fill("hf-token\nhf-token")
    with newcomer.expecting(422), page.expect_navigation():
        page.get_by_role("button", name="Plan it").click()
    expect(page.locator("#job-shape-nodes-fault")).to_have_text("must be at least 1")
    expect(page.locator("#job-secrets-fault")).to_contain_text("names a secret twice")
    newcomer.inspect("faults")
    page.get_by_role("alert").get_by_role("link", name="Secrets").click()
    expect(page.get_by_label("Secrets secrets")).to_be_visible()
    page.get_by_label("Hosts shape.nodes").fill("1")
    page.get_by_label("Secrets secrets").fill("")
    with page.expect_navigation():
        page.get_by_role("button", name="Plan it").click()
    expect(page.locator("#plan-title")).to_have_text("It would start at once")
    expect(page.get_by_label("The job as YAML")).to_contain_text("- echo hello from $(hostname)")
    newcomer.inspect("planned")
    with page.expect_navigation(url="**/console/jobs/job_*"):
        page.get_by_role("button", name="Submit it").click()
    newcomer.see("What was submitted")
    newcomer.open("/console/start")
    expect(page.locator(".first-mark--done")).to_have_count(1)


def test_the_form_holds_at_every_width_with_a_plan_that_waits(newcomer: Browsing) -> None:
    newcomer.open("/console/submit?begin=gang")
    page = newcomer.page
    page.get_by_label("Script program.script").fill("/srv/train.py")
    page.get_by_label("Tier tier").select_option("reserved")
    with page.expect_navigation():
        page.get_by_role("button", name="Plan it").click()
    newcomer.inspect("waits")
    page.set_viewport_size({"width": 390, "height": 844})
    newcomer.inspect("waits on a phone")


def test_secrets_are_set_rotated_and_deleted_and_no_page_shows_a_value(newcomer: Browsing) -> None:
    newcomer.inspect_in_each_check("/console/secrets", "no secrets")
    page = newcomer.page
    dialog = opened(newcomer, "Set a secret")
    dialog.locator("[name=name]").fill("With Space")
    dialog.locator("[name=value]").fill(VALUE)
    newcomer.require_accessible()
    newcomer.keep("set")
    with newcomer.expecting(422):
        dialog.get_by_role("button", name="Set it").click()
        expect(dialog.locator(".form-result")).not_to_be_empty()
    dialog.locator("[name=name]").fill("hf-token")
    with page.expect_navigation():
        dialog.get_by_role("button", name="Set it").click()
    newcomer.inspect_in_each_check("/console/secrets", "secrets")
    page.get_by_role("link", name="hf-token").click()
    would, said = act(newcomer, "Rotate", reason="it leaked", fields={"value": VALUE + "-2"})
    assert VALUE not in would
    assert "next value" in said
    newcomer.inspect_in_each_check(page.url.removeprefix(newcomer.watch.base_url).partition("?")[0], "secret")
    assert VALUE not in page.content()
    act(newcomer, "Delete", reason="not used", typed="hf-token")
    newcomer.see("No secret")


def test_a_job_is_submitted_by_keyboard_alone(newcomer: Browsing) -> None:
    newcomer.open("/console/jobs")
    newcomer.tab_to("Submit a job")
    with newcomer.page.expect_navigation():
        newcomer.press("Enter")
    newcomer.tab_to("Name name")
    newcomer.page.keyboard.type("by-keyboard")
    newcomer.tab_to("Script")
    newcomer.page.keyboard.type("/srv/train.py")
    newcomer.tab_to("Submit it")
    with newcomer.page.expect_navigation(url="**/console/jobs/job_*"):
        newcomer.press("Enter")
    newcomer.see("by-keyboard")


def test_without_scripts_a_job_is_copied_planned_and_submitted(
    browse: Browse, newcomer_token: str, fleet: SmallFleet
) -> None:
    person = signed_in(browse, newcomer_token, scripts=False)
    person.open("/console/submit?begin=hello")
    person.page.get_by_role("button", name="Submit it").click()
    person.see("What was submitted")
    person.page.get_by_role("link", name="Change and submit").click()
    person.see("A copy of")
    person.page.locator("[name='/name']").fill("hello-again")
    person.page.get_by_role("button", name="Plan it").click()
    person.see("The same as a file")
    person.page.get_by_role("button", name="Submit it").click()
    person.see("hello-again")
