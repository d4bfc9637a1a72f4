"""Which remedy is due: row by row of the tables of XIDs and memory, up the ladder, and never for the unknown."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.past import Past, judged, watched_in
from health.detectors.registry import judge_signal
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.remedy.remedy import Remedy, remedy_of
from health.standing.gpu_case import GpuCase, PastRepair
from health.standing.retirement import retirement_of
from health.standing.standing import decide
from health.xid.catalogue import CATALOGUE
from muster.domain.evidence.findings import EventKind, Evidence, Finding, Severity, Source
from muster.domain.evidence.repairs import VERB_OF_ACTION, RepairAction, RepairBy, RepairVerb, RequestedBy
from muster.domain.ids import EvidenceId
from muster.domain.states import Standing
from tests.health.case_factory import (
    DAY,
    HOUR,
    NODE,
    NOW_MS,
    POLICY,
    SECOND,
    case,
    evidence,
    quarantine,
    sample,
    signal,
)

ALL = frozenset(RepairVerb)
RESET, REBOOT, POWER_CYCLE = RepairAction.RESET, RepairAction.REBOOT, RepairAction.POWER_CYCLE
DIAGNOSIS, SWAP = RepairAction.FIELD_DIAGNOSIS, RepairAction.SWAP
LATER_MS = NOW_MS + 100 * SECOND

R = (46, 48, 62, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 166, 169, 170, 171, 172)
B = (79, 151, 167)
H = (54, 142, 157, 161, 168)
DRAINED = (94,)
SPENT = (165,)
REPLACED = (64,)
NOTHING = tuple(sorted(set(range(1, 174)) - {*R, *B, *H, *DRAINED, *SPENT, *REPLACED}))
"""Classes I, A and M, 154 without an action, NVLink's 144 to 150 without their text, and unused codes."""


def reported(*findings: Finding) -> tuple[Evidence, ...]:
    """As the judge keeps it."""
    known, numbers = EvidenceIndex(), count()
    for finding in findings:
        list(merge(finding, Place(known), POLICY, LATER_MS, lambda: EvidenceId(f"ev_{next(numbers):03}")))
    return tuple(known.values())


def xid(code: int, text: str = "", *, after_ms: int = 0) -> Finding:
    at = signal(EventKind.XID, code=code, at_ms=NOW_MS + after_ms, text=text, source=Source.KERNEL_LOG)
    (found,) = judge_signal(at, POLICY)
    return found


def xid_154(to: str, *, after_ms: int = 1) -> Finding:
    return xid(154, f"GPU recovery action changed from 0x0 (None) to {to}", after_ms=after_ms)


def state(**values: float) -> Finding:
    (found,) = judge_signal(replace(signal(EventKind.GPU_STATE), values=values), POLICY)
    return found


def read(**readings: float | None) -> Finding:
    reading = sample(NOW_MS + 2 * SECOND, **readings)
    _, findings = judged(Past(watched_in(sample(NOW_MS - SECOND).values)), NODE, reading, POLICY, LATER_MS)
    (found,) = (each for each in findings if isinstance(each, Finding))
    return found


def due(*findings: Finding, repairs: tuple[PastRepair, ...] = (), verbs: frozenset[RepairVerb] = ALL) -> Remedy | None:
    """In the standing that the rules give it."""
    found = reported(*findings)
    gpu = case(Standing.HEALTHY, *found)
    move = decide(gpu, LATER_MS, POLICY)
    standing = Standing.SUSPECT if move is None else move.to_standing
    return remedy_of(replace(gpu, standing=standing, repairs=repairs), verbs, LATER_MS, POLICY)


def named(*findings: Finding, repairs: tuple[PastRepair, ...] = ()) -> tuple[RepairAction, RequestedBy, str]:
    found = due(*findings, repairs=repairs)
    assert found is not None
    return found.action, found.requested_by, found.fault_group


def tried(*actions: RepairAction, group: str = "memory", is_done: bool = False) -> tuple[PastRepair, ...]:
    since = [NOW_MS - (len(actions) - number) * DAY for number in range(len(actions))]
    return tuple(PastRepair(group, at, at + 1, is_done, action) for at, action in zip(since, actions, strict=True))


@pytest.mark.parametrize("code", R)
def test_class_r_requests_a_reset(code: int) -> None:
    action, asked_by, _ = named(xid(code))
    assert (action, asked_by) == (RESET, RequestedBy.CATALOGUE)


@pytest.mark.parametrize("code", B)
def test_class_b_requests_a_reboot(code: int) -> None:
    action, asked_by, _ = named(xid(code))
    assert (action, asked_by) == (REBOOT, RequestedBy.CATALOGUE)


@pytest.mark.parametrize("code", [*H, *SPENT])
def test_class_h_requests_a_field_diagnosis(code: int) -> None:
    action, asked_by, _ = named(xid(code))
    assert (action, asked_by) == (DIAGNOSIS, RequestedBy.CATALOGUE)


def test_a_failed_remap_requests_another_board_and_nothing_before_it() -> None:
    found = due(xid(64))
    assert found is not None
    assert (found.action, found.requested_by, found.by, found.then) == (
        SWAP,
        RequestedBy.CATALOGUE,
        RepairBy.PERSON,
        (),
    )


def test_a_contained_memory_error_requests_a_reset_once_its_work_is_gone() -> None:
    assert named(xid(94)) == (RESET, RequestedBy.CATALOGUE, "memory")


@pytest.mark.parametrize("code", NOTHING)
def test_classes_i_a_and_m_ask_for_nothing(code: int) -> None:
    assert due(xid(code)) is None


@pytest.mark.parametrize("code", [*NOTHING, 174, 200, 999])
def test_what_no_code_names_gets_one_diagnosis_at_most_once_it_is_quarantined(code: int) -> None:
    found = reported(xid(code))
    gpu = case(Standing.QUARANTINED, *found)
    remedy = remedy_of(gpu, ALL, LATER_MS, POLICY)
    assert remedy is not None
    assert (remedy.action, remedy.requested_by, remedy.then) == (DIAGNOSIS, RequestedBy.RULE, ())
    again = replace(gpu, repairs=tried(DIAGNOSIS, group=remedy.fault_group))
    assert remedy_of(again, ALL, LATER_MS, POLICY) is None


@pytest.mark.parametrize(
    ("finding", "wanted"),
    [
        (read(remap_pending=1.0), (RESET, RequestedBy.RULE, "memory")),
        (read(remap_failure=1.0), (SWAP, RequestedBy.RULE, "memory")),
        (read(ecc_uncorrected_volatile=1.0), (RESET, RequestedBy.RULE, "memory")),
        (state(sram_threshold_exceeded=1.0), (DIAGNOSIS, RequestedBy.RULE, "memory")),
        (state(retired_pages_single_bit=63.0), (SWAP, RequestedBy.RULE, "memory")),
        (state(retired_pages_pending=1.0), (RESET, RequestedBy.RULE, "memory")),
        (state(unrepairable_memory=1.0), (SWAP, RequestedBy.RULE, "memory")),
        (state(inforom_valid=0.0), (RESET, RequestedBy.RULE, "driver")),
        (read(recovery_action=1.0), (RESET, RequestedBy.NVML, "driver")),
        (read(recovery_action=2.0), (REBOOT, RequestedBy.NVML, "driver")),
        (read(recovery_action=4.0), (RESET, RequestedBy.NVML, "driver")),
    ],
    ids=lambda value: value.fault_key if isinstance(value, Finding) else "",
)
def test_the_memory_table_and_the_drivers_readings(
    finding: Finding, wanted: tuple[RepairAction, RequestedBy, str]
) -> None:
    assert named(finding) == wanted


@pytest.mark.parametrize(
    "finding", [state(remap_banks_none=1.0), read(recovery_action=3.0), read(recovery_action=9.0)], ids=str
)
def test_what_is_only_watched_or_drained_requests_nothing(finding: Finding) -> None:
    assert due(finding) is None


def test_rows_that_are_used_up_ask_for_another_board() -> None:
    past, used_up = Past(watched_in(sample(NOW_MS - SECOND).values)), sample(remapped_rows_uncorrected=512.0)
    _, found = judged(past, NODE, used_up, POLICY, LATER_MS)
    action, _, group = named(*(each for each in found if isinstance(each, Finding)))
    assert (action, group) == (SWAP, "memory")


def test_a_lost_gpu_requests_a_reboot_of_its_host() -> None:
    (lost,) = judge_signal(signal(EventKind.GPU_LOST), POLICY)
    assert named(lost) == (REBOOT, RequestedBy.RULE, "bus")
    assert named(xid(79), lost) == (REBOOT, RequestedBy.CATALOGUE, "bus"), "one fault by two sources"


@pytest.mark.parametrize(
    ("words", "wanted"), [("0x2 (Node Reboot Required)", REBOOT), ("0x4 (Drain and Reset)", RESET)]
)
def test_an_xid_154_decides_before_the_catalogue(words: str, wanted: RepairAction) -> None:
    assert named(xid(62), xid_154(words))[:2] == (wanted, RequestedBy.XID_154)


def test_the_drivers_milder_word_decides_before_the_catalogue() -> None:
    action, asked_by, group = named(xid(79), xid_154("0x1 (GPU Reset Required)"))
    assert (action, asked_by, group) == (RESET, RequestedBy.XID_154, "bus")


def test_nvmls_word_decides_before_an_xid_154s() -> None:
    found = named(xid(95), xid_154("0x1 (GPU Reset Required)"), read(recovery_action=2.0))
    assert found == (REBOOT, RequestedBy.NVML, "memory")


def test_one_request_by_both_sources_is_nvmls_word() -> None:
    """The evidence is the log line's, as it came first; the reading has added NVML's number."""
    assert named(xid_154("0x2 (Node Reboot Required)"), read(recovery_action=2.0))[:2] == (REBOOT, RequestedBy.NVML)


def test_what_the_driver_stated_before_the_fault_is_no_word_about_it() -> None:
    found = named(xid_154("0x1 (GPU Reset Required)", after_ms=-10 * SECOND), xid(79))
    assert found[:2] == (REBOOT, RequestedBy.CATALOGUE)


def test_an_nvlink_error_requests_what_its_own_words_do() -> None:
    mechanical = xid(74, "NVLink: fatal error detected on link 6(0x100, 0x0, 0x0)")
    assert named(mechanical) == (DIAGNOSIS, RequestedBy.CATALOGUE, "link")
    told_to_reset = evidence("x", Severity.CONDEMNING, fault="xid:145", values={"code": 145.0, "has_words": 1.0})
    remedy = remedy_of(case(Standing.QUARANTINED, told_to_reset), ALL, LATER_MS, POLICY)
    assert remedy is not None
    assert remedy.action is RESET


def test_a_gsp_error_that_came_back_requests_a_reboot_and_the_third_for_another_board() -> None:
    assert named(xid(119)) == (RESET, RequestedBy.CATALOGUE, "driver")
    often = [xid(119, after_ms=-number * 4 * HOUR) for number in (2, 1, 0)]
    assert named(*often[1:])[0] is REBOOT
    assert named(*often)[0] is SWAP


def test_a_board_that_fell_off_the_bus_twice_in_a_month_is_replaced() -> None:
    assert named(xid(79, after_ms=-9 * DAY), xid(79))[0] is SWAP


def test_what_weighs_no_more_names_the_remedy_of_the_quarantine_that_was_for_it() -> None:
    (worn,) = reported(xid(165))
    later_ms = NOW_MS + 30 * DAY
    out = case(Standing.QUARANTINED, worn)
    assert remedy_of(out, ALL, later_ms, POLICY) != remedy_of(out, ALL, LATER_MS, POLICY)
    for_it = replace(out, moves=(quarantine(NOW_MS, Standing.HEALTHY, worn.id),))
    assert remedy_of(for_it, ALL, later_ms, POLICY) == remedy_of(out, ALL, LATER_MS, POLICY)


def test_the_worst_of_what_stands_decides() -> None:
    assert named(xid(95), xid(79))[0] is REBOOT
    assert named(xid(95), state(sram_threshold_exceeded=1.0))[0] is DIAGNOSIS


@pytest.mark.parametrize(
    ("before", "wanted", "then"),
    [
        ((), RESET, (REBOOT, DIAGNOSIS, SWAP)),
        ((RESET,), REBOOT, (DIAGNOSIS, SWAP)),
        ((RESET, REBOOT), DIAGNOSIS, (SWAP,)),
        ((RESET, REBOOT, DIAGNOSIS), SWAP, ()),
        ((REBOOT,), DIAGNOSIS, (SWAP,)),
        ((RepairAction.DRIVER_RELOAD,), REBOOT, (DIAGNOSIS, SWAP)),
        ((RepairAction.OTHER,), RESET, (REBOOT, SWAP)),
        ((RepairAction.OTHER, RepairAction.OTHER), RESET, (SWAP,)),
    ],
)
def test_what_was_tried_for_a_fault_group_is_followed_by_the_next_of_its_ladder(
    before: tuple[RepairAction, ...], wanted: RepairAction, then: tuple[RepairAction, ...]
) -> None:
    found = due(xid(95), repairs=tried(*before))
    assert found is not None
    assert (found.action, found.then, found.num_tried) == (wanted, then, len(before))
    assert (found.requested_by is RequestedBy.CATALOGUE) is (wanted is RESET)


def test_what_fell_off_the_bus_gets_its_power_taken_away_by_a_person() -> None:
    found = due(xid(79), repairs=tried(REBOOT, group="bus"))
    assert found is not None
    assert (found.action, found.by, found.then) == (POWER_CYCLE, RepairBy.PERSON, (DIAGNOSIS, SWAP))
    assert found.text == (
        "power cycle by a person, since it needs manual work: XID 79: the GPU has fallen off the bus; reboot for bus"
        " did not last (by rule)"
    )


def test_a_repair_of_another_fault_group_or_of_long_ago_is_no_attempt() -> None:
    assert named(xid(95), repairs=tried(RESET, group="driver"))[0] is RESET
    long_ago = replace(tried(RESET)[0], began_ms=NOW_MS - 31 * DAY, ended_ms=NOW_MS - 31 * DAY + 1)
    assert named(xid(95), repairs=(long_ago,))[0] is RESET


def test_a_repair_that_was_done_and_did_not_last_is_not_due_again() -> None:
    assert named(xid(95), repairs=tried(RESET, is_done=True))[0] is REBOOT


def test_what_the_host_does_not_allow_its_agent_is_a_persons() -> None:
    found = due(xid(95), verbs=frozenset({RepairVerb.REBOOT}))
    assert found is not None
    assert (found.by, found.verb) == (RepairBy.PERSON, None)
    assert found.actor == "a person, since its host does not allow its agent gpu_reset"
    allowed = due(xid(95))
    assert allowed is not None
    assert (allowed.by, allowed.verb, allowed.actor) == (
        RepairBy.AGENT,
        RepairVerb.GPU_RESET,
        "its agent (gpu_reset)",
    )


def test_what_is_dismissed_reported_or_over_requests_nothing() -> None:
    (fault,) = reported(xid(95))
    for gone in (replace(fault, is_dismissed=True), replace(fault, is_suspended=True)):
        assert remedy_of(case(Standing.SUSPECT, gone), ALL, LATER_MS, POLICY) is None
    (pending,) = reported(read(remap_pending=1.0))
    over = replace(pending, closed_at_ms=NOW_MS + 3 * SECOND)
    assert remedy_of(case(Standing.SUSPECT, pending), ALL, LATER_MS, POLICY) is not None
    assert remedy_of(case(Standing.SUSPECT, over), ALL, LATER_MS, POLICY) is None


@pytest.mark.parametrize("standing", sorted(set(Standing) - {Standing.SUSPECT, Standing.QUARANTINED}))
def test_nothing_is_due_in_any_other_standing(standing: Standing) -> None:
    assert remedy_of(case(standing, *reported(xid(95))), ALL, LATER_MS, POLICY) is None


_codes = st.integers(1, 300)
_past = st.lists(
    st.tuples(
        st.sampled_from(("memory", "bus", "driver", "link", "other")),
        st.integers(0, 60),
        st.sampled_from(RepairAction),
        st.booleans(),
    ),
    max_size=6,
)


@st.composite
def any_case(draw: st.DrawFn) -> GpuCase:
    found = reported(
        *(xid(code, after_ms=-number * HOUR) for number, code in enumerate(draw(st.lists(_codes, max_size=4))))
    )
    repairs = tuple(
        PastRepair(group, NOW_MS - days * DAY, NOW_MS - days * DAY + 1, is_done, action)
        for group, days, action, is_done in draw(_past)
    )
    standing = draw(st.sampled_from((Standing.QUARANTINED, Standing.SUSPECT)))
    return replace(case(standing, *found), repairs=tuple(sorted(repairs, key=lambda each: each.began_ms)))


@given(any_case(), st.frozensets(st.sampled_from(RepairVerb)))
def test_a_remedy_is_never_past_the_attempts_and_never_repeats_one(gpu: GpuCase, verbs: frozenset[RepairVerb]) -> None:
    found = remedy_of(gpu, verbs, LATER_MS, POLICY)
    if found is None or found.action is SWAP:
        return
    assert retirement_of(gpu, LATER_MS, POLICY) is None
    assert found.num_tried < POLICY.repair.attempts_max
    window_ms = LATER_MS - int(POLICY.repair.attempts_window_s * 1000)
    before = [
        each.action for each in gpu.repairs if each.fault_group == found.fault_group and each.began_ms > window_ms
    ]
    assert found.action not in before
    assert (found.by is RepairBy.AGENT) is (VERB_OF_ACTION.get(found.action) in verbs)


@given(st.lists(st.sampled_from([*NOTHING, 174, 999]), min_size=1, max_size=5), _past)
def test_codes_that_is_unknown_never_reset_or_reboot(
    codes: list[int], past: list[tuple[str, int, RepairAction, bool]]
) -> None:
    found = reported(*(xid(code, after_ms=-number * HOUR) for number, code in enumerate(codes)))
    repairs = tuple(
        PastRepair(group, NOW_MS - days * DAY, NOW_MS - days * DAY + 1, is_done, action)
        for group, days, action, is_done in past
    )
    for standing in (Standing.SUSPECT, Standing.QUARANTINED):
        remedy = remedy_of(replace(case(standing, *found), repairs=repairs), ALL, LATER_MS, POLICY)
        assert remedy is None or remedy.action in {DIAGNOSIS, SWAP}
        assert remedy is None or remedy.requested_by is RequestedBy.RULE


def test_the_table_has_every_code() -> None:
    assert sorted([*R, *B, *H, *DRAINED, *SPENT, *REPLACED, *NOTHING]) == sorted(CATALOGUE) == list(range(1, 174))
