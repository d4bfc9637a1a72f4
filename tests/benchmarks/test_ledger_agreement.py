"""Hours whose workers die agree with the simulator's truth, and an hour that is counted wrong is found."""

from collections.abc import Iterator
from decimal import Decimal

import pytest
from sqlalchemy import Engine, text

from benchmarks.ledger_agreement import LineKey, agreement_of, expected_lines
from benchmarks.ledger_crashes import BEGIN, crashed
from benchmarks.ledger_rows import MonthRows
from ledger.accounts import Account
from muster.db.engine import NO_LIMITS, make_engine
from simulator.month.history import Shape, play_month
from simulator.month.reports import Reports, silences_of

PRICES = dict.fromkeys(("reserved", "on_demand", "spot"), ("2.00", "1.00"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url, limits=NO_LIMITS)
    yield engine
    engine.dispose()


def test_hours_whose_workers_die_are_counted_once_and_truly(engine: Engine, database_url: str) -> None:
    found, counts = crashed(engine, database_url, 5, 3)
    assert found.faults == []
    assert (found.num_different, found.num_counted_twice, found.num_facts_different) == (0, 0, 0)
    assert (found.state["hours"], found.state["open"], found.state["closed_twice"]) == (5, 0, 0)
    assert found.num_cells == 5 * 16
    assert sum(num for name, num in counts.items() if name.startswith("killed")) > 0


def test_what_is_counted_twice_or_lost_is_found(engine: Engine) -> None:
    history = play_month(Shape(1, 2 / 24), 7)
    reports = Reports(history, silences_of(history, 7))
    rows = MonthRows(engine, reports, BEGIN)
    rows.fill()
    rows.play()
    before = agreement_of(engine, reports, BEGIN, (1,))
    assert (before.num_different, before.num_counted_twice, before.num_facts_different) == (0, 0, 0)
    lines = expected_lines(before, PRICES)
    for key, (amount, credit) in lines.items():
        hours = Decimal(before.line_ms[key]) / 3_600_000
        assert abs(amount - hours * (1 if key.period else 2)) <= Decimal("0.005")
        assert credit in {0, -amount}
    assert {key.account for key in lines} >= {Account.PRODUCTIVE}
    assert {type(key) for key in lines} == {LineKey}
    with engine.begin() as connection:
        connection.execute(text("UPDATE ledger_facts SET num_ms = num_ms + 1 WHERE span_s = 86400"))
        connection.execute(
            text("""
            INSERT INTO ledger_entries (hour, revision, node_id, account, cause, num_ms, gpus, gpu_ms, evidence, model,
                cohort_key, attempt_id)
            SELECT hour, 1, node_id, account, cause, num_ms, gpus, gpu_ms, evidence, model, cohort_key, attempt_id
            FROM ledger_entries ORDER BY id LIMIT 1
            """)
        )
    after = agreement_of(engine, reports, BEGIN, (1,))
    assert after.num_counted_twice > 0
    assert after.num_different > 0
    assert after.num_facts_different > 0
    assert after.faults
