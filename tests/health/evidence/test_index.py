"""What rules look at is found on shelves: the same as in all that is known, at a price that does not grow with it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health.detectors.registry import judge_signal
from health.detectors.repeats.repeat import BURST_MS, TIMES, num_bursts
from health.evidence.evidence import join, near
from health.evidence.index import EvidenceIndex, of_code, that_may_weigh
from health.evidence.merge import Place, merge
from health.replay.replay import Replay
from health.scoring.score import score
from health.standing.gpu_case import GpuCase
from health.standing.standing import decide, next_evaluation_ms
from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.ids import EvidenceId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Standing
from tests.health.case_factory import GPU, HOUR, MINUTE, NOW_MS, POLICY, SECOND, signal
from tests.scaled import examples

_IN_TPC: Final = "Graphics SM Warp Exception on (GPC {}, TPC 1, SM 0): Out Of Range Address"
_REQUESTED: Final = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
_SOURCES: Final = (Source.NVML, Source.KERNEL_LOG, Source.DCGM)


def reported(code: int, at_ms: int, source: Source = Source.KERNEL_LOG, text: str = "") -> GpuSignal:
    return signal(code=code, at_ms=at_ms, source=source, text=text)


def signals() -> st.SearchStrategy[list[GpuSignal]]:
    codes = st.sampled_from([13, 31, 31, 31, 43, 46, 48, 63, 79, 94, 119, 154])
    gaps = st.sampled_from([0, 3 * SECOND, 6 * SECOND, 16 * SECOND, MINUTE, 4 * MINUTE, 7 * HOUR, -20 * SECOND])
    each = st.tuples(codes, gaps, st.sampled_from(_SOURCES), st.integers(0, 1))

    def played(reported_of: Sequence[tuple[int, int, Source, int]]) -> list[GpuSignal]:
        at_ms, found = NOW_MS, list[GpuSignal]()
        for code, gap_ms, source, gpc in reported_of:
            at_ms += gap_ms
            text = {13: _IN_TPC.format(gpc), 154: _REQUESTED}.get(code, "")
            found.append(reported(code, at_ms, source, text))
        return found

    return st.lists(each, max_size=25).map(played)


@settings(max_examples=examples(150))
@given(events=signals(), dismisses=st.booleans())
def test_what_is_found_on_shelves_is_what_is_found_in_all_that_is_known(
    events: list[GpuSignal], *, dismisses: bool
) -> None:
    known, numbers = EvidenceIndex(), count()
    for event in events:
        for found in judge_signal(event, POLICY):
            now_ms = max(event.at_ms, NOW_MS)
            by_all = join(found, known.values(), POLICY, now_ms, EvidenceId("ev_new"))
            assert join(found, near(found, known, POLICY, now_ms), POLICY, now_ms, EvidenceId("ev_new")) == by_all
            for _ in merge(found, Place(known), POLICY, now_ms, lambda: EvidenceId(f"ev_{next(numbers):03}")):
                pass
        if dismisses and known and len(known) % 4 == 0:
            known.put(replace(next(iter(known.values())), is_dismissed=True))
        for standing in (Standing.HEALTHY, Standing.PROBATION, Standing.SUSPECT):
            whole = GpuCase(GPU, standing, NOW_MS - HOUR, tuple(known.values()), Standing.HEALTHY)
            part = replace(whole, evidence=that_may_weigh(known, POLICY))
            assert score(part.evidence, POLICY, event.at_ms) == score(whole.evidence, POLICY, event.at_ms)
            assert decide(part, event.at_ms, POLICY) == decide(whole, event.at_ms, POLICY)
            assert next_evaluation_ms(part, event.at_ms, POLICY) == next_evaluation_ms(whole, event.at_ms, POLICY)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_evidence_that_holds_several_times_counts_as_often_as_one_for_each(gaps_s: list[int]) -> None:
    known, numbers, at_ms, times, last_ms = EvidenceIndex(), count(), NOW_MS, 0, 0
    for gap_s in gaps_s:
        at_ms += gap_s * SECOND
        times += at_ms - last_ms > BURST_MS
        last_ms = at_ms
        for found in judge_signal(reported(31, at_ms), POLICY):
            for _ in merge(found, Place(known), POLICY, at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")):
                pass
    assert num_bursts(known.on(of_code(31)), POLICY) == times


def _evidence_of_three(code: int, gap_ms: int, texts: Sequence[str] = ("", "", "")) -> list[float]:
    world = Replay(POLICY)
    for number, text in enumerate(texts):
        list(world.take(reported(code, NOW_MS + number * gap_ms, text=text)))
    kept = [each for each in world.gpus()[GPU].evidence if each.fault_key == f"xid:{code}"]
    return [each.values.get(TIMES, 1.0) for each in kept]


@pytest.mark.parametrize(
    ("gap_ms", "times"),
    [(14 * SECOND, [1.0]), (16 * SECOND, [3.0]), (90 * SECOND, [3.0]), (91 * SECOND, [2.0, 1.0])],
)
def test_a_programs_xid_again_within_three_minutes_is_one_evidence_that_counts_its_times(
    gap_ms: int, times: list[float]
) -> None:
    assert _evidence_of_three(31, gap_ms) == times


def test_what_weighs_or_lies_elsewhere_in_the_gpu_is_evidence_of_its_own() -> None:
    assert _evidence_of_three(63, 16 * SECOND) == [1.0, 1.0, 1.0]
    elsewhere = [_IN_TPC.format(gpc) for gpc in (0, 1, 0)]
    assert _evidence_of_three(13, 16 * SECOND, elsewhere) == [2.0, 1.0]


def test_what_comes_after_a_persons_dismissal_is_new() -> None:
    (before,) = judge_signal(reported(31, NOW_MS), POLICY)
    first = replace(join(before, (), POLICY, NOW_MS, EvidenceId("ev_1")).evidence, is_dismissed=True)
    (again,) = judge_signal(reported(31, NOW_MS + MINUTE), POLICY)
    assert join(again, [first], POLICY, NOW_MS + MINUTE, EvidenceId("ev_2")).is_new


@pytest.mark.parametrize(
    ("code", "gap_s", "most_a_line"), [(31, 6, 8), (31, 60, 400), (13, 60, 300), (63, 6, 40), (43, 200, 8)]
)
def test_a_replay_of_3000_lines_about_one_gpu_checks_little_for_each(code: int, gap_s: int, most_a_line: int) -> None:
    """By the evidence that is read, not by the clock: a rule of a day reads at most the evidence of a day."""
    world, looked_at = Replay(DEFAULT_POLICY.health), list[int]()
    for number in range(3000):
        text = _IN_TPC.format(number % 7) if code == 13 else ""
        event = GpuSignal(
            f"boot:{number}",
            EventKind.XID,
            Source.KERNEL_LOG,
            NOW_MS + number * gap_s * SECOND,
            signal().node_id,
            GPU,
            code=code,
            text=text,
        )
        list(world.take(event))
        if number in {1499, 2999}:
            looked_at.append(world.num_checked())
    assert looked_at[1] <= 3000 * most_a_line
    assert looked_at[1] - looked_at[0] <= 2.2 * looked_at[0] + 3000
