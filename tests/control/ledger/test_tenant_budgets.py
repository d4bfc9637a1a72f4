"""Budgets of tenants: notices, refusals, stops with notice, and what is spent before one is set."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.ledger import budgets
from control.ledger.budget_stops import keep_budgets_once
from control.ledger.budgets import Standing, Wanted
from control.policy.policies import active_policy
from control.tenants import tenants
from muster.db.models import Event, Gpu, Job, StopRequest, TenantBudget
from muster.domain.budgets import BudgetAction
from muster.domain.errors import ConflictError, ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.principals import system_principal
from muster.domain.states import JobState, StopReason
from tests.control.conftest import SetClock
from tests.control.ledger.test_charges import card, set_cards
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

KEEPER = system_principal("reconciler")


@pytest.fixture
def fleet(units: UnitOfWorkFactory, clock: SetClock) -> Fleet:
    """A host, and prices of 10 an hour for a GPU in every tier."""
    found = make_fleet(units)
    with units.read() as session:
        models = sorted({gpu.model for gpu in session.query(Gpu)})
        tiers = sorted(active_policy(session).tiers)
    start = clock.now.replace(minute=0, second=0) - timedelta(days=1)
    set_cards(units, *(card(start, "10", tier, model) for model in models for tier in tiers))
    return found


def set_budget(
    units: UnitOfWorkFactory, tenant_id: TenantId, amount: str, action: BudgetAction = BudgetAction.NOTIFY
) -> Standing:
    with units.begin(OPERATOR, budgets.SET) as unit:
        wanted = Wanted(Decimal(amount), action, (50, 80, 100))
        return budgets.set_budget(unit, tenant_id, wanted, reason="contract")


def run(fleet: Fleet, tier: str = "on_demand") -> JobId:
    fleet.beat()
    job_id = fleet.submit(tier=tier)
    fleet.cycle()
    assert fleet.attempts(job_id)
    return job_id


def notices(units: UnitOfWorkFactory) -> list[int]:
    with units.read() as session:
        rows = session.query(Event).filter(Event.kind == "tenant.budget_notice").order_by(Event.id)
        return [row.payload["reached"] for row in rows]


def stops(units: UnitOfWorkFactory) -> list[StopRequest]:
    with units.read() as session:
        return session.query(StopRequest).filter(StopRequest.reason == StopReason.BUDGET).all()


def test_notice_is_given_once_at_each_share(units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet) -> None:
    run(fleet)
    per_hour = 10 * fleet.num_taken_gpus()
    set_budget(units, fleet.tenant_id, str(per_hour))
    for minutes, expected in (
        (20, []),
        (15, [50]),
        (2, [50]),
        (14, [50, 80]),
        (10, [50, 80, 100]),
        (60, [50, 80, 100]),
    ):
        clock.advance(60 * minutes)
        keep_budgets_once(units, KEEPER)
        assert notices(units) == expected
    assert stops(units) == []


def test_a_worker_with_an_older_sum_takes_no_notice_back(
    units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(fleet)
    set_budget(units, fleet.tenant_id, str(10 * fleet.num_taken_gpus()))
    clock.advance(35 * 60)
    judged = budgets._is_due

    def is_due_late(row: TenantBudget, found: Standing) -> bool:
        monkeypatch.setattr(budgets, "_is_due", judged)
        clock.advance(30 * 60)
        keep_budgets_once(units, KEEPER)  # the other worker
        return judged(row, found)

    monkeypatch.setattr(budgets, "_is_due", is_due_late)
    keep_budgets_once(units, KEEPER)
    keep_budgets_once(units, KEEPER)
    assert notices(units) == [100]


def test_a_spent_budget_lets_no_new_jobs_in_until_it_is_lifted(
    units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet
) -> None:
    run(fleet)
    clock.advance(3_600)
    assert set_budget(units, fleet.tenant_id, "1", BudgetAction.NO_NEW_JOBS).is_spent
    assert notices(units) == [100]
    with pytest.raises(ConflictError, match="the budget of the tenant, 1 EUR until 2026-12-01"):
        fleet.submit()
    assert stops(units) == []
    with units.begin(OPERATOR, budgets.LIFT) as unit:
        budgets.lift(unit, fleet.tenant_id, reason="paid")
    assert fleet.submit()


def test_a_budget_of_a_department_counts_and_refuses_for_its_teams(
    units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet
) -> None:
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        department = tenants.create(unit, name="research").id
    with units.begin(OPERATOR, tenants.PLACE) as unit:
        tenants.place(unit, fleet.tenant_id, tenants.Place(department), reason="its department")
    run(fleet)
    clock.advance(3_600)
    assert set_budget(units, department, "1", BudgetAction.NO_NEW_JOBS).is_spent
    with pytest.raises(ConflictError, match="the budget of its department"):
        fleet.submit()


def test_reclaimable_jobs_are_stopped_with_their_notice_and_others_go_on(
    units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet
) -> None:
    run(fleet, "spot")
    waiting = fleet.submit(tier="spot", shape={"nodes": 1, "gpus_per_node": 2})
    firm = fleet.submit(tier="reserved", shape={"nodes": 1, "gpus_per_node": 2})
    clock.advance(3_600)
    set_budget(units, fleet.tenant_id, "1", BudgetAction.STOP_RECLAIMABLE)
    assert stops(units) == []  # setting it stops nothing by itself
    assert keep_budgets_once(units, KEEPER) == 1
    assert keep_budgets_once(units, KEEPER) == 0
    (stop,) = stops(units)
    with units.read() as session:
        notice_s = active_policy(session).tiers["spot"].notice_s
        states = {row.id: row.state for row in session.query(Job)}
    assert notice_s is not None
    assert stop.deadline_at - clock.now == timedelta(seconds=notice_s)
    assert (states[waiting], states[firm]) == (JobState.HELD, JobState.QUEUED)


def test_the_next_month_begins_with_nothing_spent(units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet) -> None:
    job_id = run(fleet)
    clock.advance(3_600)
    set_budget(units, fleet.tenant_id, "1", BudgetAction.NO_NEW_JOBS)
    fleet.cancel(job_id)
    clock.advance(11 * 86_400)
    with units.begin(OPERATOR, jobs.SUBMIT, dry_run=True) as unit:
        assert budgets.spent_refusal(unit.session, fleet.tenant_id, unit.now) is None


def test_a_budget_that_cannot_count_is_refused(units: UnitOfWorkFactory, clock: SetClock) -> None:
    fleet = make_fleet(units)
    with pytest.raises(ConflictError, match="no rate cards are set"):
        set_budget(units, fleet.tenant_id, "1")
    set_cards(units)
    ended = Wanted(Decimal(1), BudgetAction.NOTIFY, (), ends_at=clock.now - timedelta(days=1))
    with pytest.raises(ValidationFailedError, match="after now"), units.begin(OPERATOR, budgets.SET) as unit:
        budgets.set_budget(unit, fleet.tenant_id, ended, reason="experiment")
    far = datetime.fromisoformat("9999-12-31T23:59:59-12:00")
    unreadable = Wanted(Decimal(1), BudgetAction.NOTIFY, (), ends_at=far)
    with pytest.raises(ValidationFailedError, match="year"), units.begin(OPERATOR, budgets.SET) as unit:
        budgets.set_budget(unit, fleet.tenant_id, unreadable, reason="experiment")


def test_a_budget_in_another_currency_is_not_judged(units: UnitOfWorkFactory, clock: SetClock, fleet: Fleet) -> None:
    run(fleet)
    set_budget(units, fleet.tenant_id, "1", BudgetAction.NO_NEW_JOBS)
    set_cards(units, currency="USD")
    clock.advance(3_600)
    keep_budgets_once(units, KEEPER)
    with units.begin(OPERATOR, budgets.READ, dry_run=True, quiet=True) as unit:
        assert budgets.show(unit, fleet.tenant_id).fault == "the currency has changed"
    assert notices(units) == []
