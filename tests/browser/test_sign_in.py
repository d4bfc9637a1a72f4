"""Sign-in to the console, and sign-out from it."""

import pytest
from playwright.sync_api import expect

from muster.domain.principals import Role
from tests.browser.browsing import Browsing
from tests.browser.conftest import Browse
from tests.browser.control_plane import ControlPlane


def test_the_sign_in_page_holds_at_every_width_and_in_both_themes(stranger: Browsing) -> None:
    stranger.inspect_in_each_check("/console/sign-in")


def test_the_first_person_signs_in_by_keyboard_alone_and_comes_to_the_page_they_requested(
    stranger: Browsing, control_plane: ControlPlane
) -> None:
    stranger.open("/console/gpus?standing=HEALTHY")
    assert stranger.page.url.startswith(f"{control_plane.url}/console/sign-in?next=")
    expect(stranger.page.locator("[name=name]")).to_be_focused()
    stranger.page.keyboard.type(control_plane.person)
    stranger.tab_to("Password")
    stranger.page.keyboard.type(control_plane.password)
    stranger.tab_to("Sign in")
    with stranger.page.expect_navigation():
        stranger.press("Enter")
    assert stranger.page.url == f"{control_plane.url}/console/gpus?standing=HEALTHY"
    stranger.see(control_plane.person)


def test_the_session_is_a_cookie_that_no_script_reads(console: Browsing) -> None:
    console.open("/console")
    (cookie,) = [each for each in console.page.context.cookies() if each["name"] == "__Host-muster"]
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"], cookie["path"]) == (True, True, "Lax", "/")
    assert "muster" not in console.page.evaluate("document.cookie").replace("muster-theme", "")


def test_a_wrong_password_is_refused_in_words(stranger: Browsing, control_plane: ControlPlane) -> None:
    stranger.open("/console/sign-in")
    stranger.page.fill("[name=name]", control_plane.person)
    stranger.page.fill("[name=password]", "not the password")
    with stranger.expecting(401), stranger.page.expect_navigation():
        stranger.press("Enter")
    stranger.see("That name and password open nothing")
    assert stranger.page.input_value("[name=name]") == control_plane.person, "not to be typed again"
    stranger.inspect("refused")


def test_a_tenant_signs_in_with_a_key_alone(stranger: Browsing, control_plane: ControlPlane) -> None:
    stranger.open("/console/sign-in")
    stranger.page.fill("[name=password]", control_plane.key(Role.TENANT_MEMBER))
    with stranger.page.expect_navigation():
        stranger.press("Enter")
    stranger.see("Your GPUs")


def test_what_signs_out_sees_nothing_more(console: Browsing, control_plane: ControlPlane) -> None:
    console.open("/console")
    with console.page.expect_navigation():
        console.page.get_by_role("button", name="Sign out").click()
    assert console.page.url == f"{control_plane.url}/console/sign-in"
    console.open("/console")
    assert "/sign-in" in console.page.url


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AUDITOR, Role.TENANT_ADMIN, Role.TENANT_MEMBER])
def test_every_place_that_another_is_shown_opens_for_them(browse: Browse, role: Role) -> None:
    person = browse(role)
    person.open("/console")
    links = person.page.get_by_label("Places").get_by_role("link")
    paths = [each.get_attribute("href") or "" for each in links.all()]
    assert "/console" in paths
    for path in paths:
        person.open(path)
        assert person.page.locator("h1").count() == 1 or not path.startswith("/console"), f"{path} has no title"
