"""The standing table, row by row: what moves a GPU by rule, and what does not."""

from dataclasses import replace

import pytest

from health.detectors.detector import Closing
from health.evidence.evidence import close, join
from health.standing.gpu_case import BurnInResult, GpuCase, MoveReason, PastRepair
from health.standing.retirement import retirement_of
from health.standing.standing import decide, is_reclaimable_only, next_evaluation_ms
from muster.domain.evidence.findings import Severity, Trust
from muster.domain.evidence.repairs import RepairAction
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import RepairPolicy
from muster.domain.states import Standing
from tests.health.case_factory import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    NODE,
    NOW_MS,
    POLICY,
    case,
    condemning,
    degraded,
    evidence,
    fall,
    finding,
)

IN_SERVICE = [Standing.PROBATION, Standing.HEALTHY, Standing.SUSPECT]


def outcome(gpu: GpuCase, now_ms: int = NOW_MS) -> tuple[Standing, MoveReason] | None:
    move = decide(gpu, now_ms, POLICY)
    return None if move is None else (move.to_standing, move.reason)


def burn_in(began_ms: int, *, has_passed: bool = True) -> BurnInResult:
    return BurnInResult(began_ms=began_ms, ended_ms=began_ms + HOUR, has_passed=has_passed)


def test_a_new_gpu_waits_for_its_burn_in() -> None:
    assert outcome(case(Standing.UNPROVEN)) is None


def test_a_passed_burn_in_leads_to_probation() -> None:
    gpu = replace(case(Standing.UNPROVEN, since_ms=NOW_MS - DAY), burn_ins=(burn_in(NOW_MS - 2 * HOUR),))
    assert outcome(gpu) == (Standing.PROBATION, MoveReason.BURN_IN_PASSED)


def test_a_failed_burn_in_leads_to_quarantine() -> None:
    gpu = replace(case(Standing.UNPROVEN), burn_ins=(burn_in(NOW_MS - 2 * HOUR, has_passed=False),))
    move = decide(gpu, NOW_MS, POLICY)
    assert move is not None
    assert (move.to_standing, move.reason, move.return_to) == (
        Standing.QUARANTINED,
        MoveReason.BURN_IN_FAILED,
        Standing.UNPROVEN,
    )


def test_a_burn_in_from_before_it_was_unproven_proves_nothing() -> None:
    gpu = replace(case(Standing.UNPROVEN, since_ms=NOW_MS - HOUR), burn_ins=(burn_in(NOW_MS - 2 * HOUR),))
    assert outcome(gpu) is None


def test_a_burn_in_that_began_before_a_fault_proves_nothing_though_a_repair_ended_later() -> None:
    repair = PastRepair("memory", NOW_MS - 9 * HOUR, NOW_MS - HOUR, is_done=True)
    gpu = case(Standing.UNPROVEN, condemning("fault", NOW_MS - 2 * HOUR), since_ms=NOW_MS - 8 * HOUR)
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 3 * HOUR),), repairs=(repair,))) is None


def test_condemning_evidence_during_a_burn_in_outweighs_its_pass() -> None:
    seen = condemning("fault", NOW_MS - HOUR)
    gpu = replace(case(Standing.UNPROVEN, seen), burn_ins=(burn_in(NOW_MS - 2 * HOUR),))
    assert outcome(gpu) == (Standing.QUARANTINED, MoveReason.CONDEMNED)


def test_probation_ends_after_28_days_without_a_warning() -> None:
    gpu = case(Standing.PROBATION, since_ms=NOW_MS - 28 * DAY)
    assert outcome(gpu, NOW_MS - 1) is None
    assert outcome(gpu) == (Standing.HEALTHY, MoveReason.PROBATION_OVER)


def test_a_warning_begins_probation_again() -> None:
    gpu = case(Standing.PROBATION, evidence("warning", at_ms=NOW_MS - DAY), since_ms=NOW_MS - 28 * DAY)
    assert outcome(gpu) is None
    assert outcome(gpu, NOW_MS + 27 * DAY) == (Standing.HEALTHY, MoveReason.PROBATION_OVER)


def test_information_and_dismissed_warnings_do_not_lengthen_probation() -> None:
    found = [evidence("info", Severity.INFO), evidence("dismissed", is_dismissed=True)]
    assert outcome(case(Standing.PROBATION, *found, since_ms=NOW_MS - 28 * DAY)) is not None


def test_a_fault_of_the_node_does_not_lengthen_a_gpus_probation() -> None:
    of_node = evidence("node", fault="gpu_count", gpu=None)
    assert outcome(case(Standing.PROBATION, of_node, since_ms=NOW_MS - 28 * DAY)) is not None


def test_a_silent_gpu_proves_nothing() -> None:
    silent = replace(case(Standing.PROBATION, since_ms=NOW_MS - 28 * DAY), has_contact=False)
    assert outcome(silent) is None
    assert outcome(replace(case(Standing.SUSPECT), has_contact=False)) is None


def test_the_first_72_hours_of_probation_are_for_reclaimable_tiers_only() -> None:
    assert is_reclaimable_only(Standing.PROBATION, NOW_MS, NOW_MS + 72 * HOUR - 1, POLICY)
    assert not is_reclaimable_only(Standing.PROBATION, NOW_MS, NOW_MS + 72 * HOUR, POLICY)
    assert not is_reclaimable_only(Standing.HEALTHY, NOW_MS, NOW_MS, POLICY)


@pytest.mark.parametrize("standing", [Standing.PROBATION, Standing.HEALTHY])
def test_a_score_under_the_lower_line_makes_suspect_and_keeps_the_origin(standing: Standing) -> None:
    move = decide(case(standing, degraded("one")), NOW_MS, POLICY)
    assert move is not None
    assert (move.to_standing, move.reason, move.return_to) == (Standing.SUSPECT, MoveReason.LOW_SCORE, standing)
    assert move.evidence_ids == ("ev_one",)


def test_reported_evidence_makes_suspect_and_never_quarantined() -> None:
    reported = [evidence(str(n), Severity.CONDEMNING, trust=Trust.REPORTED) for n in range(20)]
    assert outcome(case(Standing.HEALTHY, *reported)) == (Standing.SUSPECT, MoveReason.REPORTED_EVIDENCE)
    assert outcome(case(Standing.SUSPECT, *reported, origin=Standing.HEALTHY)) is None


def test_reported_evidence_does_not_push_measured_evidence_under_the_quarantine_line() -> None:
    reported = [evidence(str(n), Severity.CONDEMNING, trust=Trust.REPORTED) for n in range(20)]
    measured = [evidence("a"), evidence("b")]
    assert outcome(case(Standing.SUSPECT, *reported, *measured, origin=Standing.HEALTHY)) is None


@pytest.mark.parametrize("standing", IN_SERVICE)
def test_condemning_evidence_quarantines_at_any_age(standing: Standing) -> None:
    move = decide(case(standing, condemning("fault", NOW_MS - 300 * DAY)), NOW_MS, POLICY)
    assert move is not None
    assert (move.to_standing, move.reason) == (Standing.QUARANTINED, MoveReason.CONDEMNED)
    assert move.threatens_correctness


@pytest.mark.parametrize("standing", IN_SERVICE)
def test_a_measured_score_under_the_quarantine_line_quarantines(standing: Standing) -> None:
    gpu = case(standing, degraded("a"), degraded("b"), degraded("c"))
    assert outcome(gpu) == (Standing.QUARANTINED, MoveReason.LOW_SCORE)


def test_findings_older_than_ten_minutes_do_not_act() -> None:
    old = [degraded(name, NOW_MS - 10 * MINUTE - 1) for name in "abc"]
    assert outcome(case(Standing.HEALTHY, *old)) is None
    just = [degraded(name, NOW_MS - 10 * MINUTE) for name in "abc"]
    assert outcome(case(Standing.HEALTHY, *just)) is not None


@pytest.mark.parametrize("origin", [Standing.PROBATION, Standing.HEALTHY])
def test_suspect_goes_back_after_its_score_stayed_above_the_raise_line(origin: Standing) -> None:
    gpu = case(Standing.SUSPECT, since_ms=NOW_MS - 30 * MINUTE, origin=origin)
    assert outcome(gpu, NOW_MS - 1) is None
    assert outcome(gpu) == (origin, MoveReason.RECOVERED)


def test_a_score_between_the_lines_changes_nothing_either_way() -> None:
    between = degraded("one", NOW_MS - 12 * HOUR)  # 82.5: above the lower line, under the raise line
    assert outcome(case(Standing.SUSPECT, between, origin=Standing.HEALTHY)) is None
    assert outcome(case(Standing.HEALTHY, between)) is None


def test_the_dwell_time_counts_from_when_the_raise_line_was_crossed() -> None:
    gpu = case(Standing.SUSPECT, degraded("one"), since_ms=NOW_MS, origin=Standing.HEALTHY)
    due_ms = next_evaluation_ms(gpu, NOW_MS + 10 * HOUR, POLICY)
    moments: list[int] = []
    while due_ms is not None and outcome(gpu, due_ms) is None:
        moments.append(due_ms)
        due_ms = next_evaluation_ms(gpu, due_ms, POLICY)
    assert due_ms is not None
    assert outcome(gpu, due_ms - 1) is None
    assert due_ms - moments[-1] == 30 * MINUTE


def test_three_falls_in_a_week_are_flapping() -> None:
    falls = tuple(fall(NOW_MS - hours * HOUR) for hours in (160, 80, 0))
    gpu = replace(case(Standing.SUSPECT, since_ms=NOW_MS, origin=Standing.HEALTHY), moves=falls)
    assert outcome(gpu) == (Standing.QUARANTINED, MoveReason.FLAPPING)
    assert outcome(replace(gpu, moves=falls[1:])) is None
    assert outcome(gpu, NOW_MS + 8 * HOUR) != (Standing.QUARANTINED, MoveReason.FLAPPING)


def test_flapping_older_than_ten_minutes_does_not_act() -> None:
    falls = tuple(fall(NOW_MS - hours * HOUR) for hours in (3, 2, 0))
    gpu = replace(case(Standing.SUSPECT, since_ms=NOW_MS, origin=Standing.HEALTHY), moves=falls)
    assert outcome(gpu, NOW_MS + 10 * MINUTE) is not None
    assert outcome(gpu, NOW_MS + 10 * MINUTE + 1) is None


def test_falls_from_before_the_window_a_quarantine_or_a_person_are_no_flapping() -> None:
    falls = tuple(fall(NOW_MS - hours * HOUR) for hours in (3, 2, 0))
    gpu = replace(case(Standing.SUSPECT, since_ms=NOW_MS, origin=Standing.HEALTHY), moves=falls)
    assert outcome(gpu) == (Standing.QUARANTINED, MoveReason.FLAPPING)
    assert outcome(replace(gpu, moves=(fall(NOW_MS - 7 * DAY), *falls[1:]))) is None
    by_person = replace(fall(NOW_MS - HOUR), actor="operator:ann", reason=MoveReason.DISMISSED)
    assert outcome(replace(gpu, moves=(*falls[:2], by_person, falls[2]))) is None
    back = replace(fall(NOW_MS - HOUR), from_standing=Standing.QUARANTINED, to_standing=Standing.PROBATION)
    assert outcome(replace(gpu, moves=(*falls[:2], back, falls[2]))) is None


def test_a_burn_in_that_a_suspect_gpu_passes_begins_no_count_of_falls_again() -> None:
    falls = tuple(fall(NOW_MS - hours * HOUR) for hours in (3, 2, 0))
    gpu = replace(case(Standing.SUSPECT, since_ms=NOW_MS, origin=Standing.HEALTHY), moves=falls)
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - HOUR),))) == (Standing.QUARANTINED, MoveReason.FLAPPING)


def test_falls_by_dismissed_or_reported_evidence_are_no_flapping() -> None:
    dismissed = evidence("gone", Severity.DEGRADED, at_ms=NOW_MS - DAY, is_dismissed=True)
    falls = tuple(fall(NOW_MS - hours * HOUR, "ev_gone") for hours in (3, 2, 0))
    gpu = replace(case(Standing.SUSPECT, dismissed, since_ms=NOW_MS, origin=Standing.HEALTHY), moves=falls)
    assert outcome(gpu) is None
    reported = tuple(replace(each, reason=MoveReason.REPORTED_EVIDENCE, evidence_ids=()) for each in falls)
    assert outcome(replace(gpu, moves=reported)) is None


def test_a_burn_in_that_began_after_the_fault_leads_out_of_quarantine() -> None:
    gpu = case(Standing.QUARANTINED, condemning("fault", NOW_MS - 5 * HOUR), since_ms=NOW_MS - 5 * HOUR)
    assert outcome(gpu) is None
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 5 * HOUR),))) is None
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 5 * HOUR + 1),))) == (
        Standing.PROBATION,
        MoveReason.BURN_IN_PASSED,
    )


def test_a_quarantine_for_flapping_ends_by_a_burn_in_that_began_in_it() -> None:
    gpu = case(Standing.QUARANTINED, since_ms=NOW_MS - 5 * HOUR)
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 5 * HOUR - 1),))) is None
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 5 * HOUR),))) is not None


def test_a_burn_in_from_before_a_repair_proves_nothing() -> None:
    repair = PastRepair("memory", NOW_MS - HOUR, NOW_MS - MINUTE, is_done=False)
    gpu = case(Standing.QUARANTINED, condemning("fault", NOW_MS - 5 * HOUR), since_ms=NOW_MS - MINUTE)
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 4 * HOUR),), repairs=(repair,))) is None


def test_a_later_failed_burn_in_outweighs_an_earlier_pass() -> None:
    results = (burn_in(NOW_MS - 4 * HOUR), burn_in(NOW_MS - 2 * HOUR, has_passed=False))
    gpu = case(Standing.QUARANTINED, condemning("fault", NOW_MS - 5 * HOUR), since_ms=NOW_MS - 5 * HOUR)
    assert outcome(replace(gpu, burn_ins=results)) is None


def test_what_was_proved_past_condemns_no_more() -> None:
    gpu = case(Standing.PROBATION, condemning("fault", NOW_MS - 5 * HOUR), since_ms=NOW_MS - HOUR)
    assert outcome(replace(gpu, burn_ins=(burn_in(NOW_MS - 4 * HOUR),))) is None


def test_a_repair_ends_in_quarantine_by_a_new_fault_or_by_its_time() -> None:
    gpu = case(Standing.REPAIR, condemning("old", NOW_MS - HOUR), since_ms=NOW_MS)
    assert outcome(gpu, NOW_MS + 25 * MINUTE - 1) is None
    assert outcome(gpu, NOW_MS + 25 * MINUTE) == (Standing.QUARANTINED, MoveReason.REPAIR_TIMED_OUT)
    again = replace(gpu, evidence=(condemning("new", NOW_MS + MINUTE),))
    assert outcome(again, NOW_MS + MINUTE) == (Standing.QUARANTINED, MoveReason.CONDEMNED)


def test_that_an_old_fault_is_over_is_nothing_against_a_repair() -> None:
    old = replace(condemning("old", NOW_MS - HOUR), last_seen_ms=NOW_MS + MINUTE)
    over = replace(old, closed_at_ms=NOW_MS + MINUTE)
    assert outcome(case(Standing.REPAIR, over, since_ms=NOW_MS), NOW_MS + MINUTE) is None
    told_again = case(Standing.REPAIR, old, since_ms=NOW_MS)
    assert outcome(told_again, NOW_MS + MINUTE) == (Standing.QUARANTINED, MoveReason.CONDEMNED)


def test_a_fault_that_stands_and_is_stated_again_ends_no_repair_until_it_was_over_and_came_back() -> None:
    stated = evidence(
        "remap", Severity.CONDEMNING, at_ms=NOW_MS - HOUR, detector="row_remap", fault="row_remap:pending"
    )
    stated = replace(stated, last_seen_ms=NOW_MS + 20 * MINUTE)
    assert outcome(case(Standing.REPAIR, stated, since_ms=NOW_MS), NOW_MS + 20 * MINUTE) is None
    told = finding("row_remap:pending", at_ms=NOW_MS + 21 * MINUTE, severity=Severity.CONDEMNING, detector="row_remap")
    over = close(stated, Closing("row_remap:pending", NODE, GPU, NOW_MS + 20 * MINUTE))
    back = join(told, [over], POLICY, NOW_MS + 21 * MINUTE, EvidenceId("ev_new")).evidence
    found = outcome(case(Standing.REPAIR, back, since_ms=NOW_MS), NOW_MS + 21 * MINUTE)
    assert found == (Standing.QUARANTINED, MoveReason.CONDEMNED)


def test_a_diagnosis_has_the_time_that_dcgm_takes_for_it() -> None:
    gpu = replace(case(Standing.REPAIR, since_ms=NOW_MS), under_way=RepairAction.FIELD_DIAGNOSIS)
    assert next_evaluation_ms(gpu, NOW_MS, POLICY) == NOW_MS + 60 * MINUTE
    assert outcome(gpu, NOW_MS + 60 * MINUTE - 1) is None
    assert outcome(gpu, NOW_MS + 60 * MINUTE) == (Standing.QUARANTINED, MoveReason.REPAIR_TIMED_OUT)
    reset = replace(gpu, under_way=RepairAction.RESET)
    assert outcome(reset, NOW_MS + 25 * MINUTE) == (Standing.QUARANTINED, MoveReason.REPAIR_TIMED_OUT)


def test_a_gpu_under_repair_may_be_away_for_a_while() -> None:
    away = evidence("away", Severity.CONDEMNING, at_ms=NOW_MS + MINUTE, detector="gpu_lost", fault="gpu_lost")
    assert outcome(case(Standing.REPAIR, away, since_ms=NOW_MS), NOW_MS + MINUTE) is None


def test_no_rule_brings_a_retired_gpu_back() -> None:
    gpu = replace(case(Standing.RETIRED), burn_ins=(burn_in(NOW_MS - 2 * HOUR),))
    assert outcome(gpu) is None


def test_retirement_is_proposed_when_repairs_are_used_up() -> None:
    repairs = tuple(PastRepair("memory", NOW_MS - n * DAY, NOW_MS - n * DAY + 1, is_done=False) for n in (1, 2, 3))
    gpu = replace(case(Standing.QUARANTINED), repairs=repairs)
    proposed = retirement_of(gpu, NOW_MS, POLICY)
    assert proposed is not None
    assert (proposed.to_standing, proposed.reason) == (Standing.RETIRED, MoveReason.REPAIRS_USED_UP)
    assert retirement_of(replace(gpu, repairs=repairs[1:]), NOW_MS, POLICY) is None
    assert retirement_of(gpu, NOW_MS + 28 * DAY, POLICY) is None


def test_the_last_of_the_repairs_that_count_ends_their_being_used_up_by_time_alone() -> None:
    repairs = tuple(PastRepair("memory", NOW_MS - n * DAY, NOW_MS - n * DAY + 1, is_done=False) for n in (4, 3, 2, 1))
    gpu = replace(case(Standing.QUARANTINED), repairs=repairs)
    over_ms = next_evaluation_ms(gpu, NOW_MS, POLICY)
    assert over_ms == NOW_MS + 27 * DAY
    assert retirement_of(gpu, over_ms - 1, POLICY) is not None
    assert retirement_of(gpu, over_ms, POLICY) is None
    assert next_evaluation_ms(replace(gpu, repairs=repairs[2:]), NOW_MS, POLICY) is None


def test_retirement_is_proposed_for_a_board_that_is_to_be_replaced() -> None:
    failed = evidence("remap", Severity.CONDEMNING, detector="row_remap", fault="row_remap:failure")
    xid = evidence("xid", Severity.CONDEMNING, fault="xid:64", values={"code": 64.0})
    for found in (failed, xid):
        proposed = retirement_of(case(Standing.QUARANTINED, found), NOW_MS, POLICY)
        assert proposed is not None
        assert proposed.reason is MoveReason.TO_BE_REPLACED
    assert retirement_of(case(Standing.QUARANTINED, condemning("other")), NOW_MS, POLICY) is None
    assert retirement_of(case(Standing.HEALTHY, failed), NOW_MS, POLICY) is None


def test_a_rule_retires_only_where_the_policy_allows() -> None:
    failed = evidence("remap", Severity.CONDEMNING, detector="row_remap", fault="row_remap:failure")
    gpu = case(Standing.QUARANTINED, failed)
    assert decide(gpu, NOW_MS, POLICY) is None
    allowing = POLICY.model_copy(update={"repair": RepairPolicy(retires_by_rule=True)})
    move = decide(gpu, NOW_MS, allowing)
    assert move is not None
    assert move.to_standing is Standing.RETIRED
