"""The health score: what evidence takes off, how it decays, and until when a band holds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.evidence.proofs import Proofs
from health.scoring.score import Band, band_of, score, weighing_as_one
from health.standing.counterfactual import recovery_paths
from health.standing.what_if import Kind, Situation
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import HealthPolicy, ScorePolicy
from muster.domain.states import Standing
from tests.health.case_factory import (
    DAY,
    HOUR,
    MINUTE,
    NOW_MS,
    POLICY,
    SECOND,
    as_fault,
    case,
    condemning,
    degraded,
    evidence,
)
from tests.health.strategies import any_evidence, many_evidences

LINES = POLICY.score
LATER = st.integers(0, 30 * DAY)


def test_a_gpu_without_evidence_has_a_whole_score_for_ever() -> None:
    whole = score((), POLICY, NOW_MS)
    assert (whole.value, whole.band, whole.valid_until_ms, whole.shares) == (100.0, Band.GOOD, None, ())


@pytest.mark.parametrize(
    ("severity", "value"),
    [(Severity.INFO, 100.0), (Severity.WARNING, 92.0), (Severity.DEGRADED, 65.0), (Severity.CONDEMNING, 0.0)],
)
def test_evidence_weighs_by_its_severity(severity: Severity, value: float) -> None:
    assert score([evidence("one", severity)], POLICY, NOW_MS).value == value


def test_what_is_only_to_be_watched_weighs_once_however_often_it_is_logged() -> None:
    logged = [evidence(str(number), at_ms=NOW_MS - number * 10_000) for number in range(50)]
    assert score(logged, POLICY, NOW_MS).value == 92.0
    of_two_faults = [*logged, *(replace(as_fault(each, "xid:92"), id=EvidenceId(f"{each.id}-92")) for each in logged)]
    assert score(of_two_faults, POLICY, NOW_MS).value == 84.0
    assert score([degraded("one"), degraded("two")], POLICY, NOW_MS).value == 30.0, "what is worse weighs each time"


@pytest.mark.parametrize(
    ("code", "gap_ms", "weighing"),
    [
        (46, 3 * MINUTE, ["ev_second"]),
        (46, 3 * MINUTE + 1, ["ev_second", "ev_first"]),
        (79, 3 * HOUR, ["ev_second"]),
        (79, 3 * HOUR + 1, ["ev_second", "ev_first"]),
    ],
)
def test_one_fault_again_weighs_once_within_three_minutes_and_within_three_hours_if_it_sticks(
    code: int, gap_ms: int, weighing: list[str]
) -> None:
    first, second = (
        replace(degraded(name, at_ms, fault=f"xid:{code}"), values={"code": float(code)})
        for name, at_ms in (("first", NOW_MS - gap_ms), ("second", NOW_MS))
    )
    assert [name for name, _ in score([first, second], POLICY, NOW_MS).shares] == weighing
    another = replace(as_fault(first, "xid:110"), values={"code": 110.0})
    assert score([another, second], POLICY, NOW_MS).value < 40.0, "of two faults each weighs"


def test_of_a_burst_the_heaviest_weighs_and_the_next_where_that_is_dismissed() -> None:
    burst = [degraded(str(at), NOW_MS - at * MINUTE, fault="xid:46") for at in range(3)]
    assert [name for name, _ in score(burst, POLICY, NOW_MS).shares] == ["ev_0"]
    dismissed = [replace(burst[0], is_dismissed=True), *burst[1:]]
    assert [name for name, _ in score(dismissed, POLICY, NOW_MS).shares] == ["ev_1"]
    assert weighing_as_one(dismissed, POLICY, NOW_MS) == (tuple(burst[1:]),)


def test_evidence_between_two_bursts_never_raises_the_score() -> None:
    apart = [degraded(str(at), NOW_MS - at * 2 * MINUTE, fault="xid:46") for at in (0, 2)]
    between = degraded("1", NOW_MS - 2 * MINUTE, fault="xid:46")
    assert score([*apart, between], POLICY, NOW_MS).value <= score(apart, POLICY, NOW_MS).value < 35.0


def test_a_fault_that_goes_on_for_long_weighs_by_burst() -> None:
    for_an_hour = [degraded(str(at), NOW_MS - at * MINUTE, fault="xid:46") for at in range(60)]
    assert [len(score(for_an_hour[:num], POLICY, NOW_MS).shares) for num in (4, 5, 8, 9)] == [1, 2, 2, 3]
    assert score(for_an_hour, POLICY, NOW_MS).value == 0.0


def test_evidence_weighs_half_after_its_half_life_and_nothing_at_its_end() -> None:
    found = [degraded("one")]
    values = [score(found, POLICY, NOW_MS + after).value for after in (0, 12 * HOUR, 24 * HOUR, 7 * DAY)]
    assert values == [65.0, 82.5, 91.25, 100.0]


def test_condemning_evidence_weighs_in_full_until_a_later_proof() -> None:
    found = [condemning("one")]
    for after in (0, 28 * DAY, 500 * DAY):
        assert score(found, POLICY, NOW_MS + after).value == 0.0
    assert score(found, POLICY, NOW_MS + DAY, proofs=Proofs.of_all(NOW_MS + HOUR)).value == 100.0
    assert score(found, POLICY, NOW_MS + DAY, proofs=Proofs.of_all(NOW_MS)).value == 0.0


@pytest.mark.parametrize("change", [{"is_dismissed": True}, {"is_suspended": True}, {"gpu_uuid": None}])
def test_dismissed_suspended_and_the_nodes_own_evidence_weighs_nothing(change: dict[str, object]) -> None:
    taken_out = replace(condemning("one"), **change)  # type: ignore[arg-type]
    assert score([taken_out], POLICY, NOW_MS) == score((), POLICY, NOW_MS)


def test_evidence_that_came_as_history_weighs_nothing() -> None:
    assert score([replace(degraded("late"), counts_for_ms=0)], POLICY, NOW_MS).value == 100.0


def test_reported_evidence_alone_never_goes_under_the_quarantine_line() -> None:
    reported = [evidence(str(n), Severity.CONDEMNING, trust=Trust.REPORTED, fault=f"xid:{n}") for n in range(50)]
    found = score(reported, POLICY, NOW_MS)
    assert found.value == 40.0
    assert found.value >= LINES.quarantine_line
    assert found.measured_value == 100.0


def test_shares_name_what_weighs_the_heaviest_first() -> None:
    found = score([evidence("a"), degraded("b"), evidence("info", Severity.INFO)], POLICY, NOW_MS)
    assert found.shares == (("ev_b", 35.0), ("ev_a", 8.0))


@pytest.mark.parametrize(
    ("value", "band"),
    [
        (100, Band.GOOD),
        (85, Band.GOOD),
        (84.999, Band.FAIR),
        (70, Band.FAIR),
        (69.999, Band.POOR),
        (30, Band.POOR),
        (29.999, Band.BAD),
        (0, Band.BAD),
    ],
)
def test_bands_lie_between_the_lines(value: float, band: Band) -> None:
    assert band_of(value, LINES) is band


@given(many_evidences, any_evidence())
def test_more_evidence_never_raises_the_score(found: tuple[Evidence, ...], more: Evidence) -> None:
    assert score((*found, more), POLICY, NOW_MS).value <= score(found, POLICY, NOW_MS).value


@given(many_evidences, LATER)
def test_time_alone_never_lowers_the_score(found: tuple[Evidence, ...], after: int) -> None:
    assert score(found, POLICY, NOW_MS + after).value >= score(found, POLICY, NOW_MS).value


@given(many_evidences)
def test_the_score_lies_between_nothing_and_a_hundred(found: tuple[Evidence, ...]) -> None:
    result = score(found, POLICY, NOW_MS)
    assert 0 <= result.value <= result.measured_value <= 100


@given(many_evidences)
def test_a_band_holds_exactly_until_it_states(found: tuple[Evidence, ...]) -> None:
    now = score(found, POLICY, NOW_MS)
    if now.valid_until_ms is None:
        assert score(found, POLICY, NOW_MS + 1000 * DAY).band is now.band
        return
    assert now.valid_until_ms > NOW_MS
    assert score(found, POLICY, now.valid_until_ms - 1).band is now.band
    assert score(found, POLICY, now.valid_until_ms).band is not now.band


@given(many_evidences, st.data())
def test_the_order_of_evidence_decides_nothing(found: tuple[Evidence, ...], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(found))
    assert score(shuffled, POLICY, NOW_MS) == score(found, POLICY, NOW_MS)


def test_a_policy_whose_reported_evidence_could_quarantine_is_refused() -> None:
    with pytest.raises(ValueError, match="reported evidence alone"):
        ScorePolicy(reported_points_max=71.0)


def test_a_policy_whose_lines_are_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="quarantine_line < lower_line"):
        ScorePolicy(lower_line=90.0)


def test_a_detectors_own_weight_counts_in_score_band_and_way_back() -> None:
    own = {"points": 60.0, "half_life_s": 3600.0, "counts_for_s": 86_400.0}
    policy = HealthPolicy.model_validate({"score": {"weights_of": {"fabric_state": {"degraded": own}}}})
    found = evidence("one", Severity.DEGRADED, detector="fabric_state", fault="fabric_state")
    assert score([found], policy, NOW_MS).value == 40.0
    assert score([found], policy, NOW_MS + HOUR).value == 70.0
    assert score([found], policy, NOW_MS).valid_until_ms == pytest.approx(NOW_MS + HOUR, abs=SECOND)
    gpu = case(Standing.SUSPECT, found, since_ms=NOW_MS, origin=Standing.HEALTHY)
    ways = recovery_paths(Situation(gpu), DEFAULT_POLICY.tiers["on_demand"], NOW_MS, policy)
    (back_ms,) = [way.at_ms for way in ways if [each.kind for each in way.conditions] == [Kind.TIME]]
    assert back_ms == pytest.approx(NOW_MS + 2 * HOUR + 30 * MINUTE, abs=SECOND)
