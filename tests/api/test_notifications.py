"""Routes of notifications by REST: kept by their owner, tested, and never shown with what is secret in them."""

from collections.abc import Iterator
from typing import Any

import pytest

from control.core.sequencer import sequence_once
from control.notifications.delivery import Delivery
from control.notifications.fan_out import fan_out_once
from control.notifications.http_receiver import HttpSender
from control.notifications.sending import Sender
from control.secrets.key_file import FileKeys
from tests.api.conftest import Api
from tests.receivers import Receiver, http_receiver

PATH = "/v1/notification-routes"
ALLOWED = {"notifications": {"tenant_networks": ["127.0.0.0/8"]}}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


def post(
    api: Api, path: str, body: Any = None, *, actor: str = "tenant_admin", status: int = 200, **headers: str
) -> Any:
    answer = api.client.post(path, json=body, headers={**api.headers(actor), **headers})
    assert answer.status_code == status, answer.text
    return answer.json()


def get(api: Api, path: str, actor: str = "tenant_admin") -> Any:
    answer = api.client.get(path, headers=api.headers(actor))
    assert answer.status_code == 200, answer.text
    return answer.json()


def route(api: Api, url: str, **more: Any) -> Any:
    return post(api, PATH, {"name": "hook", "target": {"kind": "webhook", "url": url}, **more}, status=201)


def send(api: Api, keys: FileKeys) -> None:
    while sequence_once(api.units):
        pass
    while fan_out_once(api.units):
        pass
    sender = Sender(api.units, keys, Delivery(HttpSender(limit_s=5.0)))
    sender.send_due()
    sender.close()


def test_a_route_is_made_tested_changed_and_deleted(api: Api, receiver: Receiver, secret_keys: FileKeys) -> None:
    post(api, "/v1/policies", {"document": ALLOWED, "reason": "tests"}, actor="operator", status=201)
    made = route(api, f"{receiver.url}/a/secret/path")
    assert made["secret"].startswith("whsec_")
    shown = get(api, f"{PATH}/{made['id']}")
    assert "secret" not in shown
    assert (shown["target"], shown["kinds"][:2]) == (receiver.url, ["job.succeeded", "job.failed"])
    assert get(api, PATH)["items"] == [shown]
    tested = post(api, f"{PATH}/{made['id']}/test")
    assert "secret" not in tested
    send(api, secret_keys)
    (row,) = get(api, f"{PATH}/{made['id']}/notifications")["items"]
    found = get(api, f"{PATH}/{made['id']}/notifications/{row['id']}")
    assert (row["state"], row["num_tries"], row["title"]) == ("DELIVERED", 1, "test of the route hook")
    assert [one["status"] for one in found["tries"]] == [204]
    assert receiver.taken[0].path == "/a/secret/path"
    post(api, f"{PATH}/{made['id']}/notifications/{row['id']}/resend")
    send(api, secret_keys)
    assert [taken.headers["webhook-id"] for taken in receiver.taken] == [row["id"]] * 2
    changed = post(api, f"{PATH}/{made['id']}/change", {"kinds": ["job.*"], "new_secret": True})
    assert (changed["version"], changed["kinds"]) == (2, ["job.*"])
    assert changed["secret"] not in {None, made["secret"]}
    post(api, f"{PATH}/{made['id']}/test")
    send(api, secret_keys)
    assert receiver.taken[-1].path == "/a/secret/path", "its receiver stayed"
    assert len(receiver.taken[-1].headers["webhook-signature"].split()) == 2
    post(api, f"{PATH}/{made['id']}/change", {}, status=412, **{"If-Match": '"v1"'})
    assert api.client.delete(f"{PATH}/{made['id']}", headers=api.headers("tenant_admin")).status_code == 200
    assert get(api, PATH)["items"] == []


def test_a_dry_run_keeps_nothing(api: Api) -> None:
    body = {"name": "hook", "target": {"kind": "email", "to": ["a@example.org"]}}
    assert post(api, f"{PATH}?dry_run=true", body)["dry_run"] is True
    assert get(api, PATH)["items"] == []


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no address": ({"target": {"kind": "webhook", "url": "hooks.example"}}, "/target/webhook/url"),
    "another scheme": ({"target": {"kind": "webhook", "url": "file:///etc/passwd"}}, "/target/webhook/url"),
    "a password in it": ({"target": {"kind": "slack", "url": "https://u:pw1234@r.example"}}, "/target/slack/url"),
    "two mails in one": ({"target": {"kind": "email", "to": ["a@b.c, d@e.f"]}}, "/target/email/to/0"),
    "a line end": ({"target": {"kind": "email", "to": ["a@b.c\r\nBcc: d@e.f"]}}, "/target/email/to/0"),
    "no kind": ({"target": {"kind": "fax"}}, "/target"),
    "no key": ({"target": {"kind": "pagerduty"}}, "/target/pagerduty/routing_key"),
    "no event": ({"kinds": ["everything"]}, "/kinds/0"),
    "no severity": ({"least": "critical"}, "/least"),
    "no name": ({"name": "My Route"}, "/name"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named_and_no_secret_is_repeated(api: Api, case: str) -> None:
    changed, pointer = BAD[case]
    body = {"name": "hook", "target": {"kind": "webhook", "url": "https://r.example"}, **changed}
    answer = api.client.post(PATH, json=body, headers=api.headers("tenant_admin"))
    assert answer.status_code == 422
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]
    assert "pw1234" not in answer.text
    assert get(api, PATH)["items"] == []


def test_a_name_stands_once_for_each_owner_and_the_policy_bounds_them(api: Api) -> None:
    document = {"notifications": {"most_routes": 1, "mail_domains": ["example.org"]}}
    post(api, "/v1/policies", {"document": document, "reason": "tests"}, actor="operator", status=201)
    outside = {"name": "hook", "target": {"kind": "email", "to": ["a@elsewhere.example"]}}
    assert post(api, PATH, outside, status=422)["errors"][0]["pointer"] == "/target/to/0"
    route(api, "https://r.example")
    own = {"name": "hook", "target": {"kind": "webhook", "url": "https://r.example"}}
    again = post(api, PATH, own, status=409)
    assert "there is a route hook already" in again["detail"]
    more = post(api, PATH, {**own, "name": "more"}, status=409)
    assert "the policy allows 1" in more["detail"]
    post(
        api,
        PATH,
        {"name": "hook", "target": {"kind": "webhook", "url": "https://r.example"}},
        actor="operator",
        status=201,
    )
