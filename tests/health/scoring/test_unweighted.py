"""Each evidence that takes nothing off the score says why; none that takes something does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.evidence.proofs import Proofs
from health.scoring.score import score
from health.scoring.unweighted import why_no_points
from muster.domain.evidence.findings import Evidence, Severity, Suppression
from muster.domain.ids import EvidenceId
from tests.health.case_factory import DAY, MINUTE, NOW_MS, POLICY, evidence
from tests.health.strategies import many_evidences


def why(*reported: Evidence, proof_ms: int | None = None) -> dict[EvidenceId, str]:
    proofs = None if proof_ms is None else Proofs.of_all(proof_ms)
    return why_no_points(reported, score(reported, POLICY, NOW_MS, proofs), POLICY, NOW_MS, proofs)


WARNS = evidence("xid:31", severity=Severity.WARNING)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (replace(WARNS, is_dismissed=True), "a person dismissed it"),
        (replace(WARNS, is_suspended=True), "the program that ran there is suspected"),
        (replace(WARNS, suppressed_by=frozenset({Suppression.SHADOW})), "its rule is in shadow mode"),
        (replace(WARNS, gpu_uuid=None), "it is about the node"),
        (replace(WARNS, severity=Severity.INFO), "evidence of severity info is kept and weighs nothing"),
        (
            replace(WARNS, onset_ms=NOW_MS - 8 * DAY, last_seen_ms=NOW_MS - 8 * DAY, counts_for_ms=7 * DAY),
            "it counted for 7 days, which have passed",
        ),
    ],
)
def test_what_weighs_nothing_states_why(one: Evidence, words: str) -> None:
    assert why(one) == {one.id: words}


def test_what_came_before_a_burn_in_is_answered() -> None:
    assert why(WARNS, proof_ms=WARNS.last_seen_ms + 1) == {WARNS.id: "a later burn-in or repair has answered it"}


def test_of_a_burst_the_one_that_weighs_stands_for_the_others() -> None:
    first = evidence("xid:62", severity=Severity.DEGRADED, at_ms=NOW_MS - MINUTE)
    second = replace(first, id=EvidenceId("ev_second"), onset_ms=NOW_MS, last_seen_ms=NOW_MS)
    told = why(first, second)
    assert told == {first.id: "its fault weighs once, and other evidence of it weighs as much or more"}


@given(many_evidences, st.none() | st.just(NOW_MS - DAY))
def test_a_reason_is_reported_exactly_where_nothing_is_taken_off(
    reported: tuple[Evidence, ...], proof_ms: int | None
) -> None:
    proofs = None if proof_ms is None else Proofs.of_all(proof_ms)
    shares = dict(score(reported, POLICY, NOW_MS, proofs).shares)
    assert why(*reported, proof_ms=proof_ms).keys() == {each.id for each in reported} - shares.keys()
