"""Notifications: each event of a route arrives, signed, in order, with one id in every try."""

import threading
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from control.incidents import incidents
from control.incidents.incidents import close_incident, extend_incident, open_incident
from control.notifications.sending import FAILED_ALONE_PAUSE, LEASE, MOST_FAILED_ALONE, Sender
from control.system.retention import sweep_once
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.notifications.retries import PAUSES_S, ROUTE_PAUSE_BASE_S, ROUTE_PAUSE_CAP_S, TRIED_FOR
from muster.failpoints import FailpointError, arming
from muster.ports import free_port
from tests.control.notifications.route_case import RouteCase, subjects, webhook
from tests.fleet_factory import OPERATOR
from tests.receivers import Receiver, Taken, http_receiver


def verify(secret: str, taken: Taken) -> None:
    """Check the signature by the receivers' library, but not its time: it is by the test's clock."""
    moment = datetime.fromtimestamp(int(taken.headers["webhook-timestamp"]), UTC)
    wanted = Webhook(secret).sign(taken.headers["webhook-id"], moment, taken.body.decode())
    if wanted not in taken.headers["webhook-signature"].split():
        raise WebhookVerificationError("no signature of the request is by this secret")


def test_a_tenants_failed_job_arrives_signed_and_other_events_do_not(case: RouteCase, receiver: Receiver) -> None:
    case.happens("job.failed", "job_before", tenant_id=case.fleet.tenant_id)
    case.fan_out()
    route, secret = case.with_secret(webhook(receiver))
    job_id = case.fleet.submit(name="bert")
    case.happens("job.failed", job_id, tenant_id=case.fleet.tenant_id, reason="exit code 1")
    case.happens("job.failed", "job_other", tenant_id=None)
    case.happens("job.queued", job_id, tenant_id=case.fleet.tenant_id)
    case.send()
    (taken,) = receiver.taken
    assert taken.path == "/hook?x=1"
    assert secret is not None
    verify(secret, taken)
    (row,) = case.notifications()
    assert taken.headers["webhook-id"] == row.id
    document = taken.document
    assert (document["type"], document["data"]["event_id"]) == ("job.failed", row.event_id)
    assert document["data"]["title"] == "job bert failed"
    assert "exit code 1" in document["data"]["text"]
    assert document["data"]["url"] == f"https://m.example/console/jobs/{job_id}"
    assert (row.state, case.found(route.id).num_failures) == ("DELIVERED", 0)
    case.send()
    assert len(receiver.taken) == 1


def test_a_signature_of_another_secret_is_none(case: RouteCase, receiver: Receiver) -> None:
    case.route(webhook(receiver))
    case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
    case.send()
    _, other = case.with_secret(webhook(receiver), name="second")
    assert other is not None
    with pytest.raises(WebhookVerificationError):
        verify(other, receiver.taken[0])


def test_operators_get_incidents_of_their_severity_and_the_end_of_each_that_they_got(
    case: RouteCase, receiver: Receiver
) -> None:
    case.route(webhook(receiver), by=OPERATOR, least="page")
    with case.units.begin(OPERATOR, incidents.CLOSE) as unit:
        unit.audit("test", "test", "test")
        storage = open_incident(unit, IncidentKind.STORAGE, "storage", "/mnt", "saves fail", {})
        repair = open_incident(unit, IncidentKind.REPAIR_DUE, "gpu", "GPU-1", "a remedy is due", {})
        steps = open_incident(
            unit, IncidentKind.OBJECTIVE_BURNING, "objective", "steps", "slow", {"severity": "ticket"}
        )
        unit.session.flush()
        extend_incident(unit, steps, "fast", {"severity": "page"})
        extend_incident(unit, steps, "slow again", {"severity": "ticket"})
        for each in (storage, repair, steps):
            close_incident(unit, each, reason="it is over")
    case.send()
    found = [(each.document["type"], each.document["data"]["subject_id"]) for each in receiver.taken]
    assert found == [
        ("incident.opened", storage.id),
        ("incident.escalated", steps.id),
        ("incident.closed", storage.id),
        ("incident.closed", steps.id),
    ]
    assert [each.document["data"]["status"] for each in receiver.taken] == ["firing", "firing", "resolved", "resolved"]


def test_a_receiver_that_is_away_for_a_day_gets_all_in_order_once_it_is_back(
    case: RouteCase, receiver: Receiver
) -> None:
    target = webhook(receiver)
    route = case.route({**target, "url": target["url"].replace(str(receiver.port), str(free_port()))})
    case.happens("job.failed", *(f"job_{number}" for number in range(5)), tenant_id=case.fleet.tenant_id)
    for hour in range(24):
        case.send()
        assert len(case.tries()) == hour + 1, "one notification asks, whatever waits behind it"
        case.later(hours=1)
    assert case.found(route.id).num_failures == 24
    assert len({tried.notification_id for tried in case.tries()}) == 1
    case.change(route, target=target)
    case.send()
    assert subjects(receiver) == [f"job_{number}" for number in range(5)]
    assert {row.state for row in case.notifications()} == {"DELIVERED"}


def test_one_that_a_receiver_cannot_take_holds_up_no_other(case: RouteCase, receiver: Receiver) -> None:
    route = case.route(webhook(receiver))
    receiver.answer(*[500] * MOST_FAILED_ALONE, 204)
    case.happens("job.failed", "job_odd", "job_fit", tenant_id=case.fleet.tenant_id)
    for _ in range(MOST_FAILED_ALONE):
        case.send()
        case.later(seconds=ROUTE_PAUSE_CAP_S)
    assert set(subjects(receiver)) == {"job_odd"}
    case.send()
    case.clock.now += FAILED_ALONE_PAUSE
    case.send()
    assert subjects(receiver)[MOST_FAILED_ALONE:] == ["job_fit", "job_odd"]
    assert case.found(route.id).num_failures == 0
    ids = {taken.headers["webhook-id"] for taken in receiver.taken if "job_odd" in taken.body.decode()}
    assert len(ids) == 1


def test_what_waits_too_long_is_given_up_and_a_deleted_route_goes_with_its_rows(
    case: RouteCase, receiver: Receiver
) -> None:
    receiver.answer(503)
    route = case.route(webhook(receiver))
    case.happens("job.failed", "job_1", "job_2", tenant_id=case.fleet.tenant_id)
    case.send()
    sweep_once(case.units)
    assert {row.state for row in case.notifications()} == {"PENDING"}
    case.clock.now += TRIED_FOR
    sweep_once(case.units)
    assert {row.state for row in case.notifications()} == {"GIVEN_UP"}
    case.delete(route)
    case.route(webhook(receiver), name=route.name)
    sweep_once(case.units)
    assert case.notifications() == []


def test_the_pauses_of_a_receiver_that_is_away_grow_to_their_limit(case: RouteCase, receiver: Receiver) -> None:
    route = case.route(webhook(receiver))
    receiver.answer(503)
    case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
    pauses = []
    for _ in range(10):
        case.send()
        paused_until = case.found(route.id).paused_until
        assert paused_until is not None
        pauses.append((paused_until - case.clock.now).total_seconds())
        case.send()
        case.clock.now = paused_until
    assert pauses[:3] == [ROUTE_PAUSE_BASE_S, 2 * ROUTE_PAUSE_BASE_S, 4 * ROUTE_PAUSE_BASE_S]
    assert pauses[-1] == ROUTE_PAUSE_CAP_S
    assert len(receiver.taken) == 10


def test_what_is_refused_is_tried_again_while_later_ones_arrive(case: RouteCase, receiver: Receiver) -> None:
    case.route(webhook(receiver))
    receiver.answer(400, 204)
    case.happens("job.failed", "job_odd", "job_fit", tenant_id=case.fleet.tenant_id)
    case.send()
    assert subjects(receiver) == ["job_odd", "job_fit"]
    odd = case.notifications()[0]
    assert (odd.state, odd.last_words, odd.next_try_at - case.clock.now) == (
        "PENDING",
        "400",
        (odd.next_try_at - case.clock.now),
    )
    assert (odd.next_try_at - case.clock.now).total_seconds() == PAUSES_S[0]
    receiver.answer(400)
    for _ in range(40):
        case.clock.now = max(case.clock.now, case.notifications()[0].next_try_at)
        case.send()
    odd = case.notifications()[0]
    assert odd.state == "GIVEN_UP"
    assert odd.ended_at is not None
    assert odd.ended_at - odd.created_at >= TRIED_FOR
    num_tries = odd.tries
    case.resend(odd)
    receiver.answer(200)
    case.send()
    again = case.notifications()[0]
    assert (again.state, again.tries) == ("DELIVERED", num_tries + 1)
    assert receiver.taken[-1].headers["webhook-id"] == receiver.taken[0].headers["webhook-id"]


def test_a_receiver_that_takes_no_more_turns_its_route_off(case: RouteCase, receiver: Receiver) -> None:
    route = case.route(webhook(receiver))
    receiver.answer(410)
    case.happens("job.failed", "job_1", "job_2", tenant_id=case.fleet.tenant_id)
    case.send()
    assert "takes no more" in (case.found(route.id).off_reason or "")
    assert subjects(receiver) == ["job_1"]
    assert {row.state for row in case.notifications()} == {"GIVEN_UP"}
    case.later(days=1)
    case.send()
    assert len(receiver.taken) == 1


def test_a_receiver_that_hangs_holds_up_no_other_route(case: RouteCase, receiver: Receiver) -> None:
    with http_receiver() as hanging:
        hanging.holds = threading.Event()
        case.route(webhook(hanging), name="hangs")
        case.route(webhook(receiver), name="works")
        sender = Sender(case.units, case.keys, case.delivery, jitter=lambda: 0.0)
        started = []
        for number in range(3):
            case.happens("job.failed", f"job_{number}", tenant_id=case.fleet.tenant_id)
            case.fan_out()
            started += sender.start_due()
            started[-1].result(timeout=20)
            assert len(receiver.taken) == number + 1
        assert (len(started), len(hanging.taken)) == (4, 1), "the one that hangs has one thread"
        hanging.holds.set()
        started[0].result(timeout=20)
        sender.close()
    assert subjects(receiver) == ["job_0", "job_1", "job_2"]


def test_what_a_dead_worker_had_claimed_is_sent_again_with_the_same_id(case: RouteCase, receiver: Receiver) -> None:
    case.route(webhook(receiver))
    case.happens("job.failed", "job_1", tenant_id=case.fleet.tenant_id)
    with arming("notification.after_send=raise"), pytest.raises(FailpointError):
        case.send()
    case.send()
    assert len(receiver.taken) == 1, "its lease lasts"
    case.clock.now += LEASE
    case.send()
    assert len({taken.headers["webhook-id"] for taken in receiver.taken}) == 1
    assert len(receiver.taken) == 2
    assert [row.state for row in case.notifications()] == ["DELIVERED"]
