"""The command's sign-in by HTTP: public, limited by address, and with a key in one answer alone."""

from control.tenants import logins
from control.tenants.sessions import resume, sign_in_by_key
from tests.api.conftest import Api


def confirm(api: Api, code: str, actor: str = "tenant_admin") -> None:
    """Confirm a code as the console's page does."""
    session = sign_in_by_key(api.units, api.tokens[actor], address=None)
    signed_in = resume(api.units, session.text, address=None, request_id=None)
    with api.units.begin(signed_in.principal, logins.DECIDE) as unit:
        logins.decide(unit, code, session_id=signed_in.session_id, is_confirmed=True)


def test_a_code_leads_to_one_key_without_any_before(api: Api) -> None:
    started = api.client.post("/v1/logins", json={"device": "nora on laptop"})
    assert started.status_code == 201
    wanted = {"login_token": started.json()["login_token"]}
    assert started.json()["page"] == f"http://127.0.0.1/console/login?code={started.json()['code']}"
    assert api.client.post("/v1/logins/answer", json=wanted).json() == {"state": "pending", "token": None, "key": None}
    confirm(api, started.json()["code"])
    answer = api.client.post("/v1/logins/answer", json=wanted).json()
    assert (answer["state"], answer["key"]["role"]) == ("confirmed", "tenant_admin")
    headers = {"Authorization": f"Bearer {answer['token']}"}
    assert api.client.get("/v1/whoami", headers=headers).json()["tenant_id"] == api.fleet.tenant_id
    assert api.client.post("/v1/logins/answer", json=wanted).status_code == 401, "it is used"
    assert api.client.post("/v1/sign-out", headers=headers).json() == {"is_revoked": True}
    assert api.client.get("/v1/whoami", headers=headers).status_code == 401


def test_a_key_that_no_sign_in_made_stays(api: Api) -> None:
    for actor in ("tenant_member", "operator", "node"):
        assert api.client.post("/v1/sign-out", headers=api.headers(actor)).json() == {"is_revoked": False}
        assert api.client.get("/v1/whoami", headers=api.headers(actor)).status_code == 200


def test_one_address_gets_few_codes(api: Api) -> None:
    answers = [api.client.post("/v1/logins", json={"device": "d"}) for _ in range(12)]
    assert [each.status_code for each in answers[:10]] == [201] * 10
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_a_device_is_one_printable_line(api: Api) -> None:
    for device in ("", "a\nb", "x" * 129, "\x1b[31m", "\u202etpotpal", 7):
        assert api.client.post("/v1/logins", json={"device": device}).status_code == 422, device
