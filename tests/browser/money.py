"""Counted time and money of the small fleet: a fortnight of hours, rate cards, budgets, credits, and idle GPUs."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import select, update

from control.core.unit_of_work import utc_now
from control.fleet import inventory
from control.ledger import budgets, rates, storing
from control.tenants import tenants
from ledger.accounts import Account
from muster.db.models import Attempt, EvidenceRow, LedgerEntry, LedgerHour
from muster.domain.budgets import BudgetAction
from muster.domain.evidence.findings import Severity, Trust
from muster.domain.ids import EvidenceId, NodeId, TenantId
from muster.domain.rates import RateCards
from muster.domain.validation import validated
from tests.browser.small_fleet import A100, H100, NUM_GPUS, SmallFleet
from tests.fleet_factory import OPERATOR

MS: Final = 3_600_000
EVERY: Final = timedelta(hours=3)
DAYS: Final = 14


class Part(NamedTuple):
    """Time of one account in an hour, in GPU-hours."""

    account: Account
    hours: float
    cause: str = ""
    job: str = ""
    model: str = H100
    tier: str = "on_demand"


def money_of(fleet: SmallFleet) -> None:
    """Have hours of the last two weeks counted and priced, of two tenants."""
    now = utc_now().replace(minute=0, second=0, microsecond=0)
    evidence = _measured(fleet, now)
    for place in range(DAYS * 24 // 3):
        hour = now - place * EVERY
        with fleet.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
            closed_at = hour + timedelta(hours=27) if place > 9 else None
            unit.session.merge(  # the browser's tests share one fleet
                LedgerHour(
                    hour=hour,
                    computed_at=hour + timedelta(hours=1),
                    closed_at=closed_at,
                    num_gpus=NUM_GPUS,
                    capacity_ms=NUM_GPUS * MS,
                )
            )
            unit.session.flush()
            unit.session.add_all(_entries(fleet, hour, place, evidence))
            unit.session.flush()
            storing.store_facts(unit.session, hour)
    _prices(fleet, now - timedelta(days=60))
    _budgets(fleet)
    _be_idle(fleet)


def _parts(fleet: SmallFleet, place: int) -> Iterator[Part]:
    pretrain, sweep, evaluation = fleet.hit.job_id, fleet.victim, fleet.beneficiary
    yield Part(Account.PRODUCTIVE, 6.2 + place % 3 / 5, job=pretrain)
    yield Part(Account.SAVING, 0.4, job=pretrain)
    yield Part(Account.STARTING, 0.15, job=pretrain)
    if place % 5 == 0:
        yield Part(Account.REPLAYED, 0.8, "gpu_fault", pretrain)
        yield Part(Account.LOST, 0.35, "gpu", pretrain)
    yield Part(Account.PRODUCTIVE, 11.5, job=sweep, model=A100, tier="spot")
    if place % 4 == 1:
        yield Part(Account.RECLAIM_LOST, 1.25, "reclaim", sweep, A100, "spot")
    yield Part(Account.IDLE, 1.7, job=evaluation, tier="reserved")
    yield Part(Account.PRODUCTIVE, 0.3, job=evaluation, tier="reserved")
    yield Part(Account.QUARANTINED, 1, "xid_95")
    yield Part(Account.CORDONED, 1)
    yield Part(Account.PENDING, 12, "quota")
    yield Part(Account.HOLD, 4, "reclaim")


def _entries(fleet: SmallFleet, hour: datetime, place: int, evidence: EvidenceId) -> Iterator[LedgerEntry]:
    parts = list(_parts(fleet, place))
    parts.append(Part(Account.FREE, NUM_GPUS - sum(each.hours for each in parts)))
    for each in parts:
        num_ms, tenant_id = round(each.hours * MS), _tenant_of(fleet, each.job)
        owned: dict[str, Any] = {"job_id": each.job, "tenant_id": tenant_id, "attempt_id": "att_of_it"}
        yield LedgerEntry(
            hour=hour,
            revision=0,
            node_id=next(iter(fleet.hosts)),
            account=each.account,
            cause=each.cause,
            num_ms=num_ms,
            gpus=["GPU-1"],
            gpu_ms=[num_ms],
            evidence=[evidence] if each.cause in {"gpu", "gpu_fault"} else [],
            model=each.model,
            cohort_key="cohort",
            rack="rack-3" if each.model == A100 else "rack-1",
            **({**owned, "tier": each.tier, "job_class": "standard"} if each.job else {}),
        )


def _tenant_of(fleet: SmallFleet, job_id: str) -> TenantId | None:
    return fleet.other.tenant_id if job_id == fleet.victim else fleet.tenant_id


def _measured(fleet: SmallFleet, now: datetime) -> EvidenceId:
    found = EvidenceId("evd_of_a_fortnight")
    with fleet.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        row = EvidenceRow(
            id=found,
            gpu_uuid=None,
            node_id=NodeId(next(iter(fleet.hosts))),
            detector="xid",
            detector_version=1,
            fault_key="xid/95",
            severity=Severity.CONDEMNING,
            trust=Trust.MEASURED,
            sources=[],
            onset_at=now - timedelta(days=9),
            last_seen_at=now - timedelta(days=9),
            counts_for_ms=1,
            summary="XID 95",
            threatens_correctness=False,
            values={},
            created_at=now - timedelta(days=9),
        )
        unit.session.add(row)
    return found


def _prices(fleet: SmallFleet, since: datetime) -> None:
    begins = since.replace(hour=0).isoformat()
    known = ((H100, "on_demand", "2.75"), (H100, "reserved", "2.10"), (A100, "spot", "0.62"))
    cards = [
        {"model": model, "tier": tier, "begins_at": begins, "price_per_gpu_hour": price} for model, tier, price in known
    ]
    for kept in (cards[:1], cards):
        with fleet.units.begin(OPERATOR, rates.SET) as unit:
            wanted = validated(RateCards, {"currency": "EUR", "cards": kept})
            rates.set_rates(unit, wanted, reason="prices of 2026", corrects_past=True)


def _budgets(fleet: SmallFleet) -> None:
    """Set a budget of each tenant but the newest."""
    with fleet.units.begin(OPERATOR, tenants.CREATE) as unit:
        tenants.create(unit, name="vision-lab")
    for tenant_id, amount, shares in ((fleet.tenant_id, "7500", [40, 75]), (fleet.other.tenant_id, "300", [50, 100])):
        with fleet.units.begin(OPERATOR, budgets.SET) as unit:
            wanted = budgets.Wanted(Decimal(amount), BudgetAction.NOTIFY, shares)
            budgets.set_budget(unit, TenantId(str(tenant_id)), wanted, reason="the contract")


def _be_idle(fleet: SmallFleet) -> None:
    """Have the newest attempt of the beneficiary's tenant known as idle since two hours ago."""
    with fleet.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        newest = select(Attempt.id).where(Attempt.job_id == fleet.hit.job_id).order_by(Attempt.fence.desc()).limit(1)
        given = {"idle_since": unit.now - timedelta(hours=2), "idle_stop_at": None}
        unit.session.execute(update(Attempt).where(Attempt.id == newest.scalar_subquery()).values(**given))
