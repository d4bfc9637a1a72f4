"""The life of an evidence: which state its fields amount to, and that only listed edges happen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.detector import Closing
from health.evidence.evidence import after_maintenance, close, join
from health.evidence.state import counts
from health.evidence.suppression import is_weightless, outlasted, suppressed, why_weightless
from muster.domain.evidence.findings import Evidence, Finding, Pending, Suppression
from muster.domain.evidence.old_keys import KEYS, typed_evidence, typed_finding, with_old_keys
from muster.domain.ids import EvidenceId
from muster.domain.states import EVIDENCE_EDGES, EvidenceState, IllegalTransitionError
from tests.health.case_factory import GPU, MINUTE, NODE, NOW_MS, POLICY, SECOND, evidence, finding

MAINTENANCE, SHADOW = frozenset({Suppression.MAINTENANCE}), frozenset({Suppression.SHADOW})
PENDING = Pending(NOW_MS + MINUTE)
PLAIN = evidence("links", detector="nvlink_down", fault="nvlink_down")
STATES: Final = {
    EvidenceState.ACTIVE: PLAIN,
    EvidenceState.CLOSED: replace(PLAIN, closed_at_ms=NOW_MS),
    EvidenceState.PENDING: replace(PLAIN, pending=PENDING),
    EvidenceState.LAPSED: replace(PLAIN, pending=PENDING, closed_at_ms=NOW_MS),
    EvidenceState.SUPPRESSED: replace(PLAIN, suppressed_by=SHADOW, pending=PENDING, closed_at_ms=NOW_MS),
    EvidenceState.SUSPENDED: replace(PLAIN, is_suspended=True, suppressed_by=SHADOW),
    EvidenceState.DISMISSED: replace(PLAIN, is_dismissed=True, is_suspended=True),
}


@pytest.mark.parametrize("state", EvidenceState)
def test_fields_amount_to_a_state_and_two_states_weigh(state: EvidenceState) -> None:
    assert STATES[state].state is state
    assert counts(STATES[state]) is (state in {EvidenceState.ACTIVE, EvidenceState.CLOSED})


@pytest.mark.parametrize("origin", EvidenceState)
@pytest.mark.parametrize("target", EvidenceState)
def test_a_change_goes_along_a_listed_edge_or_is_refused(origin: EvidenceState, target: EvidenceState) -> None:
    before, after = STATES[origin], STATES[target]
    if target is origin or target in EVIDENCE_EDGES[origin]:
        assert before.changed_to(after) is after
    else:
        with pytest.raises(IllegalTransitionError, match=f"{origin} → {target} is not a listed edge"):
            before.changed_to(after)


def stated(at_ms: int, suppressed_by: frozenset[Suppression], pending: Pending | None) -> Finding:
    of_links = finding("nvlink_down", at_ms=at_ms, detector="nvlink_down")
    return replace(of_links, suppressed_by=suppressed_by, pending=pending)


Change = Callable[[Evidence, int], Evidence]
CHANGES: Final[dict[str, Change]] = {
    "stated": lambda known, at_ms: (
        join(
            stated(at_ms, known.suppressed_by, known.pending and Pending(at_ms + MINUTE)),
            [known],
            POLICY,
            at_ms,
            EvidenceId(f"{known.id}+"),
        ).evidence
    ),
    "closed": lambda known, at_ms: close(known, Closing("nvlink_down", NODE, GPU, at_ms)),
    "outlasted": outlasted,
    "maintained": after_maintenance,
    "superseded": lambda known, _: suppressed(known, Suppression.SUPERSEDED),
    "suspended": lambda known, _: known.changed_to(replace(known, is_suspended=True)),
    "released": lambda known, _: known.changed_to(replace(known, is_suspended=False)),
    "dismissed": lambda known, _: known.changed_to(replace(known, is_dismissed=True)),
}
"""All that is done to evidence, at a time."""


@given(
    st.sampled_from(
        [PLAIN, replace(PLAIN, pending=PENDING), replace(PLAIN, pending=PENDING, suppressed_by=MAINTENANCE)]
    ),
    st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 2 * MINUTE)), max_size=12),
)
def test_whatever_is_done_in_whatever_order_takes_listed_edges_alone(
    known: Evidence, history: list[tuple[str, int]]
) -> None:
    at_ms = NOW_MS
    for name, pause_ms in history:
        at_ms += pause_ms
        before, known = known, CHANGES[name](known, at_ms)
        if known.id != before.id:  # another evidence: what a person or a suspicion took out is not joined again
            continue
        assert known.state is before.state or known.state in EVIDENCE_EDGES[before.state]
        assert counts(known) is not (known.is_dismissed or known.is_suspended or is_weightless(known))
        assert KEYS.isdisjoint(known.values)


suppressions = st.frozensets(st.sampled_from(Suppression))
times = st.none() | st.integers(0, NOW_MS)
conditions = st.none() | st.builds(Pending, st.integers(0, NOW_MS), st.none() | st.integers(0, 2**32 - 1))


@given(suppressions, conditions, times, times, times)
def test_the_keys_of_the_release_before_state_the_same_life(
    suppressed_by: frozenset[Suppression],
    pending: Pending | None,
    outlasted_at_ms: int | None,
    closed_at_ms: int | None,
    reopened_at_ms: int | None,
) -> None:
    known = replace(
        PLAIN,
        values={"links": 3.0},
        suppressed_by=suppressed_by,
        pending=pending,
        outlasted_at_ms=outlasted_at_ms,
        closed_at_ms=closed_at_ms,
        reopened_at_ms=reopened_at_ms,
    )
    assert typed_evidence(replace(PLAIN, values=with_old_keys(known))) == known
    found = replace(stated(NOW_MS, suppressed_by, pending), values={"links": 3.0})
    assert typed_finding(replace(stated(NOW_MS, frozenset(), None), values=with_old_keys(found))) == found


def test_of_several_reasons_the_first_is_shown() -> None:
    both = suppressed(replace(PLAIN, suppressed_by=MAINTENANCE), Suppression.SHADOW)
    assert why_weightless(both) == "its rule is in shadow mode"


def test_a_fault_that_was_over_before_it_weighed_waits_again_when_it_is_stated_again() -> None:
    lapsed = STATES[EvidenceState.LAPSED]
    waits = Pending(NOW_MS + 2 * MINUTE)
    known = join(
        stated(NOW_MS + SECOND, frozenset(), waits), [lapsed], POLICY, NOW_MS + SECOND, EvidenceId("ev_x")
    ).evidence
    assert (known.id, known.state, known.pending) == (lapsed.id, EvidenceState.PENDING, waits)
    assert known.reopened_at_ms == NOW_MS + SECOND
