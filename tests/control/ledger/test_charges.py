"""What tenants are charged: prices by the hour, credits by measurement, running time, and what a job cost."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import rates
from control.ledger.charges import Charges, Scope, charges
from control.ledger.job_costs import READ, cost_of_job
from ledger.accounts import Account
from muster.db.models import Attempt, AttemptHost, EvidenceRow, Gpu, LedgerEntry, LedgerHour, TrainingRank
from muster.domain.evidence.findings import Severity, Trust
from muster.domain.ids import EvidenceId, JobId
from muster.domain.rates import RateCards
from muster.domain.validation import validated
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MS = 3_600_000
MODEL = "H200"


def card(begins_at: datetime, price: str, tier: str = "on_demand", model: str = MODEL) -> dict[str, Any]:
    return {"model": model, "tier": tier, "begins_at": begins_at.isoformat(), "price_per_gpu_hour": price}


def set_cards(units: UnitOfWorkFactory, *cards: dict[str, Any], currency: str = "EUR") -> None:
    with units.begin(OPERATOR, rates.SET) as unit:
        wanted = validated(RateCards, {"currency": currency, "cards": list(cards)})
        rates.set_rates(unit, wanted, reason="test", corrects_past=True)


def add_hours(units: UnitOfWorkFactory, *hours: datetime, closed: bool = True) -> None:
    with units.begin(OPERATOR, rates.READ, quiet=True) as unit:
        for hour in hours:
            at = hour + HOUR
            row = LedgerHour(
                hour=hour, computed_at=at, closed_at=at if closed else None, num_gpus=8, capacity_ms=8 * MS
            )
            unit.session.add(row)


def add(
    units: UnitOfWorkFactory,
    fleet: Fleet,
    hour: datetime,
    account: Account,
    num_ms: int,
    *,
    job_id: str = "job_a",
    cause: str = "",
    evidence: Sequence[str] = (),
    **more: Any,
) -> None:
    given = {"revision": 0, "tier": "on_demand", "attempt_id": "att_a", "model": MODEL, "cohort_key": "c", **more}
    with units.begin(OPERATOR, rates.READ, quiet=True) as unit:
        row = LedgerEntry(
            hour=hour,
            node_id=fleet.node_id,
            account=account.value,
            cause=cause,
            num_ms=num_ms,
            gpus=["GPU-1"],
            gpu_ms=[num_ms],
            evidence=list(evidence),
            job_id=job_id,
            tenant_id=fleet.tenant_id,
            **given,
        )
        unit.session.add(row)


def add_evidence(
    units: UnitOfWorkFactory, fleet: Fleet, name: str, trust: Trust, *, severity: Severity = Severity.CONDEMNING
) -> EvidenceId:
    found = EvidenceId(name)
    with units.begin(OPERATOR, rates.READ, quiet=True) as unit:
        row = EvidenceRow(
            id=found,
            gpu_uuid=None,
            node_id=fleet.node_id,
            detector="xid",
            detector_version=1,
            fault_key=name,
            severity=severity,
            trust=trust,
            sources=[],
            onset_at=NOON,
            last_seen_at=NOON,
            counts_for_ms=1,
            summary="fell off the bus",
            threatens_correctness=False,
            values={},
            created_at=NOON,
        )
        unit.session.add(row)
    return found


def found(units: UnitOfWorkFactory, fleet: Fleet, *, now: datetime | None = None) -> Charges:
    with units.read() as session:
        return charges(session, Scope([fleet.tenant_id]), NOON - 12 * HOUR, NOON + 12 * HOUR, now=now)


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


@pytest.fixture
def priced(units: UnitOfWorkFactory, fleet: Fleet) -> Fleet:
    """An hour of a GPU costs 2 from noon on, and the hour at noon is counted."""
    set_cards(units, card(NOON, "2"))
    add_hours(units, NOON)
    return fleet


def test_time_that_corrections_took_away_has_no_line(units: UnitOfWorkFactory, priced: Fleet) -> None:
    add(units, priced, NOON, Account.IDLE, MS)
    add(units, priced, NOON, Account.IDLE, -MS, revision=1)
    add(units, priced, NOON, Account.PRODUCTIVE, MS, revision=1)
    (line,) = found(units, priced).lines
    assert (line.key.account, line.num_ms) == (Account.PRODUCTIVE, MS)


def test_a_card_that_changes_within_a_job_prices_each_hour_by_its_own(units: UnitOfWorkFactory, fleet: Fleet) -> None:
    set_cards(units, card(NOON - 24 * HOUR, "2"), card(NOON + HOUR, "3.5"))
    add_hours(units, NOON, NOON + HOUR)
    add(units, fleet, NOON, Account.PRODUCTIVE, 8 * MS)
    add(units, fleet, NOON + HOUR, Account.PRODUCTIVE, 8 * MS)
    lines = found(units, fleet).lines
    assert [(line.price, line.amount(2)) for line in lines] == [
        (Decimal(2), Decimal("16.00")),
        (Decimal("3.5"), Decimal("28.00")),
    ]
    assert found(units, fleet).sums.due == Decimal("44.00")


def test_what_no_card_prices_is_unpriced_and_never_free(units: UnitOfWorkFactory, fleet: Fleet) -> None:
    set_cards(units, card(NOON + HOUR, "2"), card(NOON, "9", model="H100"))
    add_hours(units, NOON, NOON + HOUR)
    add(units, fleet, NOON, Account.PRODUCTIVE, MS)
    add(units, fleet, NOON + HOUR, Account.PRODUCTIVE, MS)
    before, after = found(units, fleet).lines
    assert (before.price, before.amount(2)) == (None, None)
    assert after.amount(2) == Decimal("2.00")
    assert found(units, fleet).sums.unpriced_ms == MS


def test_the_proof_of_cleanness_and_time_without_an_attempt_are_not_charged(
    units: UnitOfWorkFactory, priced: Fleet
) -> None:
    add(units, priced, NOON, Account.CLEANING, MS)
    add(units, priced, NOON, Account.NO_CONTACT, MS)
    assert found(units, priced).lines == ()


def test_a_correction_counts_in_its_hour(units: UnitOfWorkFactory, priced: Fleet) -> None:
    add(units, priced, NOON, Account.PRODUCTIVE, MS)
    add(units, priced, NOON, Account.PRODUCTIVE, -MS // 2, revision=1)
    add(units, priced, NOON, Account.IDLE, MS // 2, revision=1)
    by_account = {line.key.account: line.amount(2) for line in found(units, priced).lines}
    assert by_account == {Account.PRODUCTIVE: Decimal("1.00"), Account.IDLE: Decimal("1.00")}


@pytest.mark.parametrize(
    ("account", "cause", "trust", "credited"),
    [
        (Account.LOST, "gpu_fault", Trust.MEASURED, MS),
        (Account.REPLAYED, "node_lost", Trust.MEASURED, MS),
        (Account.SLOWED, "gpu", Trust.MEASURED, MS),
        (Account.LOST, "gpu_fault", Trust.REPORTED, 0),
        (Account.LOST, "user_error", Trust.MEASURED, 0),
        (Account.SLOWED, "imbalance", Trust.MEASURED, 0),
        (Account.PRODUCTIVE, "gpu_fault", Trust.MEASURED, 0),
        (Account.RECLAIM_LOST, "reclaimed", Trust.MEASURED, 0),
    ],
)
def test_time_is_given_back_for_the_fleets_faults_that_we_measured(
    units: UnitOfWorkFactory, priced: Fleet, account: Account, cause: str, trust: Trust, credited: int
) -> None:
    evidence = add_evidence(units, priced, "ev_1", trust)
    add(units, priced, NOON, account, MS, cause=cause, evidence=[evidence])
    add(units, priced, NOON, account, MS, cause=cause)
    (line,) = found(units, priced).lines
    assert (line.num_ms, line.credited_ms) == (2 * MS, credited)
    assert line.credit(2) == -Decimal(2 * credited) / MS


def test_a_finding_for_information_gives_nothing_back(units: UnitOfWorkFactory, priced: Fleet) -> None:
    evidence = add_evidence(units, priced, "ev_1", Trust.MEASURED, severity=Severity.INFO)
    add(units, priced, NOON, Account.SLOWED, MS, cause="gpu", evidence=[evidence])
    (line,) = found(units, priced).lines
    assert line.credited_ms == 0, "a program causes such findings"


def test_an_hour_after_one_that_is_not_counted_yet_is_running_time(units: UnitOfWorkFactory, fleet: Fleet) -> None:
    set_cards(units, card(NOON, "2"))
    add_hours(units, NOON, NOON + 2 * HOUR)
    with units.begin(OPERATOR, rates.READ, quiet=True) as unit:
        unit.session.add(LedgerHour(hour=NOON + HOUR, computed_at=NOON + 2 * HOUR))
    add(units, fleet, NOON, Account.PRODUCTIVE, MS)
    add(units, fleet, NOON + 2 * HOUR, Account.PRODUCTIVE, MS)
    until_now = found(units, fleet, now=NOON + 3 * HOUR)
    assert until_now.counted_until == NOON + HOUR, "running time begins here"
    assert [line.num_ms for line in until_now.lines] == [MS]
    assert sum(line.num_ms for line in found(units, fleet).lines) == 2 * MS, "a statement has all that is counted"


def test_evidence_that_a_person_dismissed_gives_nothing_back(units: UnitOfWorkFactory, priced: Fleet) -> None:
    evidence = add_evidence(units, priced, "ev_1", Trust.MEASURED)
    add(units, priced, NOON, Account.LOST, MS, cause="gpu_fault", evidence=[evidence])
    with units.begin(OPERATOR, rates.READ, quiet=True) as unit:
        row = unit.session.get_one(EvidenceRow, evidence)
        row.dismissed_at, row.dismissed_by, row.dismiss_reason = NOON, "dana", "a loose cable"
    (line,) = found(units, priced).lines
    assert line.credited_ms == 0


def test_the_cost_of_a_running_job_has_its_counted_hours_and_the_time_since(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    fleet = make_fleet(units)
    job_id = _running(units, fleet)
    set_cards(units, *(card(clock.now - 24 * HOUR, "6", model=model) for model in _models(units)))
    clock.advance(1_800)
    with units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit:
        cost = cost_of_job(unit, job_id)
    num_gpus = fleet.num_taken_gpus()
    assert cost.charges.lines == ()
    assert sum(line.num_ms for line in cost.charges.running) == num_gpus * MS // 2
    assert cost.charges.spent == Decimal("3.00") * num_gpus
    assert (cost.step, cost.per(cost.step)) == (None, None)


def test_an_epoch_costs_what_is_spent_by_the_epochs_that_rank_0_reported(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    fleet = make_fleet(units)
    job_id = _running(units, fleet)
    set_cards(units, *(card(clock.now - 24 * HOUR, "6", model=model) for model in _models(units)))
    clock.advance(1_800)
    found = []
    for epochs in (1e-9, 1.5):
        with units.begin(OPERATOR, READ, quiet=True) as unit:
            attempt = unit.session.scalars(select(Attempt).where(Attempt.job_id == job_id)).one()
            node_id = unit.session.scalars(select(AttemptHost.node_id).limit(1)).one()
            keys: dict[str, Any] = {
                "attempt_id": attempt.id,
                "rank": 0,
                "tenant_id": attempt.tenant_id,
                "node_id": node_id,
            }
            unit.session.merge(TrainingRank(**keys, pace={"epochs": epochs}, updated_at=unit.now))
            unit.session.flush()
            found.append(cost_of_job(unit, job_id))
    assert found[0].per_epoch is None, "less than a thousandth is too little to judge by"
    assert (found[1].num_epochs, found[1].per_epoch) == (1.5, found[1].charges.spent / Decimal("1.5"))


def _running(units: UnitOfWorkFactory, fleet: Fleet) -> JobId:
    fleet.beat()
    job_id = fleet.submit()
    fleet.cycle()
    assert fleet.attempts(job_id)
    return job_id


def _models(units: UnitOfWorkFactory) -> list[str]:
    with units.read() as session:
        return sorted({gpu.model for gpu in session.query(Gpu)})
