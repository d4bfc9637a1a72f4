"""Costs by REST and by the command: of a job, and of a planned one."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from muster.db.models import Gpu
from tests.api.conftest import GOOD_JOB, Api
from tests.api.test_rates import get, put
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture

BEGUN = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)


@pytest.fixture
def priced(api: Api) -> Api:
    with api.units.read() as session:
        models = {gpu.model for gpu in session.query(Gpu)}
    cards = [
        {"model": model, "tier": "on_demand", "begins_at": BEGUN.isoformat(), "price_per_gpu_hour": "2.5"}
        for model in sorted(models)
    ]
    put(api, {"currency": "EUR", "cards": cards})
    return api


def plan(api: Api, **job: Any) -> Any:
    answer = api.client.post("/v1/job-plans", json=job, headers=api.headers())
    assert answer.status_code == 200, answer.text
    return answer.json()["cost"]


def test_a_plan_states_what_the_job_costs_at_most(priced: Api) -> None:
    cost = plan(priced, shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=7200)
    assert cost["currency"] == "EUR"
    assert (cost["per_hour_least"], cost["per_hour_most"], cost["by_wall_time"]) == ("5.00", "5.00", "10.00")
    assert plan(priced, shape={"nodes": 1, "gpus_per_node": 2})["by_wall_time"] is None
    assert plan(priced, tier="spot") is None


def test_without_cards_a_plan_states_no_cost(api: Api) -> None:
    assert plan(api, wall_time_s=60) is None


def test_a_jobs_cost_is_read_by_its_tenant(priced: Api) -> None:
    answer = priced.client.post("/v1/jobs", json=GOOD_JOB, headers=priced.headers())
    job_id = answer.json()["id"]
    cost = get(priced, f"/v1/jobs/{job_id}/cost")
    assert (cost["currency"], cost["spent"], cost["lines"], cost["per_step"]) == ("EUR", "0.00", [], None)


def test_the_command_shows_both(typed: Typed, priced: Api) -> None:
    shown = typed.run("job", "plan", "--wall-time", "2h").stdout
    assert "EUR an hour on all its GPUs" in shown
    assert "EUR, by its wall time" in shown
    assert "it has no wall time" in typed.run("job", "plan").stdout
    submitted = priced.client.post("/v1/jobs", json=GOOD_JOB, headers=priced.headers()).json()
    assert "0.00 EUR until now" in typed.run("job", "cost", submitted["id"]).stdout
    assert Decimal(plan(priced, wall_time_s=3600)["by_wall_time"]) > 0
