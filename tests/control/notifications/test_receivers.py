"""What receivers get, in which form; what they may answer; and which are sent nothing."""

import json
import socket

import pytest

from control.notifications.delivery import Delivery
from control.notifications.http_receiver import HttpSender
from tests.control.notifications.route_case import RouteCase, webhook
from tests.fleet_factory import OPERATOR
from tests.receivers import Receiver, mailbox


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (302, {"Location": "http://127.0.0.1:1/hooks/T0SECRET"}),
            "302 redirects are not followed, as to http://127.0.0.1",
        ),
        ((404, {}), "404"),
    ],
)
def test_a_redirect_is_not_followed_and_no_part_of_an_address_is_stored(
    case: RouteCase, receiver: Receiver, answer: tuple[int, dict[str, str]], message: str
) -> None:
    receiver.body = b"Cannot POST /hooks/T0SECRET?key=T1SECRET"
    case.route({"kind": "slack", "url": f"{receiver.url}/hooks/T0SECRET?key=T1SECRET"})
    receiver.answer(answer)
    case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
    case.send()
    (tried,) = case.tries()
    assert tried.outcome == "refused"
    assert message in tried.words
    assert "SECRET" not in tried.words
    assert len(receiver.taken) == 1


@pytest.mark.parametrize("part", ["header", "body"])
def test_an_answer_that_trickles_is_cut_off(case: RouteCase, receiver: Receiver, part: str) -> None:
    receiver.trickles = part
    case.delivery = Delivery(HttpSender(limit_s=0.5))
    case.route(webhook(receiver))
    case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
    case.send()
    (tried,) = case.tries()
    assert (tried.outcome, tried.words) == ("away", "no whole answer in 0.5 s")
    assert tried.took_ms < 5_000


def test_a_handshake_that_never_ends_is_cut_off(case: RouteCase) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        case.delivery = Delivery(HttpSender(limit_s=0.5))
        case.route({"kind": "webhook", "url": f"https://127.0.0.1:{silent.getsockname()[1]}/"})
        case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
        case.send()
    (tried,) = case.tries()
    assert (tried.outcome, tried.words) == ("away", "no whole answer in 0.5 s")
    assert tried.took_ms < 5_000


def test_nothing_is_sent_to_addresses_that_the_policy_does_not_allow(case: RouteCase, receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    case.allow(tenant_networks=("10.0.0.0/8",))
    for number, host in enumerate(("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "169.254.169.254")):
        case.route({"kind": "webhook", "url": f"http://{host}:{port}/"}, name=f"n{number}")
    case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
    case.send()
    assert receiver.taken == []
    assert [tried.outcome for tried in case.tries()] == ["forbidden"] * 5
    case.allow(tenant_networks=("127.0.0.0/8",))
    case.later(hours=1)
    case.send()
    assert len(receiver.taken) >= 3, "what the policy allows later arrives"


def test_mail_states_the_job_and_has_one_id(case: RouteCase) -> None:
    with mailbox() as box:
        case.use_mail(box.url)
        case.route({"kind": "email", "to": ["a@example.org", "b@example.org"]})
        box.is_busy = True
        job_id = case.fleet.submit(name="bert")
        case.happens("job.held", job_id, tenant_id=case.fleet.tenant_id, reason="its script\r\nBcc: x@y.z is missing")
        case.send()
        assert box.mails == []
        box.is_busy = False
        case.later(minutes=1)
        case.send()
        ((receivers, mail),) = box.mails
    assert receivers == ("a@example.org", "b@example.org")
    assert mail["Subject"] == "[Muster] job bert is on hold"
    assert mail["Bcc"] is None
    assert "its script" in mail.get_content()
    (row,) = case.notifications()
    assert mail["Message-ID"] == f"<{row.id}@example.org>"


def test_shapes_of_other_receivers(case: RouteCase, receiver: Receiver) -> None:
    kinds = "incident.opened", "incident.closed"
    case.route({"kind": "slack", "url": f"{receiver.url}/slack/T0/secret"}, *kinds, by=OPERATOR, name="slack")
    key = {"kind": "pagerduty", "url": f"{receiver.url}/v2/enqueue", "routing_key": "R0"}
    route = case.route(key, *kinds, by=OPERATOR, name="pager")
    case.route({"kind": "alertmanager", "url": receiver.url}, *kinds, by=OPERATOR, name="am")
    assert route.target == receiver.url, "no path and no key"
    told = {"kind": "storage", "subject_id": "/mnt", "reason": "<!channel> saves fail"}
    case.happens("incident.opened", "inc_1", **told)
    case.send()
    case.happens("incident.closed", "inc_1", **told)
    case.send()
    by_path = {
        path: [each.document for each in receiver.taken if each.path == path]
        for path in ("/slack/T0/secret", "/v2/enqueue", "/api/v2/alerts")
    }
    assert "<!channel>" not in json.dumps(by_path["/slack/T0/secret"])
    opened, closed = by_path["/v2/enqueue"]
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] == "inc_1"
    assert (opened["routing_key"], opened["payload"]["severity"]) == ("R0", "critical")
    ((firing,), (resolved,)) = by_path["/api/v2/alerts"]
    assert firing["labels"] == resolved["labels"]
    assert firing["endsAt"] > resolved["endsAt"] >= firing["startsAt"]


def test_mail_to_a_domain_that_the_policy_allows_no_more_waits(case: RouteCase) -> None:
    with mailbox() as box:
        case.use_mail(box.url)
        case.route({"kind": "email", "to": ["a@example.org"]})
        case.allow(mail_domains=("Example.com",))
        case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
        case.send()
        assert box.mails == []
        assert "notifications.mail_domains" in case.tries()[0].words
        case.allow(mail_domains=("Example.ORG",))
        case.later(minutes=1)
        case.send()
        assert len(box.mails) == 1
