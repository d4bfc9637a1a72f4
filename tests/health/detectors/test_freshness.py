"""Signals that stay away, as the pure rule judges them: reports in, findings and ends of faults out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.detector import Closing
from health.detectors.gpu.freshness import (
    LATE,
    NO_GPU_READ,
    NO_READINGS,
    NOTHING_KNOWN,
    UNRESPONSIVE,
    AgedReport,
    Answer,
    Freshness,
    GpuAnswer,
    agent_silence,
    forget,
    judge,
)
from muster.domain.evidence.findings import Finding, Severity
from muster.domain.gpu.signal_groups import HOST_WIDE, SignalGroup
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import HealthPolicy

POLICY = DEFAULT_POLICY.health
LIMITS = POLICY.detectors.freshness
NODE = NodeId("node_1")
A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
GIVEN, LATELY = GpuAnswer(Answer.GIVEN, latency_ms=12.0), GpuAnswer(Answer.LATE)
News = list[tuple[str, str]]


@dataclass
class Host:
    """One host: ``report`` is the next report of its agent, ten seconds later. ``open``: faults that stand, worst."""

    own: tuple[GpuUuid, ...] = (A, B)
    policy: HealthPolicy = POLICY
    known: Freshness = NOTHING_KNOWN
    at_ms: int = 1_000_000
    open: dict[tuple[GpuUuid | None, str], Severity] = field(default_factory=dict)

    def report(
        self, gpus: Mapping[GpuUuid, GpuAnswer], ages_ms: Mapping[SignalGroup, int] | None = None, after_s: float = 10
    ) -> News:
        """Return what is new: ``fault: severity``, or ``fault: over``."""
        self.at_ms += round(after_s * 1000)
        reported = AgedReport(NODE, self.at_ms, ages_ms or {}, gpus, self.own)
        self.known, found = judge(self.known, reported, self.policy, self.at_ms)
        return [self.note(each) for each in found]

    def note(self, each: Finding | Closing) -> tuple[str, str]:
        place = each.gpu_uuid, each.fault_key
        if isinstance(each, Closing):
            self.open.pop(place, None)
            return each.fault_key, "over"
        self.open[place] = each.severity
        return each.fault_key, each.severity.name.lower()

    def worst(self, uuid: GpuUuid | None) -> Severity:
        return max((severity for (place, _), severity in self.open.items() if place == uuid), default=Severity.INFO)


def test_the_first_late_sample_warns_the_third_keeps_work_away_and_ten_minutes_condemn() -> None:
    host = Host()
    host.report({A: GIVEN, B: GIVEN})
    reported = {number: host.report({A: LATELY, B: GIVEN}) for number in range(1, 62)}
    assert {number: said for number, said in reported.items() if said} == {
        1: [(LATE, "warning")],
        3: [(NO_READINGS, "degraded")],
        61: [(LATE, "warning"), (UNRESPONSIVE, "condemning")],
    }, "60 samples after the first one ten minutes are over; a standing fault is stated again each ten minutes"
    assert host.worst(B) is Severity.INFO, "its sibling is untouched"
    assert host.report({A: GIVEN, B: GIVEN}) == [(LATE, "over"), (NO_READINGS, "over"), (UNRESPONSIVE, "over")]


@pytest.mark.parametrize(
    "others",
    [{}, {B: LATELY}, {B: GpuAnswer(Answer.LOST)}, {B: GpuAnswer(Answer.UNREADABLE)}],
    ids=["none", "late", "lost", "unreadable"],
)
def test_a_gpu_is_not_condemned_while_no_sibling_answers(others: dict[GpuUuid, GpuAnswer]) -> None:
    host = Host(own=(A, *others))
    host.report({A: GIVEN, **dict.fromkeys(others, GIVEN)})
    for _ in range(200):
        host.report({A: LATELY, **others})
    assert max(host.worst(A), host.worst(None)) is Severity.DEGRADED


def test_a_driver_that_answers_for_no_gpu_is_one_fault_of_its_node_until_it_answers_for_any() -> None:
    host, warned = Host(), [(LATE, "warning"), (LATE, "warning")]
    host.report({A: GIVEN, B: GIVEN})
    assert [host.report({A: LATELY}) for _ in range(3)] == [warned, [], [(NO_GPU_READ, "degraded")]]
    assert (host.worst(None), host.worst(A), host.worst(B)) == (Severity.DEGRADED, Severity.WARNING, Severity.WARNING)
    news = host.report({A: LATELY, B: GIVEN})
    assert news == [(NO_READINGS, "degraded"), (NO_GPU_READ, "over"), (LATE, "over")]
    assert (host.worst(None), host.worst(A), host.worst(B)) == (Severity.INFO, Severity.DEGRADED, Severity.INFO)
    assert host.report({A: LATELY, B: LATELY}) == [(LATE, "warning")], "what stands of A stays"


def test_a_condemned_gpu_stays_so_when_its_sibling_goes_silent_too() -> None:
    host = Host()
    host.report({A: LATELY, B: GIVEN})
    host.report({A: LATELY, B: GIVEN}, after_s=300)
    host.report({A: LATELY, B: GIVEN}, after_s=300)
    assert (A, UNRESPONSIVE) in host.open
    assert (UNRESPONSIVE, "over") not in host.report({A: LATELY, B: LATELY})


def test_a_gpu_that_is_left_out_of_a_report_counts_as_late_once_it_was_ever_in_one() -> None:
    host = Host()
    for _ in range(3):
        assert host.report({B: GIVEN}) == [], "its agent has never delivered it"
    host.report({A: GIVEN, B: GIVEN})
    assert [host.report({B: GIVEN}) for _ in range(3)] == [[(LATE, "warning")], [], [(NO_READINGS, "degraded")]]


def test_readings_that_are_no_numbers_keep_work_away_and_condemn_nothing() -> None:
    host = Host()
    for _ in range(100):
        host.report({A: GpuAnswer(Answer.UNREADABLE), B: GIVEN})
    assert host.worst(A) is Severity.DEGRADED


def test_a_lost_gpu_is_no_late_one() -> None:
    host = Host()
    host.report({A: LATELY, B: GIVEN})
    assert host.report({A: GpuAnswer(Answer.LOST), B: GIVEN}) == [(LATE, "over")]


@pytest.mark.parametrize("group", HOST_WIDE)
def test_a_reader_that_gives_no_sign_is_a_fault_of_its_node_until_it_gives_one(group: SignalGroup) -> None:
    host, limit_ms = Host(), round(LIMITS.max_age_s(group) * 1000)
    fault = f"freshness:{group}"
    assert host.report({A: GIVEN, B: GIVEN}, {group: limit_ms}) == []
    assert host.report({A: GIVEN, B: GIVEN}, {group: limit_ms + 1}) == [(fault, "degraded")]
    assert (host.worst(None), host.worst(A)) == (Severity.DEGRADED, Severity.INFO)
    assert host.report({A: GIVEN, B: GIVEN}, {group: 10}) == [(fault, "over")]


def test_states_that_are_not_inspected_are_a_fault_of_their_gpu() -> None:
    host, limit_ms = Host(), round(LIMITS.states_max_s * 1000)
    old = replace(GIVEN, states_age_ms=limit_ms + 1)
    assert host.report({A: old, B: replace(GIVEN, states_age_ms=limit_ms)}) == [("freshness:states", "degraded")]
    assert host.worst(B) is Severity.INFO
    assert host.report({A: replace(GIVEN, states_age_ms=0), B: GIVEN}) == [("freshness:states", "over")]


def test_a_report_without_ages_ends_all_that_was_found_by_ages() -> None:
    host = Host()
    host.report({A: LATELY, B: GIVEN}, {SignalGroup.KERNEL_LOG: 10**8})
    assert sorted(host.note(each) for each in forget(host.known, NODE, host.at_ms)) == [
        ("freshness:kernel_log", "over"),
        (LATE, "over"),
    ]


def test_an_agent_is_silent_from_its_limit_on() -> None:
    limit_ms = round(LIMITS.agent_max_s * 1000)
    assert agent_silence(NODE, limit_ms - 1, POLICY, 10**12) == ()
    (found,) = agent_silence(NODE, limit_ms, POLICY, 10**12)
    assert (found.gpu_uuid, found.severity, found.fault_key) == (None, Severity.DEGRADED, "freshness:agent")


def test_a_driver_that_answers_slowly_three_times_in_a_row_is_shown_and_weighs_nothing_by_default() -> None:
    host, slow = Host(), replace(GIVEN, latency_ms=1000.1)
    assert [host.report({A: each, B: GIVEN}) for each in (slow, slow, GIVEN, slow, slow)] == [[]] * 5
    assert host.report({A: slow, B: GIVEN}) == [("driver_latency", "warning")]
    assert POLICY.detectors.driver_latency.mode == "shadow"
    assert host.report({A: GIVEN, B: GIVEN}) == [("driver_latency", "over")]


def test_a_rule_that_is_turned_off_ends_its_faults() -> None:
    host = Host()
    host.report({A: LATELY, B: GIVEN})
    off = LIMITS.model_copy(update={"mode": "off"})
    host.policy = POLICY.model_copy(update={"detectors": POLICY.detectors.model_copy(update={"freshness": off})})
    assert host.report({A: LATELY, B: GIVEN}) == [(LATE, "over")]
    assert host.report({A: LATELY, B: GIVEN}) == []


answers = st.builds(GpuAnswer, st.sampled_from(Answer), states_age_ms=st.none() | st.integers(0, 600_000))
reports = st.tuples(
    st.dictionaries(st.sampled_from((A, B)), answers),
    st.dictionaries(st.sampled_from(HOST_WIDE), st.integers(0, 1_200_000)),
    st.sampled_from((1.0, 10.0, 400.0)),
)


@given(st.lists(reports, max_size=30))
def test_whatever_is_reported_what_stands_follows_from_what_was_delivered(history: list[tuple]) -> None:  # type: ignore[type-arg]
    """Each overdue group keeps work away, no fault outlives its reason, and no GPU is condemned while none answers."""
    host, late = Host(), {A: 0, B: 0}
    for gpus, ages_ms, after_s in history:
        reported = host.report(gpus, ages_ms, after_s)
        for uuid in (A, B):
            answer = gpus[uuid].answer if uuid in gpus else Answer.LATE
            is_known = uuid in host.known.gpus
            late[uuid] = late[uuid] + 1 if is_known and answer in {Answer.LATE, Answer.UNREADABLE} else 0
            assert ((uuid, LATE) in host.open) is (late[uuid] >= 1)
            if late[uuid] < LIMITS.late_samples_max:
                assert (uuid, NO_READINGS) not in host.open
            else:
                assert (uuid, NO_READINGS) in host.open or (None, NO_GPU_READ) in host.open
            states_ms = gpus[uuid].states_age_ms if uuid in gpus else None
            is_old = states_ms is not None and states_ms > LIMITS.states_max_s * 1000
            assert ((uuid, "freshness:states") in host.open) is is_old
        if (UNRESPONSIVE, "condemning") in reported:
            assert any(each.answer is Answer.GIVEN for each in gpus.values())
        for group in HOST_WIDE:
            is_overdue = ages_ms.get(group, 0) > LIMITS.max_age_s(group) * 1000
            assert ((None, f"freshness:{group}") in host.open) is is_overdue
