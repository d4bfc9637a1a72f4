"""What persons do with a GPU, and the words with which they are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from health.standing.gpu_case import RULE, GpuCase, Move, MoveReason, PastRepair
from health.standing.interventions import (
    RefusedMoveError,
    dismiss,
    fail_repair,
    finish_repair,
    reinstate,
    retire,
    start_repair,
)
from health.standing.standing import decide
from muster.domain.evidence.findings import Evidence
from muster.domain.ids import EvidenceId
from muster.domain.states import Standing
from tests.health.case_factory import DAY, HOUR, NOW_MS, POLICY, case, condemning, degraded, quarantine


def quarantined(*found: Evidence, origin: Standing, from_standing: Standing | None = None) -> GpuCase:
    cited = tuple(each.id for each in found)
    move = quarantine(NOW_MS - HOUR, from_standing or origin, *cited)
    return replace(case(Standing.QUARANTINED, *found, since_ms=NOW_MS - HOUR, origin=origin), moves=(move,))


def dismissed(gpu: GpuCase, *names: str) -> Move | None:
    ids = frozenset(EvidenceId(f"ev_{name}") for name in names)
    return dismiss(gpu, ids, person="operator:ann", reason="a test pattern", now_ms=NOW_MS, policy=POLICY)


@pytest.mark.parametrize("origin", [Standing.UNPROVEN, Standing.PROBATION, Standing.HEALTHY])
def test_dismissing_all_that_condemns_returns_to_the_origin(origin: Standing) -> None:
    move = dismissed(quarantined(condemning("one"), origin=origin), "one")
    assert move is not None
    assert (move.to_standing, move.reason, move.actor, move.text) == (
        origin,
        MoveReason.DISMISSED,
        "operator:ann",
        "a test pattern",
    )


def test_one_condemning_evidence_that_stays_keeps_the_quarantine() -> None:
    gpu = quarantined(condemning("one"), condemning("two"), origin=Standing.HEALTHY)
    assert dismissed(gpu, "one") is None
    assert dismissed(gpu, "one", "two") is not None


def test_what_condemned_it_since_keeps_the_quarantine_too() -> None:
    gpu = quarantined(condemning("one"), origin=Standing.HEALTHY)
    later = replace(gpu, evidence=(*gpu.evidence, condemning("later")))
    assert dismissed(later, "one") is None
    proved = PastRepair("memory", NOW_MS - HOUR, NOW_MS + 1, is_done=True)
    assert dismissed(replace(later, repairs=(proved,)), "one") is not None


def test_dismissing_half_of_a_low_score_keeps_the_quarantine() -> None:
    gpu = quarantined(degraded("a"), degraded("b"), degraded("c"), origin=Standing.HEALTHY)
    assert dismissed(gpu, "a", "b") is None
    assert dismissed(gpu, "a", "b", "c") is not None


def test_a_gpu_that_was_suspect_is_suspect_again_with_its_own_origin() -> None:
    gpu = quarantined(condemning("one"), origin=Standing.HEALTHY, from_standing=Standing.SUSPECT)
    move = dismissed(gpu, "one")
    assert move is not None
    assert (move.to_standing, move.return_to) == (Standing.SUSPECT, Standing.HEALTHY)


def test_quarantine_of_a_suspect_gpu_remembers_the_origin_behind_it() -> None:
    move = decide(case(Standing.SUSPECT, condemning("one"), origin=Standing.HEALTHY), NOW_MS, POLICY)
    assert move is not None
    assert move.return_to is Standing.HEALTHY


def test_after_a_failed_repair_a_dismissal_leads_to_a_burn_in() -> None:
    failed = fail_repair(case(Standing.REPAIR, origin=Standing.HEALTHY), actor="operator:ann", now_ms=NOW_MS)
    assert failed.return_to is Standing.UNPROVEN


def test_dismissed_evidence_no_longer_condemns() -> None:
    gpu = case(Standing.HEALTHY, replace(condemning("one"), is_dismissed=True))
    assert decide(gpu, NOW_MS, POLICY) is None


def test_dismissing_evidence_of_a_gpu_in_service_moves_nothing() -> None:
    assert dismissed(case(Standing.SUSPECT, degraded("one"), origin=Standing.HEALTHY), "one") is None


def test_evidence_of_another_gpu_cannot_be_dismissed() -> None:
    with pytest.raises(RefusedMoveError, match="ev_other: no evidence about GPU-1"):
        dismissed(quarantined(condemning("one"), origin=Standing.HEALTHY), "other")


@pytest.mark.parametrize("standing", sorted(set(Standing) - {Standing.RETIRED}))
def test_any_gpu_can_be_retired_with_a_reason(standing: Standing) -> None:
    move = retire(case(standing), person="operator:ann", reason="old", now_ms=NOW_MS)
    assert (move.to_standing, move.text) == (Standing.RETIRED, "old")


def test_a_retired_gpu_is_reinstated_to_unproven() -> None:
    gpu = case(Standing.RETIRED)
    assert reinstate(gpu, person="operator:ann", reason="mended", now_ms=NOW_MS).to_standing is Standing.UNPROVEN
    with pytest.raises(RefusedMoveError, match="cannot become RETIRED"):
        retire(gpu, person="operator:ann", reason="again", now_ms=NOW_MS)


def test_a_repair_goes_from_quarantine_to_unproven_or_back() -> None:
    start = start_repair(
        case(Standing.QUARANTINED, origin=Standing.HEALTHY),
        "memory",
        actor="operator:ann",
        reason="reset",
        now_ms=NOW_MS,
        policy=POLICY,
    )
    assert (start.to_standing, start.return_to) == (Standing.REPAIR, Standing.HEALTHY)
    gpu = case(Standing.REPAIR)
    assert finish_repair(gpu, actor=RULE, now_ms=NOW_MS).to_standing is Standing.UNPROVEN
    assert fail_repair(gpu, actor=RULE, now_ms=NOW_MS).to_standing is Standing.QUARANTINED


def test_a_rule_starts_no_fourth_repair_but_a_person_may() -> None:
    repairs = tuple(PastRepair("memory", NOW_MS - n * DAY, NOW_MS - n * DAY + 1, is_done=True) for n in (1, 2, 3))
    gpu = replace(case(Standing.QUARANTINED), repairs=repairs)
    with pytest.raises(RefusedMoveError, match="3 repairs of memory"):
        start_repair(gpu, "memory", actor=RULE, reason="reset", now_ms=NOW_MS, policy=POLICY)
    for actor, group in (("operator:ann", "memory"), (RULE, "link")):
        move = start_repair(gpu, group, actor=actor, reason="reset", now_ms=NOW_MS, policy=POLICY)
        assert move.to_standing is Standing.REPAIR


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: retire(case(Standing.HEALTHY), person="operator:ann", reason=" ", now_ms=NOW_MS), "needs a reason"),
        (lambda: retire(case(Standing.HEALTHY), person="", reason="old", now_ms=NOW_MS), "the name of the person"),
        (lambda: reinstate(case(Standing.HEALTHY), person="ann", reason="x", now_ms=NOW_MS), "only a RETIRED GPU"),
        (lambda: finish_repair(case(Standing.HEALTHY), actor="ann", now_ms=NOW_MS), "not in REPAIR"),
        (lambda: fail_repair(case(Standing.QUARANTINED), actor="ann", now_ms=NOW_MS), "not in REPAIR"),
        (
            lambda: start_repair(
                case(Standing.HEALTHY), "memory", actor="ann", reason="x", now_ms=NOW_MS, policy=POLICY
            ),
            "quarantine it before",
        ),
        (
            lambda: dismiss(
                case(Standing.QUARANTINED), frozenset(), person="ann", reason="", now_ms=NOW_MS, policy=POLICY
            ),
            "needs a reason",
        ),
    ],
)
def test_what_does_not_go_is_refused_in_words(ask: Callable[[], object], words: str) -> None:
    with pytest.raises(RefusedMoveError, match=words):
        ask()
