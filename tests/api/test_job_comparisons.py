"""Jobs side by side by REST and by the command: speed, use, tokens for money, and why a figure is missing."""

import csv
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select

from control.jobs import jobs
from control.ledger.figure_counts import MOST_RATE
from control.ledger.job_comparisons import MOST_JOBS, READ, compare
from muster.db.models import Attempt, AttemptHost, Gpu, TrainingRank, TrainingStep
from muster.domain.ids import JobId
from tests.api.conftest import Api
from tests.api.test_rates import get, put
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR
from tests.sent_statements import statements_of

STEPS = 80
PACE = {"num_steps": 1, "data_s": 0.1, "forward_s": 0.3, "backward_s": 0.3, "collective_s": 0.2, "optimizer_s": 0.1}
A_SECOND = Decimal("0.001")
"""What a second of a GPU costs, at 3.60 an hour."""


@pytest.fixture
def api_clock() -> SetClock:
    return SetClock()


class Trained:
    """Jobs on a priced fleet, of which each may report its training."""

    def __init__(self, api: Api, clock: SetClock) -> None:
        self.api = api
        self.clock = clock
        api.fleet.beat()

    def price(self, an_hour: str = "3.6") -> None:
        with self.api.units.read() as session:
            models = sorted({gpu.model for gpu in session.query(Gpu)})
        begun = (self.clock.now - timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
        cards = [
            {"model": model, "tier": "on_demand", "begins_at": begun.isoformat(), "price_per_gpu_hour": an_hour}
            for model in models
        ]
        put(self.api, {"currency": "EUR", "cards": cards})

    def placed(self, name: str) -> JobId:
        job_id = self.api.fleet.submit(name=name)
        self.api.fleet.reconcile()
        self.api.fleet.cycle()
        assert self.api.fleet.attempts(job_id)
        return job_id

    def trains(self, job_id: JobId, tokens_per_step: float | None, *, last: int = STEPS, step_s: float = 1.0) -> None:
        """Report steps of a second each, which begin 10 s after the placement, and end the attempt 10 s after them."""
        with self.api.units.begin(OPERATOR, jobs.READ, quiet=True) as unit:
            attempt = unit.session.scalars(select(Attempt).where(Attempt.job_id == job_id)).one()
            part = unit.session.scalars(select(AttemptHost).where(AttemptHost.attempt_id == attempt.id)).one()
            whose: dict[str, Any] = {"attempt_id": attempt.id, "tenant_id": attempt.tenant_id}
            began_at = attempt.placed_at + timedelta(seconds=10)
            unit.session.add_all(
                TrainingStep(
                    **whose, step=1 + number, job_id=job_id, step_s=step_s, at=began_at + timedelta(seconds=1 + number)
                )
                for number in range(STEPS)
            )
            unit.session.add(
                TrainingRank(
                    **whose,
                    rank=0,
                    node_id=part.node_id,
                    world_size=1,
                    step=last,
                    updated_at=unit.now,
                    pace={**PACE, "tokens_per_step": tokens_per_step},
                )
            )


@pytest.fixture
def trained(api: Api, api_clock: SetClock) -> Trained:
    return Trained(api, api_clock)


def compared(api: Api, *job_ids: str) -> list[dict[str, Any]]:
    wanted = "&".join(f"job={each}" for each in job_ids)
    items: list[dict[str, Any]] = get(api, f"/v1/job-comparisons?{wanted}")["items"]
    return items


def two_jobs(trained: Trained) -> tuple[JobId, JobId]:
    """Return two jobs that ran for 100 s, 80 of them in steps: the second has three times the tokens a step."""
    first, second = trained.placed("baseline"), trained.placed("larger")
    trained.clock.advance(100)
    trained.trains(first, 500.0)
    trained.trains(second, 1_500.0)
    return first, second


def test_jobs_are_compared_by_speed_use_and_money(trained: Trained) -> None:
    trained.price()
    first, second = two_jobs(trained)
    one, other = compared(trained.api, first, second)
    assert (one["name"], other["name"]) == ("baseline", "larger")
    assert one["gpus"] == 1
    assert (one["tokens"], one["tokens_per_s"], other["tokens_per_s"]) == (80 * 500, 500.0, 1_500.0)
    assert (one["step_p50_s"], one["step_p95_s"]) == (1.0, 1.0)
    assert (one["communication_share"], one["loader_share"]) == (pytest.approx(0.2), pytest.approx(0.1))
    assert Decimal(one["gpu_hours"]) == pytest.approx(Decimal(100) / 3600, abs=Decimal("0.001"))
    spent = Decimal(one["spent"])
    assert spent == pytest.approx(100 * A_SECOND, abs=Decimal("0.001"))
    assert one["goodput"] == pytest.approx(0.8, abs=0.01)
    assert Decimal(one["price_per_gpu_hour"]) == Decimal("3.6")
    assert Decimal(one["tokens_per_unit"]) == pytest.approx(40_000 / spent, rel=Decimal("0.0001"))
    assert Decimal(one["tokens_per_unit_while_training"]) == 500_000
    assert Decimal(other["tokens_per_unit"]) == pytest.approx(3 * 40_000 / spent, rel=Decimal("0.0001"))
    assert one["missing"].keys() == {"mfu", "samples_per_s"}
    assert get(trained.api, f"/v1/jobs/{first}/cost")["per_million_tokens"] == one["per_million_tokens"]


def test_figures_of_all_ranks_are_summed_in_one_statement_and_no_history_is_read(trained: Trained) -> None:
    trained.price()
    first, second = two_jobs(trained)
    own = {**PACE, "tokens_per_step": 250.0, "samples_per_step": 4.0, "mfu": 0.4}
    with trained.api.units.begin(OPERATOR, jobs.READ, quiet=True) as unit:
        for zero in unit.session.scalars(select(TrainingRank)):
            is_first = zero.pace is not None and zero.pace["tokens_per_step"] == 500.0
            zero.world_size, zero.pace = 2, {**(zero.pace or {}), "samples_per_step": 8.0, "mfu": 0.2}
            pace = own if is_first else {**own, "tokens_per_step": None, "mfu": 1e300, "collective_s": None}
            whose: dict[str, Any] = {"attempt_id": zero.attempt_id, "tenant_id": zero.tenant_id}
            whose |= {"node_id": zero.node_id, "updated_at": unit.now, "history": {"stride": 1, "points": []}}
            unit.session.add(TrainingRank(**whose, rank=1, world_size=2, step=STEPS, pace=pace))
    with (
        trained.api.units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit,
        statements_of(unit.session.get_bind()) as sent,
    ):
        one, other = compare(unit, [first, second])
    assert (one.tokens_per_step, one.samples_per_step, one.cost.num_tokens) == (750.0, 12.0, 80 * 750)
    assert (other.tokens_per_step, other.samples_per_step, other.cost.num_tokens) == (None, 12.0, None)
    assert [one.shares.mfu, one.shares.communication] == pytest.approx([0.3, 0.2])
    assert (other.shares.mfu, other.shares.communication) == (None, None)
    assert other.shares.loader == pytest.approx(0.2 / 1.8)
    assert not [each for each in sent if "history" in each or "windows" in each]
    assert len([each for each in sent if "training_ranks" in each and "world_size" in each]) == 1


def test_a_figure_that_is_missing_states_why(trained: Trained) -> None:
    silent, queued = trained.placed("silent"), trained.api.fleet.submit(name="queued")
    trained.clock.advance(60)
    found = compared(trained.api, silent, queued)
    for item in found:
        assert {name for name, value in item.items() if value is None} == item["missing"].keys()
    assert "no rate cards are set" in found[0]["missing"]["spent"]
    assert "no step" in found[0]["missing"]["step_p50_s"]
    assert found[1]["missing"]["goodput"] == "it has had no GPU yet"
    trained.price()
    priced = compared(trained.api, silent)[0]
    assert "no step" in priced["missing"]["tokens_per_unit"]
    assert priced.keys() - priced["missing"].keys() >= {"currency", "spent", "price_per_gpu_hour"}


def test_tokens_of_a_job_that_costs_nothing_have_no_figure_by_money(trained: Trained) -> None:
    trained.price("0")
    (job_id, _) = two_jobs(trained)
    (item,) = compared(trained.api, job_id)
    of_nothing = {name for name, why in item["missing"].items() if why == "nothing was charged"}
    assert of_nothing == {"tokens_per_unit", "tokens_per_unit_while_training"}
    assert {name for name, value in item.items() if value is None} == item["missing"].keys()
    assert Decimal(item["spent"]) == Decimal(item["per_million_tokens"]) == 0


def test_more_jobs_are_compared_by_as_many_statements(trained: Trained) -> None:
    trained.price()
    first, second = two_jobs(trained)
    nums = []
    for job_ids in ((first,), (first, second)):
        with (
            trained.api.units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit,
            statements_of(unit.session.get_bind()) as sent,
        ):
            assert [each.num_attempts for each in compare(unit, job_ids)] == [1] * len(job_ids)
        nums.append(len(sent))
    assert nums[0] == nums[1] > 0


@pytest.mark.parametrize("tokens_per_step", [1e300, 1e15])
def test_a_program_that_reports_absurd_numbers_stops_no_answer(trained: Trained, tokens_per_step: float) -> None:
    trained.price("0.000001")
    job_id = trained.placed("absurd")
    trained.clock.advance(100)
    trained.trains(job_id, tokens_per_step, last=(1 << 53) - 1, step_s=1e-300)
    (item,) = compared(trained.api, job_id)
    cost = get(trained.api, f"/v1/jobs/{job_id}/cost")
    is_stated = tokens_per_step <= MOST_RATE
    assert (item["tokens"] is not None, cost["tokens"] is not None) == (is_stated, is_stated)
    assert item["tokens_per_s"] is None
    assert ("too short for a rate" in item["missing"]["tokens_per_s"]) == is_stated
    assert {name for name, value in item.items() if value is None} == item["missing"].keys()


def test_another_tenants_job_is_no_job(trained: Trained) -> None:
    job_id = trained.placed("own")
    path = f"/v1/job-comparisons?job={job_id}"
    client, headers = trained.api.client, trained.api.headers
    assert client.get(path, headers=headers("other_tenant")).status_code == 404
    assert client.get("/v1/job-comparisons?job=job_x", headers=headers()).status_code == 404
    assert client.get("/v1/job-comparisons", headers=headers()).status_code == 422
    many = "&".join([f"job={job_id}"] * (MOST_JOBS + 1))
    assert client.get(f"/v1/job-comparisons?{many}", headers=headers()).status_code == 422
    assert len(compared(trained.api, job_id, job_id)) == 1


def test_the_command_marks_the_best_and_writes_csv(typed: Typed, trained: Trained) -> None:
    trained.price()
    first, _ = two_jobs(trained)
    shown = typed.run("job", "compare", "baseline", "larger").stdout
    lines = {line.split("  ")[0]: line.split() for line in shown.splitlines()}
    assert lines["TOKENS/S"][1:] == ["500", "1,500", "*"]
    assert lines["TOKENS FOR 1 EUR"][-1] == "*"
    assert lines["STEP P50"][2:] == ["1", "s", "1", "s"], "equal values have no best"
    assert "- mfu of baseline, larger: not each rank reports it" in " ".join(shown.split())
    rows = list(csv.DictReader(typed.run("job", "compare", first, "larger", "--csv").stdout.splitlines()))
    assert [row["name"] for row in rows] == ["baseline", "larger"]
    assert "not each rank" in rows[0]["missing.mfu"]
    assert "Name two jobs or more" in typed.run("job", "compare", first, "baseline", code=2).stderr
