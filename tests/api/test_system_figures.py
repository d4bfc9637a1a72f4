"""``GET /v1/system``: each figure moves with what it counts."""

import json
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from control.core.sealer import seal_once
from control.core.sequencer import sequence_once
from control.policy.policies import ACTIVATE
from control.system import liveness
from control.telemetry.node_readings import GpuReadings, ReportedIn, pack_known
from muster.db import migrate
from muster.db.leader_lease import LeaderLease
from muster.db.models import Node, NodeLatest, OutboxMessage, TelemetryBlock
from muster.domain.ids import GpuUuid
from muster.domain.states import Contact
from muster.domain.times import to_ms
from muster.progress import Progress
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, JUDGE, OTHER, fault
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture
from tests.fleet_factory import enrol_host
from tests.hand_clock import HandClock
from tests.stored_signals import add_signal


def read(api: Api) -> dict[str, Any]:
    answer = api.client.get("/v1/system", headers=api.headers("operator"))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_heartbeats_are_counted_by_contact_and_by_their_age(api: Api) -> None:
    for name in ("beta", "gamma"):
        enrol_host(api.units, name)
    found = read(api)["heartbeats"]
    assert (found["num_lost"], found["max_age_s"], found["p99_age_s"]) == (3, None, None), "none ever sent one"
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for name, contact, age_s in (("alpha", Contact.LIVE, 1), ("beta", Contact.SILENT, 40), ("gamma", "LOST", 500)):
            heard_at = unit.now - timedelta(seconds=age_s)
            moved = update(Node).where(Node.name == name).values(contact=contact, last_heartbeat_at=heard_at)
            unit.session.execute(moved)
    found = read(api)["heartbeats"]
    assert (found["num_live"], found["num_silent"], found["num_lost"]) == (1, 1, 1)
    assert found["median_age_s"] >= 40
    assert found["p99_age_s"] == found["max_age_s"] >= 500


def test_what_waits_is_counted_until_its_keeper_has_come(api: Api) -> None:
    api.fleet.submit(**GOOD_JOB)
    found = read(api)
    assert found["scheduler"]["queued"]["num"] == 1
    assert found["scheduler"]["queued"]["oldest_age_s"] >= 0
    for keeper in ("sequencer", "sealer"):
        assert found[keeper]["num"] > 0
        assert (found[keeper]["position"], found[keeper]["oldest_age_s"] >= 0) == (0, True)
    while sequence_once(api.units) or seal_once(api.units):
        pass
    after = read(api)
    for keeper in ("sequencer", "sealer"):
        assert (after[keeper]["num"], after[keeper]["oldest_age_s"]) == (0, None)
        assert after[keeper]["position"] >= found[keeper]["num"]


def test_messages_that_wait_and_those_that_were_given_up_are_distinguished(api: Api) -> None:
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        at = unit.now - timedelta(seconds=90)
        for sent_at, dead_at in ((None, None), (unit.now, None), (None, unit.now)):
            message = OutboxMessage(topic="ring", key="x", payload={}, created_at=at, next_try_at=at)
            message.sent_at, message.dead_at = sent_at, dead_at
            unit.session.add(message)
    found = read(api)["outbox"]
    assert (found["num"], found["num_dead"]) == (1, 1)
    assert found["oldest_age_s"] >= 90


def test_signals_that_wait_and_those_that_are_set_aside_are_distinguished(api: Api) -> None:
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        received_at = unit.now - timedelta(seconds=30)
        for number, judge_fault in enumerate((None, None, "ZeroDivisionError")):
            add_signal(unit, GPU, signal_id=str(number), received_at=received_at, judge_fault=judge_fault)
    found = read(api)["judge"]
    assert (found["num"], found["num_set_aside"]) == (2, 1)
    assert found["oldest_age_s"] >= 30


def _received(api: Api, *reported: tuple[GpuUuid, int, float]) -> None:
    """Reports as they are stored: of which GPU, under which number, how many seconds ago; the newest last."""
    known: dict[str, GpuReadings] = {}
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        where: dict[str, Any] = {"node_id": api.fleet.node_id, "boot_id": "boot-1"}
        for uuid, seq, age_s in reported:
            at = unit.now - timedelta(seconds=age_s)
            where |= {"seq": seq, "at": at, "received_at": at}
            unit.session.add(TelemetryBlock(**where, schema=1, content=b""))
            known[uuid] = GpuReadings(ReportedIn("boot-1", seq, to_ms(at), to_ms(at)), (), is_lost=False)
        packed = pack_known(known, set(known), known[reported[-1][0]].reported_in)
        behind = json.loads(packed.behind)
        unit.session.add(NodeLatest(**where, gpu_readings=packed.content, gpus_behind=behind))


def test_ingest_is_that_of_the_last_minute(api: Api) -> None:
    assert read(api)["ingest"] == {"reports_last_minute": 0, "gpus_last_minute": 0, "newest_age_s": None}
    _received(api, (OTHER, 1, 3600), (GPU, 2, 0))
    found = read(api)["ingest"]
    assert (found["reports_last_minute"], found["gpus_last_minute"]) == (1, 1)
    assert found["newest_age_s"] >= 0


def test_the_scheduler_is_active_while_its_lease_is_renewed(api: Api) -> None:
    assert not read(api)["scheduler"]["is_active"]
    another = LeaderLease(api.units.engine, "another", "a")
    lease = LeaderLease(api.units.engine, liveness.SCHEDULER, "a")
    assert another.take()
    assert not read(api)["scheduler"]["is_active"]
    assert lease.take()
    assert read(api)["scheduler"]["is_active"]
    lease.close()
    assert not read(api)["scheduler"]["is_active"]
    another.close()


def test_a_loop_is_stalled_where_no_process_has_advanced_it(api: Api) -> None:
    assert {loop["age_s"] for loop in read(api)["loops"]} == {None}
    clock = HandClock()
    judge = Progress("judge", clock=clock)
    ours, other = (liveness.Reporter(api.units, "worker-control", instance=name) for name in "ab")
    clock.now_s = 61.0
    ours.report([judge])
    first = read(api)["loops"][0]
    assert (first["name"], first["started_by"], first["is_stalled"]) == ("judge", "muster worker control", True)
    assert first["age_s"] >= 61
    other.report([Progress("judge")])
    assert not any(loop["is_stalled"] for loop in read(api)["loops"]), "one process that advances it is enough"


def test_the_breaker_and_the_versions_are_reported(api: Api) -> None:
    fault(api)
    found = read(api)
    (breaker,) = found["breakers"]
    assert {scope["scope"]: scope["num_quarantined"] for scope in breaker["scopes"]}["fleet"] == 1
    assert found["schema"] == {"revision": migrate.head(), "needed": migrate.head(), "is_current": True}
    assert found["version"]
    assert int(found["database_version"].split(".")[0]) >= 15


def test_only_a_caller_that_may_read_figures_does(api: Api) -> None:
    for who in ("tenant_admin", "node"):
        assert api.client.get("/v1/system", headers=api.headers(who)).status_code == 403
    assert api.client.get("/v1/system", headers=api.headers("auditor")).status_code == 200
