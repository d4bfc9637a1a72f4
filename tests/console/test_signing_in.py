"""Sessions: how one begins, what it opens, when it ends; and that no other site can act in its name."""

from datetime import timedelta

import pytest

from console.pages import sign_in
from console.session import COOKIE
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys, persons
from control.tenants.sessions import IDLE, LIFETIME, resume
from muster.domain.errors import UnauthenticatedError
from muster.domain.principals import Role
from tests.console.conftest import Console, words_of
from tests.fleet_factory import OPERATOR


def _person(seen: Console, name: str = "anna", role: Role = Role.OPERATOR) -> persons.NewPassword:
    with seen.units.begin(OPERATOR, persons.CREATE) as unit:
        return persons.create(unit, name=name, role=role)


def _sign_in(seen: Console, name: str, password: str, **fields: str) -> str | None:
    """The cookie's token, where it opened."""
    data = {"name": name, "password": password, **fields}
    answer = seen.client.post("/console/sign-in", data=data, follow_redirects=False)
    if answer.status_code != 303:
        return None
    header = answer.headers["set-cookie"]
    assert header.startswith(f"{COOKIE}=mst_")
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax"} <= {part.strip() for part in header.split(";")}
    assert "domain" not in header.lower()
    return str(header.split(";")[0].removeprefix(f"{COOKIE}="))


def test_a_stranger_is_led_to_sign_in_and_back(seen: Console) -> None:
    answer = seen.get("/console/events?kind=gpu.", None)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/console/sign-in?next=%2Fconsole%2Fevents%3Fkind%3Dgpu.",
    )
    made = _person(seen)
    page = seen.client.post(
        "/console/sign-in",
        data={"name": "anna", "password": made.password, "next": "/console/events?kind=gpu."},
        follow_redirects=False,
    )
    assert page.headers["location"] == "/console/events?kind=gpu."


@pytest.mark.parametrize("where", ["//evil.example", "https://evil.example", "/v1/keys", "/console\\evil", "/consol"])
def test_sign_in_leads_nowhere_but_to_the_console(seen: Console, where: str) -> None:
    made = _person(seen)
    data = {"name": "anna", "password": made.password, "next": where}
    answer = seen.client.post("/console/sign-in", data=data, follow_redirects=False)
    assert answer.headers["location"] == "/console"


def test_a_name_and_password_open_and_nothing_else_does(seen: Console) -> None:
    made = _person(seen)
    seen.cookies["anna"] = _sign_in(seen, "anna", made.password) or ""
    assert seen.get("/console", "anna").status_code == 200
    for name, password in (("anna", "wrong"), ("nobody", made.password), ("", ""), ("anna", "x" * 2000)):
        answer = seen.client.post("/console/sign-in", data={"name": name, "password": password})
        assert answer.status_code == 401
        assert "open nothing" in answer.text or "opens nothing" in answer.text


@pytest.fixture
def refilled_hardly_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the speed of the machine, the allowance is used up."""
    monkeypatch.setattr(sign_in, "BURST", 3)
    monkeypatch.setattr(sign_in, "PER_S", 1e-6)


@pytest.mark.usefixtures("refilled_hardly_ever")
def test_guessing_is_slowed(seen: Console) -> None:
    answers = [seen.client.post("/console/sign-in", data={"name": "anna", "password": "guess"}) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
    assert "too many requests" in answers[-1].text


def test_a_key_signs_in_and_its_revocation_ends_the_session(seen: Console) -> None:
    made = seen.made_keys["tenant_member"]
    seen.cookies["by_key"] = _sign_in(seen, "", made.token.text) or ""
    assert seen.get("/console", "by_key").status_code == 200
    with seen.units.begin(OPERATOR, keys.REVOKE) as unit:
        keys.revoke(unit, made.key.id)
    assert seen.get("/console", "by_key").status_code == 303


def test_a_hosts_key_opens_no_page(seen: Console) -> None:
    with seen.units.begin(OPERATOR, keys.CREATE) as unit:
        made = keys.create(unit, name="host", role=Role.NODE, node_id=seen.fleet.node_id)
    assert _sign_in(seen, "", made.token.text) is None


def test_a_disabled_person_is_out_at_once(seen: Console) -> None:
    made = _person(seen)
    seen.cookies["anna"] = _sign_in(seen, "anna", made.password) or ""
    with seen.units.begin(OPERATOR, persons.DISABLE) as unit:
        persons.disable(unit, made.person.id)
    assert seen.get("/console", "anna").status_code == 303
    assert _sign_in(seen, "anna", made.password) is None


def test_a_new_password_ends_every_session_and_the_old_one(seen: Console) -> None:
    made = _person(seen)
    seen.cookies["anna"] = _sign_in(seen, "anna", made.password) or ""
    with seen.units.begin(OPERATOR, persons.RESET) as unit:
        fresh = persons.reset_password(unit, made.person.id)
    assert seen.get("/console", "anna").status_code == 303
    assert _sign_in(seen, "anna", made.password) is None
    assert _sign_in(seen, "anna", fresh.password)


def test_signing_out_ends_the_session_itself_and_not_its_cookie_alone(seen: Console) -> None:
    answer = seen.post("/console/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")
    assert seen.get("/console").status_code == 303


def test_a_session_left_alone_ends_and_so_does_a_busy_one_with_the_day(seen: Console) -> None:
    token, start = seen.cookies["operator"], seen.units.clock()

    def opens(passed: timedelta) -> bool:
        later = UnitOfWorkFactory(seen.units.engine, clock=lambda: start + passed)
        try:
            resume(later, token, address=None, request_id=None)
        except UnauthenticatedError:
            return False
        return True

    assert opens(IDLE - timedelta(minutes=1)), "which counts as seen"
    assert opens(2 * IDLE - timedelta(minutes=2))
    assert not opens(3 * IDLE)
    for number in range(4, int(LIFETIME / (IDLE / 2))):
        assert opens(IDLE / 2 * number)
    assert not opens(LIFETIME + timedelta(seconds=1))


@pytest.mark.parametrize("csrf", ["", "00", "zz", "0" * 64])
def test_a_change_without_the_sessions_token_is_refused(seen: Console, csrf: str) -> None:
    answer = seen.post("/console/sign-out", csrf=csrf)
    assert answer.status_code == 403
    assert "does not come from a page of this session" in answer.text
    assert seen.get("/console").status_code == 200


def test_the_token_of_another_session_is_no_use(seen: Console) -> None:
    assert seen.post("/console/sign-out", csrf=seen.csrf("auditor")).status_code == 403


def test_a_change_that_another_site_sends_is_refused(seen: Console) -> None:
    headers = {"Cookie": f"{COOKIE}={seen.cookies['operator']}", "Sec-Fetch-Site": "cross-site"}
    answer = seen.client.post("/console/sign-out", data={"csrf": seen.csrf()}, headers=headers)
    assert answer.status_code == 403


def test_each_page_carries_the_strict_policy_and_another_token(seen: Console) -> None:
    page = seen.get("/console")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["cache-control"] == "no-store"
    assert "<script>" not in page.text
    assert " style=" not in page.text
    assert seen.csrf() != seen.csrf()


def test_a_second_live_key_of_one_name_is_refused_in_words(seen: Console) -> None:
    wanted = {"name": "ci", "role": "tenant_member"}
    assert seen.post("/console/access/keys", "tenant_admin", **wanted).status_code == 200
    again = seen.post("/console/access/keys", "tenant_admin", **wanted)
    assert again.status_code == 409
    assert "a live key is named ci already" in words_of(again.text)
    assert "revoke that key first" in words_of(again.text)
