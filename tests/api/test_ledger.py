"""``/v1/ledger``: GPU time by account, and what of it each role sees."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control.ledger.closing import STORE
from control.ledger.storing import add_entries, store_facts
from ledger.accounts import Account
from ledger.entries import Entry, Heading
from ledger.figures.hours import HOUR
from muster.db.models import LedgerHour
from muster.domain.principals import system_principal
from tests.api.conftest import Api

MS = 3_600_000
ALPHA = ("GPU-alpha-0", "GPU-alpha-1")
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
FOUR = MIDNIGHT + timedelta(hours=4)


def entry(
    account: Account,
    *gpus: str,
    ms: int = MS,
    cause: str = "",
    tenant: str = "",
    job: str = "",
    node: str = "node_1",
) -> Entry:
    used = {"job_id": job, "tenant_id": tenant, "tier": "spot"} if job else {}
    attempt_id = f"att_of_{job}" if job else ""
    evidence = ("ver_1",) if account is Account.LOST else ()
    heading = Heading(node, account, attempt_id, cause, evidence, "H100", "c1", "r1", **used)
    return Entry(heading, gpus, (ms,) * len(gpus))


@pytest.fixture
def hours(api: Api) -> list[datetime]:
    """Thirty hours of four GPUs: two train for the tenant, one is lost for another tenant, one is free."""
    found = [FOUR + number * HOUR for number in range(30)]
    own, other = api.fleet.tenant_id, api.other_tenant
    with api.units.begin(system_principal("ledger"), STORE, quiet=True) as unit:
        for hour in found:
            is_closed = hour != found[-1]
            closed_at = hour + 2 * HOUR if is_closed else None
            row = LedgerHour(hour=hour, computed_at=hour + HOUR, closed_at=closed_at, num_gpus=4, capacity_ms=4 * MS)
            unit.session.add(row)
            unit.session.flush()
            entries = [
                entry(
                    Account.PRODUCTIVE, "GPU-alpha-0", "GPU-alpha-1", tenant=own, job="job_1", node=api.fleet.node_id
                ),
                entry(Account.LOST, "GPU-3", ms=MS // 2, cause="hang", tenant=other, job="job_2"),
                entry(Account.IDLE, "GPU-3", ms=MS // 2, cause="no_step", tenant=other, job="job_2"),
                entry(Account.FREE, "GPU-4"),
            ]
            add_entries(unit.session, hour, 0, entries)
            store_facts(unit.session, hour)
    return found


def answer_of(api: Api, path: str, actor: str = "operator") -> Any:
    answer = api.client.get(f"/v1/ledger{path}", headers=api.headers(actor))
    assert answer.status_code == 200, answer.text
    return answer.json()


SPAN = "since=2026-11-20T04:00:00Z&until=2026-11-21T10:00:00Z"


def test_sums_of_days_and_hours_are_those_of_the_entries(api: Api, hours: list[datetime]) -> None:
    found = answer_of(api, f"?{SPAN}")
    assert [(each["account"], each["gpu_hours"]) for each in found["sums"]] == [
        ("productive", 60.0),
        ("free", 30.0),
        ("idle", 15.0),
        ("lost", 15.0),
    ]
    assert (found["num_ms"], found["num_hours"], found["num_open_hours"]) == (30 * 4 * MS, 30, 1)
    assert found["sums"][0]["share"] == 0.5
    by_job = answer_of(api, f"?{SPAN}&group=job&group=cause")
    assert {(each["job_id"], each["cause"]): each["gpu_hours"] for each in by_job["sums"]} == {
        ("job_1", ""): 60.0,
        ("job_2", "hang"): 15.0,
        ("job_2", "no_step"): 15.0,
        ("", ""): 30.0,
    }
    by_day = answer_of(api, f"?{SPAN}&group=day&account=lost")
    assert [(each["begins_at"], each["gpu_hours"]) for each in by_day["sums"]] == [
        ("2026-11-20T00:00:00Z", 10.0),
        ("2026-11-21T00:00:00Z", 5.0),
    ]
    by_hour = answer_of(api, f"?{SPAN}&group=hour&account=lost&limit=2")
    assert (len(by_hour["sums"]), by_hour["is_whole"], by_hour["num_ms"]) == (2, False, 15 * MS)
    by_node = answer_of(api, f"?{SPAN}&group=node&group=job&limit=1")
    assert (len(by_node["sums"]), by_node["is_whole"], by_node["num_ms"]) == (1, False, 30 * 4 * MS)
    assert answer_of(api, f"?{SPAN}&gpu=GPU-alpha-0")["num_ms"] == 30 * MS
    assert answer_of(api, f"?{SPAN}&gpu=GPU-beta-0")["num_ms"] == 0
    assert answer_of(api, f"?{SPAN}&model=A100")["sums"] == []


def test_whole_days_in_between_are_summed_up_from_days(api: Api, hours: list[datetime]) -> None:
    with api.units.begin(system_principal("ledger"), STORE, quiet=True) as unit:
        for number in range(30, 60):
            hour = FOUR + number * HOUR
            unit.session.add(LedgerHour(hour=hour, computed_at=hour + HOUR, closed_at=hour, num_gpus=4))
            unit.session.flush()
            add_entries(unit.session, hour, 0, [entry(Account.FREE, "GPU-4")])
            store_facts(unit.session, hour)
    whole = answer_of(api, "?since=2026-11-20T05:00:00Z&until=2026-11-22T03:00:00Z&group=account")
    by_hour = answer_of(api, "?since=2026-11-20T05:00:00Z&until=2026-11-22T03:00:00Z&group=hour")
    assert whole["num_ms"] == by_hour["num_ms"] == (29 * 4 + 17) * MS


def test_a_tenant_sees_the_time_of_its_own_attempts_alone(api: Api, hours: list[datetime]) -> None:
    own = answer_of(api, f"?{SPAN}", "tenant_member")
    assert [each["account"] for each in own["sums"]] == ["productive"]
    other = answer_of(api, f"?{SPAN}&group=account&group=node", "other_tenant")
    assert {each["account"] for each in other["sums"]} == {"lost", "idle"}
    assert answer_of(api, f"?{SPAN}&tenant_id={api.other_tenant}", "tenant_member")["sums"] == []
    (entries,) = [answer_of(api, "/entries?account=lost&limit=200", "other_tenant")["items"]]
    assert {each["evidence"][0] for each in entries} == {"ver_1"}
    assert answer_of(api, "/entries?account=lost", "tenant_member")["items"] == []
    refused = api.client.get("/v1/ledger/hours", headers=api.headers("tenant_member"))
    assert refused.status_code == 403


def test_hours_and_entries_come_page_by_page(api: Api, hours: list[datetime]) -> None:
    first = answer_of(api, "/hours?limit=20")
    rest = answer_of(api, f"/hours?limit=20&cursor={first['next_cursor']}")
    assert [each["hour"] for each in (*first["items"], *rest["items"])] == [
        f"{hour.isoformat().removesuffix('+00:00')}Z" for hour in reversed(hours)
    ]
    assert first["items"][0]["closed_at"] is None
    page = answer_of(api, "/entries?job_id=job_1&limit=20")
    more = answer_of(api, f"/entries?job_id=job_1&limit=20&cursor={page['next_cursor']}")
    assert len({each["id"] for each in (*page["items"], *more["items"])}) == 30
    assert page["items"][0]["gpu_ms"] == [MS, MS]


@pytest.mark.parametrize(
    "path",
    [
        "?group=planet",
        "?account=wasted",
        "?since=2026-11-21T00:00:00Z&until=2026-11-20T00:00:00Z",
        "?since=2026-01-01T00:00:00Z&until=2026-11-20T00:00:00Z&group=job",
        "?limit=0",
        "?until=0001-01-01T00:00:00Z",
        "/hours?since=yesterday",
        "?until=9999-12-31T23:59:59Z",
        "?cause=a%00b",
        "/entries?site=a%00b",
    ],
)
def test_what_makes_no_sense_is_refused(api: Api, path: str) -> None:
    answer = api.client.get(f"/v1/ledger{path}", headers=api.headers("operator"))
    assert answer.status_code == 422, answer.text


def test_a_recount_names_gpus_whose_ledger_no_event_explains(api: Api, hours: list[datetime]) -> None:
    found = answer_of(api, "/recount?since=2026-11-20T04:00:00Z&until=2026-11-20T06:00:00Z&limit=3")
    assert (found["num_hours"], found["num_differences"], len(found["differences"])) == (2, 8, 3)
    assert found["difference_ms"] == 2 * 4 * MS
    first = found["differences"][0]
    assert (first["gpu_uuid"], first["group"], first["stored_ms"], first["recounted_ms"]) == ("GPU-3", "used", MS, 0)
    assert {one["group"]: (one["accounts"], one["recounted_ms"]) for one in found["sums"]} == {
        "used": ({"idle": MS, "lost": MS, "productive": 4 * MS}, 0),
        "empty": ({"free": 2 * MS}, 0),
    }
    assert [one["cause"] for one in found["not_recounted"]] == ["within_use", "within_empty"]


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("since=2026-11-20T04:00:00Z&until=2026-11-19T04:00:00Z", "until", "before_since"),
        ("since=2026-09-20T04:00:00Z&until=2026-11-20T04:00:00Z", "since", "too_long"),
        ("since=2026-11-20T04:00:00Z&until=2026-11-20T06:00:00Z&gpu=GPU-none", "gpu", "unknown_gpu"),
        ("since=yesterday", "since", "no_moment"),
    ],
)
def test_a_recount_refuses_what_it_cannot_do(api: Api, query: str, field: str, code: str) -> None:
    answer = api.client.get(f"/v1/ledger/recount?{query}", headers=api.headers("operator"))
    assert answer.status_code == 422, answer.text
    assert [(each["pointer"], each["code"]) for each in answer.json()["errors"]] == [(field, code)]
    assert api.client.get("/v1/ledger/recount", headers=api.headers("tenant_admin")).status_code == 403
