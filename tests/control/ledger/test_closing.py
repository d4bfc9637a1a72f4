"""Hours are computed, closed and corrected, and each millisecond of a GPU is counted once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.late_reports import note_late
from control.ledger import closing
from control.ledger.closing import keep_ledger_once
from control.ledger.marks import joined_gaps
from control.policy import policies
from control.system.retention import sweep_once
from muster.db.models import Node, TrainingStep
from muster.domain.policy.document import Policy, RetentionPolicy
from muster.domain.times import to_ms
from muster.failpoints import FailpointError, arming
from tests.control.ledger.played_hour import FOUR, HOUR_MS, PlayedHour
from tests.fleet_factory import OPERATOR
from tests.lock_waits import wait_for_a_lock

FIVE = FOUR + timedelta(hours=1)
POINTS = (
    *(f"{action}.{place}_commit" for action in (closing.TAKE, closing.STORE) for place in ("before", "after")),
    *(closing.REMOVED, closing.ADDED, closing.SUMMED),
)


def trained_an_hour(played: PlayedHour) -> None:
    """One GPU: starts at 4:10, steps of 10 minutes from 4:15 to 4:45, ends at 4:50. The other one is free."""
    played.at(10)
    played.start()
    for number, minutes in enumerate((25, 35, 45), start=1):
        played.at(minutes)
        played.step(number, 600.0)
    played.at(50)
    played.end()
    played.at(55)
    played.host.beat()


def test_an_hour_is_accounted_for_to_the_millisecond_and_closed(played: PlayedHour) -> None:
    trained_an_hour(played)
    played.at(64)
    assert played.keep() == 0, "it is too young"
    played.at(66)
    played.host.beat()
    assert played.keep() == 1
    (hour,) = played.hours()
    assert (hour.num_gpus, hour.capacity_ms, hour.unexplained_ms) == (2, 2 * HOUR_MS, 0)
    assert (hour.awaits, hour.closed_at) == (0, played.clock.now)
    found = played.seconds()
    assert sum(found.values()) == 7200
    assert (found["productive"], found["starting"], found["idle"]) == (1800.0, 300.0, 300.0)
    assert found["free"] == 7200 - 2400 - found.get("no_contact", 0)
    assert played.facts(3600) == played.facts(86_400) == found
    assert played.events() == ["ledger.hour_closed"]
    (productive,) = [entry for entry in played.entries() if entry.account == "productive"]
    assert productive.attempt_id == played.attempts[0][0]
    assert productive.tenant_id == played.fleet.tenant_id
    assert productive.job_class == "standard", "the class of a job that names none"
    assert (productive.gpu_ms, productive.model) == ([1_800_000], "Simulated H100")


def test_an_hour_stays_provisional_while_a_host_may_report_and_is_closed_after_26_hours(played: PlayedHour) -> None:
    played.at(10)
    played.start()
    played.at(20)
    played.step(1, 60.0)
    played.at(66)
    assert played.keep() == 1
    (hour,) = played.hours()
    assert (hour.awaits, hour.closed_at) == (1, None)
    assert played.seconds()["productive"] == 60
    played.at(82)
    assert played.keep() == 1
    assert played.hours()[0].computed_at == FIVE + timedelta(minutes=6), "no mark has passed, so nothing was computed"
    played.step(2, 60.0)
    played.at(98)
    assert played.keep() == 1
    assert played.hours()[0].closed_at == played.clock.now, "the host has reported of a later time"
    played.at(6, hour=FOUR + timedelta(hours=27))
    played.keep()
    assert played.hours()[0].due_at is None
    assert [hour.closed_at is None for hour in played.hours()[1:3]] == [True, True]
    assert played.events()[:1] == ["ledger.hour_closed"]
    played.at(6, hour=FOUR + timedelta(hours=28))
    played.keep()
    assert played.hours()[1].awaits == 1
    assert played.hours()[1].closed_at == played.clock.now, "no report of the attempt came"


def test_a_late_report_adds_a_correction_and_changes_no_entry(played: PlayedHour) -> None:
    trained_an_hour(played)
    played.at(66)
    played.keep()
    before = {entry.id: (entry.account, entry.num_ms) for entry in played.entries()}
    played.at(90)
    played.step(4, 240.0, at_ms=to_ms(FOUR + timedelta(minutes=49)))
    assert played.keep() == 0, "its host may send more of it"
    played.at(106)
    assert played.keep() == 1
    after = {entry.id: (entry.account, entry.num_ms) for entry in played.entries()}
    assert {key: after[key] for key in before} == before
    assert {after[key] for key in after.keys() - before.keys()} == {("productive", 240_000), ("idle", -240_000)}
    assert {entry.revision for entry in played.entries() if entry.id not in before} == {1}
    assert played.hours()[0].revision == 1
    found = played.seconds()
    assert (found["productive"], found["idle"], sum(found.values())) == (2040.0, 60.0, 7200.0)
    assert played.facts(3600)["productive"] == 2040.0
    assert played.events() == ["ledger.hour_closed", "ledger.hour_corrected"]


def test_what_a_host_is_called_since_corrects_no_hour(played: PlayedHour) -> None:
    trained_an_hour(played)
    played.at(66)
    played.keep()
    with played.units.begin(OPERATOR, closing.STORE, quiet=True) as unit:
        node = unit.session.get_one(Node, played.fleet.node_id)
        node.rack, node.labels = "r9", {"site": "new"}
    played.at(6, hour=FOUR + timedelta(hours=27))
    played.keep()
    assert played.hours()[0].due_at is None, "its last look"
    assert {(entry.revision, entry.rack, entry.site) for entry in played.entries() if entry.hour == FOUR} == {
        (0, None, None)
    }
    assert {entry.site for entry in played.entries() if entry.hour == FOUR + timedelta(hours=26)} == {"new"}


def test_a_report_about_an_hour_whose_entries_are_dropped_changes_nothing(played: PlayedHour) -> None:
    trained_an_hour(played)
    played.at(66)
    played.keep()
    number = len(played.entries())
    assert number > 1
    played.at(6, hour=FOUR + timedelta(hours=27))
    with played.units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, Policy(retention=RetentionPolicy(ledger_entries_days=1)), reason="test")
    assert sweep_once(played.units, batch=1)["ledger_entries"] == number, "an hour goes as a whole"
    with played.units.begin(OPERATOR, closing.STORE, quiet=True) as unit:
        note_late(unit, FOUR, FIVE - timedelta(minutes=1))
    played.at(30, hour=FOUR + timedelta(hours=27))
    played.keep()
    (hour,) = [hour for hour in played.hours() if hour.hour == FOUR]
    assert (hour.revision, hour.due_at) == (0, None)
    assert played.seconds() == {}
    assert played.facts(3600)["productive"] == 1800, "its sums stay"


def test_a_gap_stays_when_the_report_of_it_is_dropped() -> None:
    before = {"nodes": {"node_a": [[0, 5]], "node_b": [[1, 2]]}, "restores": [[3, 4]]}
    assert joined_gaps(before, {}) == before
    assert joined_gaps(before, {"nodes": {"node_b": [[1, 3]]}}) == {
        "nodes": {"node_a": [[0, 5]], "node_b": [[1, 3]]},
        "restores": [[3, 4]],
    }
    assert joined_gaps({}, {}) == {}


def test_gaps_of_two_computations_that_overlap_are_joined() -> None:
    before = {"nodes": {"node_a": [[1, 5], [20, 30]]}, "restores": [[1, 4]]}
    now = {"nodes": {"node_a": [[4, 9]]}, "restores": [[3, 6], [8, 9]]}
    assert joined_gaps(before, now) == {"nodes": {"node_a": [[1, 9], [20, 30]]}, "restores": [[1, 6], [8, 9]]}


@pytest.mark.parametrize("step_s", [1e300, -1e300])
def test_what_a_program_reports_cannot_stop_the_hour_of_the_fleet(played: PlayedHour, step_s: float) -> None:
    trained_an_hour(played)
    played.at(51)
    part_s = dict.fromkeys(("data_s", "forward_s", "backward_s", "collective_s", "optimizer_s", "checkpoint_s"), 1e300)
    at_ms = to_ms(FOUR + timedelta(minutes=49))
    played.step(4, step_s, at_ms=at_ms)
    pace: dict[str, object] = {"type": "pace", "step": 4, "num_steps": (1 << 53) - 1, **part_s, "other_s": 1e300}
    played.offset = played.host.report_words(*played.attempts[-1], pace, at_ms=at_ms, offset=played.offset).offset
    with played.units.read() as session:
        assert session.scalars(select(TrainingStep.pace).where(TrainingStep.step == 4)).one() is not None
    played.at(66)
    played.host.beat()
    assert played.keep() == 1
    assert sum(played.seconds().values()) == 7200


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_anywhere_counts_nothing_twice(played: PlayedHour, point: str) -> None:
    trained_an_hour(played)
    played.at(66)
    with arming(f"{point}=raise"), pytest.raises(FailpointError):
        keep_ledger_once(played.units)
    played.at(87)
    played.keep()
    assert sum(played.seconds().values()) == 7200
    assert played.seconds()["productive"] == 1800
    assert played.facts(3600) == played.facts(86_400) == played.seconds()
    assert played.events() == ["ledger.hour_closed"]


def test_an_hour_that_one_worker_computes_is_not_computed_by_another(played: PlayedHour) -> None:
    trained_an_hour(played)
    played.at(66)
    taken = closing._take(played.units)
    assert taken is not None
    assert not keep_ledger_once(played.units)
    computed = closing._compute(played.units, taken)
    played.at(87)
    assert keep_ledger_once(played.units), "the first one was given up"
    with played.units.begin(closing._PRINCIPAL, closing.STORE, quiet=True) as unit:
        closing._store(unit, taken, computed)
    assert sum(played.seconds().values()) == 7200
    assert played.events() == ["ledger.hour_closed"]


def test_two_workers_store_hours_of_one_day_one_after_the_other(played: PlayedHour) -> None:
    trained_an_hour(played)
    played.at(6, hour=FIVE + timedelta(hours=1))
    taken = [closing._take(played.units), closing._take(played.units)]
    first, second = [one for one in taken if one is not None]
    computed = closing._compute(played.units, second)
    with ThreadPoolExecutor(1) as others:
        with played.units.begin(closing._PRINCIPAL, closing.STORE, quiet=True) as unit:
            closing._store(unit, first, closing._compute(played.units, first))
            unit.session.flush()
            other = others.submit(store, played, second, computed)
            wait_for_a_lock(played.units)
        other.result()
    assert sum(played.facts(86_400).values()) == sum(played.facts(3600).values()) == 2 * 7200


def store(played: PlayedHour, taken: closing.Taken, computed: closing.Computed) -> None:
    with played.units.begin(closing._PRINCIPAL, closing.STORE, quiet=True) as unit:
        closing._store(unit, taken, computed)
