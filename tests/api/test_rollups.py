"""``GET /v1/health/rollups``: groups now, as of a time and over time, by the page, and what a tenant gets of them."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import update

from control.fleet import inventory
from control.health.rollups import take_once
from muster.db.models import Gpu, Node
from muster.domain.states import Contact
from tests.api.conftest import Api
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host

URL = "/v1/health/rollups"


@pytest.fixture
def hand() -> SetClock:
    return SetClock()


@pytest.fixture
def api_clock(hand: SetClock) -> Callable[[], datetime]:
    return hand


def ask(api: Api, *, by: str, role: str = "auditor", status: int = 200, **query: Any) -> dict[str, Any]:
    answer = api.client.get(URL, params={"by": by, **query}, headers=api.headers(role))
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def rounds(api: Api, hand: SetClock) -> Api:
    """Two rounds an hour apart: in the second a GPU of beta is worse."""
    enrol_host(api.units, "beta", rack="r2")
    with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(update(Node).values(contact=Contact.LIVE))
    assert take_once(api.units)
    hand.advance(3600)
    with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(update(Gpu).where(Gpu.uuid == "GPU-beta-1").values(score=40))
    assert take_once(api.units)
    return api


def test_groups_come_the_worst_first_with_figures_that_add_up(rounds: Api) -> None:
    beta, alpha = ask(rounds, by="node")["items"]
    assert (beta["name"], beta["score"], beta["worst"], beta["mean"]) == ("beta", 40.0, 40, 70.0)
    assert alpha["score"] == 100.0
    (fleet,) = ask(rounds, by="fleet")["items"]
    assert (fleet["key"], fleet["name"], fleet["score"]) == (None, None, 70.0)
    assert fleet["num_gpus"] == 4 == sum(fleet[f"num_{use}"] for use in ("in_use", "reserved", "free", "out"))
    assert sum(fleet["standings"].values()) == 4
    assert fleet["num_healthy"] == 4


def test_the_past_is_as_of_a_time_or_of_a_stretch(rounds: Api) -> None:
    assert ask(rounds, by="fleet", at="2020-01-01T00:00:00Z")["items"] == []
    whole = ask(rounds, by="fleet", step="five_minutes")["items"]
    assert [each["score"] for each in whole] == [100.0, 70.0]
    assert ask(rounds, by="fleet", at=whole[0]["at"])["items"] == whole[:1]
    assert [each["name"] for each in ask(rounds, by="rack", since=whole[0]["at"], group="r2")["items"]] == ["r2"] * 2
    assert ask(rounds, by="rack", until="2020-01-01T00:00:00Z")["items"] == []


def test_pages_are_of_one_round_and_a_cursor_of_one_question(rounds: Api) -> None:
    first = ask(rounds, by="node", limit=1)
    second = ask(rounds, by="node", limit=1, cursor=first["next_cursor"])
    assert [each["name"] for each in (*first["items"], *second["items"])] == ["beta", "alpha"]
    assert second["next_cursor"] is None
    ask(rounds, by="rack", limit=1, cursor=first["next_cursor"], status=400)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"by": "planet"}, "by"),
        ({"by": "rack", "at": "yesterday"}, "at"),
        ({"by": "rack", "at": "2026-11-28T00:00:00Z", "since": "2026-11-27T00:00:00Z"}, "at"),
        ({"by": "rack", "step": "week"}, "step"),
        ({"by": "rack", "limit": 0}, "limit"),
        ({"by": "rack", "group": ""}, "group"),
        ({"by": "rack", "group": "a\0b"}, "group"),
        ({"by": "rack", "at": "9999-12-31T23:59:59Z"}, "at"),
    ],
)
def test_a_bad_question_is_refused_by_name(api: Api, query: dict[str, Any], field: str) -> None:
    problem = ask(api, **query, status=422)
    assert field in str(problem)


def test_a_tenant_reads_its_own_alone(rounds: Api, hand: SetClock) -> None:
    rounds.fleet.submit(shape={"nodes": 1, "gpus_per_node": 2})
    rounds.fleet.beat()
    rounds.fleet.cycle()
    hand.advance(300)
    assert take_once(rounds.units)
    (own,) = ask(rounds, by="tenant", role="tenant_member")["items"]
    assert (own["key"], own["num_gpus"], own["num_in_use"]) == (rounds.fleet.tenant_id, 2, 2)
    problem = ask(rounds, by="rack", role="tenant_member", status=403)
    assert "by tenant alone" in problem["detail"]
