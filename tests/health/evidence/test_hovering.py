"""A reading that hovers at its limit is one fault, and never costs more than the fault standing."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.detector import Closing
from health.detectors.past import Past, judged
from health.evidence.evidence import close
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.suppression import outlasted
from health.scoring.score import score
from health.standing.standing import decide
from muster.domain.evidence.findings import EventKind, Evidence, Finding
from muster.domain.ids import EvidenceId
from muster.domain.states import Standing
from tests.health.case_factory import HOUR, MINUTE, NODE, NOW_MS, POLICY, SECOND, case, sample, signal
from tests.health.evidence.test_suppression import merged

HOT_C, WARM_C = 96.0, 94.0


def heated(readings: list[tuple[int, float]]) -> list[Evidence]:
    """The evidence of samples, each so many ms after the one before, of so many °C."""
    past, at_ms, known, numbers = Past(), NOW_MS, EvidenceIndex(), count()
    for after_ms, celsius in readings:
        at_ms += after_ms
        past, said = judged(past, NODE, sample(at_ms, temperature_c=celsius), POLICY, at_ms)
        for each in said:
            if isinstance(each, Finding):
                list(merge(each, Place(known), POLICY, at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")))
            else:
                assert isinstance(each, Closing)
                known = EvidenceIndex(close(found, each) for found in known.values())
    return list(known.values())


@given(st.lists(st.tuples(st.integers(SECOND, 20 * MINUTE), st.sampled_from([HOT_C, WARM_C])), min_size=1, max_size=60))
def test_hovering_never_costs_more_than_the_fault_standing(readings: list[tuple[int, float]]) -> None:
    end_ms = NOW_MS + sum(after_ms for after_ms, _ in readings)
    standing = score(heated([(SECOND, HOT_C)]), POLICY, NOW_MS + SECOND).value
    assert score(heated(readings), POLICY, end_ms).value >= standing


def test_a_core_that_hovers_about_its_limit_is_suspected_and_not_quarantined() -> None:
    found = heated([(10 * SECOND, HOT_C if at % 2 == 0 else WARM_C) for at in range(60)])
    assert len(found) == 1
    move = decide(case(Standing.HEALTHY, *found), NOW_MS + 600 * SECOND, POLICY)
    assert move is not None
    assert move.to_standing is Standing.SUSPECT


def test_a_link_that_hovers_between_generations_weighs_only_once_it_stays_slow() -> None:
    told = [
        signal(EventKind.GPU_STATE, at_ms=NOW_MS + at * MINUTE, pcie_loaded_generation=now, pcie_max_generation=5.0)
        for at, now in enumerate([1.0, 5.0] * 10)
    ]
    (awake,) = merged(told)
    assert score([outlasted(awake, NOW_MS + HOUR)], POLICY, NOW_MS + HOUR).value == 100.0
    (slow,) = merged(told[:-1])
    last_ms = told[-2].at_ms
    assert score([outlasted(slow, last_ms + MINUTE)], POLICY, last_ms + MINUTE).value == 100.0
    lasting = outlasted(slow, last_ms + int(POLICY.warm_up.outlast_s * SECOND))
    assert score([lasting], POLICY, last_ms + HOUR).value < 100.0


@pytest.mark.parametrize("taken_out", ["is_dismissed", "is_suspended"])
def test_what_another_took_out_and_comes_again_is_new(taken_out: str) -> None:
    hot = heated([(SECOND, HOT_C), (SECOND, WARM_C)])
    known = EvidenceIndex(replace(each, **{taken_out: True}) for each in hot)  # type: ignore[arg-type]  # a flag's name
    _, (again, *_) = judged(Past(), NODE, sample(NOW_MS + MINUTE, temperature_c=HOT_C), POLICY, NOW_MS + MINUTE)
    assert isinstance(again, Finding)
    list(merge(again, Place(known), POLICY, NOW_MS + MINUTE, lambda: EvidenceId("ev_again")))
    assert len(known) == 2


def test_links_that_are_down_and_a_fabric_that_is_not_ready_are_one_fault() -> None:
    """Each is over by itself, and they weigh once."""
    told = [
        signal(EventKind.GPU_STATE, nvlink_links_down=2.0, nvlink_links_to_nothing=1.0),
        signal(EventKind.GPU_STATE, fabric_state=2.0, fabric_health_bits=float(0b01 | 0b01 << 4)),
    ]
    lasting = [outlasted(each, NOW_MS + HOUR) for each in merged(told)]
    assert len(lasting) == 5
    found = score(lasting, POLICY, NOW_MS)
    assert (found.value, len(found.shares)) == (65.0, 1)
