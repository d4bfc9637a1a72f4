"""The check of a gang that is about to start, over plain data: rounds, answers that fail or never come, and its end."""

from collections.abc import Mapping
from typing import Final

from health.pairwise.check import PairwiseLimits
from health.pairwise.start import (
    CheckState,
    HostReport,
    Member,
    StartCheck,
    accept_report,
    blames,
    finding_of,
    ids_of,
    in_words,
    joined,
    meeting_of,
    moved_on,
)
from muster.domain.evidence.findings import Severity, Trust
from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.start import PAIRWISE_LATE_S

ROUND_S: Final = 20.0
LATE_MS: Final = round(PAIRWISE_LATE_S * 1000)
OVER_MS: Final = round(ROUND_S * 1000) + LATE_MS
FINE: Final = HostReport(1e9)
DEAD: Final = None
"""A host that says nothing."""


def all_ready(number: int) -> StartCheck:
    names = tuple(f"gpu-{index}" for index in range(number))
    check = StartCheck(hosts=names, round_s=ROUND_S, gather_bytes=4, num_gathers=1, limits=PairwiseLimits())
    for index, name in enumerate(names):
        check = joined(check, name, Member(NodeId(f"node_{index}"), f"10.0.0.{index}", 4000 + index, has_gpu=False))
    return check


def reported(check: StartCheck, answers: Mapping[str, HostReport | None], now_ms: int) -> StartCheck:
    """One round: a host whose answer is not its own says that its group went well, unless one of it fails."""
    groups = check.rounds[-1]
    for group in groups:
        bad = [host for host in group.hosts if host in answers]
        for host in group.hosts:
            said = answers.get(host, FINE) if host in bad or not bad else _alongside(answers[bad[0]])
            if said is not None:
                check = accept_report(check, host, len(check.rounds), said, 5000, now_ms)
    return check


def _alongside(reported: HostReport | None) -> HostReport:
    return HostReport(why="timed out") if reported is None or reported.rate_bytes_per_s is None else reported


def played(number: int, answers: Mapping[str, HostReport | None]) -> StartCheck:
    """To its end, each round's time over when not all have answered."""
    check, now_ms = moved_on(all_ready(number), 0, 0), 0
    while check.state is CheckState.MEETING:
        check = reported(check, answers, now_ms)
        now_ms += OVER_MS + LATE_MS
        check = moved_on(check, now_ms, 0)
    return check


def test_hosts_that_are_well_may_start_after_one_round() -> None:
    check = played(7, {})
    assert (check.state, len(check.rounds)) == (CheckState.PASSED, 1)
    assert [len(group.hosts) for group in check.rounds[0]] == [2, 2, 3]
    assert in_words(check) == "its hosts were checked in pairs, 1 round: all may start"


def test_one_that_fails_of_seven_is_named_within_four_rounds_and_is_degraded() -> None:
    check = played(7, {"gpu-4": HostReport(why="RuntimeError: no route to host")})
    (blame,) = blames(check)
    assert (check.state, blame.host, blame.severity) == (CheckState.FAILED, "gpu-4", Severity.DEGRADED)
    assert len(check.rounds) <= 4
    assert ids_of(check, [blame]) == (NodeId("node_4"),)
    assert "no route to host" in check.why


def test_a_slow_one_is_named_with_a_warning() -> None:
    (blame,) = blames(played(7, {"gpu-2": HostReport(1e8)}))
    assert (blame.host, blame.severity) == ("gpu-2", Severity.WARNING)
    found = finding_of(blame, Severity.WARNING, NodeId("node_2"), 5, DEFAULT_POLICY.health)
    assert (found.gpu_uuid, found.node_id, found.trust) == (None, "node_2", Trust.MEASURED)
    assert not found.threatens_correctness


def test_one_that_states_nothing_is_named_and_none_that_was_with_it() -> None:
    check = played(7, {"gpu-1": DEAD})
    (blame,) = blames(check)
    assert (blame.host, blame.why, blame.severity) == ("gpu-1", "was silent in rounds 1, 2", Severity.DEGRADED)


def test_of_two_that_fail_neither_is_accused_and_neither_starts() -> None:
    found = blames(played(2, {"gpu-0": HostReport(why="connection refused")}))
    assert [(each.host, each.severity) for each in found] == [("gpu-0", None), ("gpu-1", None)]


def test_of_two_the_one_that_was_never_received_must_not_start() -> None:
    found = blames(played(2, {"gpu-1": DEAD}))
    assert [(each.host, each.severity) for each in found] == [("gpu-1", None)]


def test_of_two_one_is_slow_next_to_none_so_both_start() -> None:
    assert played(2, {"gpu-0": HostReport(1.0)}).state is CheckState.PASSED


def test_a_path_that_fails_keeps_one_of_its_two_hosts_from_the_start() -> None:
    check, now_ms = moved_on(all_ready(6), 0, 0), 0
    broken = {"gpu-0", "gpu-1"}
    while check.state is CheckState.MEETING:
        for group in check.rounds[-1]:
            for host in group.hosts:
                said = HostReport(why="timed out") if broken <= set(group.hosts) else FINE
                check = accept_report(check, host, len(check.rounds), said, 5000, now_ms)
        now_ms += OVER_MS
        check = moved_on(check, now_ms, 0)
    (blame,) = blames(check)
    assert (blame.host, blame.severity) == ("gpu-1", None)
    assert "the path between them" in blame.why


def test_a_round_waits_for_its_time_and_no_longer() -> None:
    check = moved_on(all_ready(4), 0, 0)
    check = accept_report(check, "gpu-0", 1, FINE, 5000, 10)
    assert moved_on(check, OVER_MS - 1, 0) is check
    assert len(moved_on(check, OVER_MS, 0).rounds) == 2


def test_once_a_host_has_failed_its_group_is_called_off_and_waited_for_only_as_long_as_an_answer_takes() -> None:
    check = moved_on(all_ready(2), 0, 0)
    assert meeting_of(check, "gpu-1") is not None
    check = accept_report(check, "gpu-0", 1, HostReport(why="its process ended by signal 11"), 5000, 100)
    assert meeting_of(check, "gpu-1") is None
    assert moved_on(check, 100 + LATE_MS - 1, 0) is check
    assert moved_on(check, 100 + LATE_MS, 0) is not check
    off = accept_report(check, "gpu-1", 1, HostReport(why="called off", is_called_off=True), 5000, 200)
    assert moved_on(off, 200, 0).why.count("called off") == 0


def test_an_outage_of_the_control_plane_is_compared_with_no_host() -> None:
    check = moved_on(all_ready(4), 0, 0)
    back_ms = 10 * OVER_MS
    assert moved_on(check, back_ms, back_ms) is check
    assert moved_on(check, back_ms + OVER_MS - 1, back_ms) is check
    assert moved_on(check, back_ms + OVER_MS, back_ms) is not check


def test_what_is_stated_twice_late_or_by_a_stranger_has_no_effect() -> None:
    check = accept_report(moved_on(all_ready(4), 0, 0), "gpu-0", 1, FINE, 5000, 1)
    for host, number in (("gpu-0", 1), ("gpu-1", 0), ("gpu-1", 2), ("gpu-9", 1)):
        assert accept_report(check, host, number, HostReport(why="no"), 5000, 2) is check


def test_a_store_that_was_used_is_not_used_again() -> None:
    check = played(4, {"gpu-3": HostReport(why="no")})
    first, second = check.rounds[0][0], check.rounds[1][0]
    assert first.port == 4000
    assert second.port == 5000


def test_hosts_that_do_not_know_how_to_meet_start_without() -> None:
    check = StartCheck(hosts=("a", "b"), round_s=ROUND_S, gather_bytes=4, num_gathers=1, limits=PairwiseLimits())
    check = joined(check, "a", Member(NodeId("node_a"), "10.0.0.1", 4000, has_gpu=True))
    check = moved_on(check, 0, 0)
    assert check.state is CheckState.SKIPPED
    assert in_words(check) == "its hosts were not checked in pairs: fewer than two of its hosts support the check"


def test_gpus_are_used_where_every_host_has_some() -> None:
    check = all_ready(2)
    assert check.device == "cpu"
    for index, name in enumerate(check.hosts):
        check = joined(check, name, Member(NodeId(f"node_{index}"), "10.0.0.1", 4000, has_gpu=True))
    assert check.device == "cuda"


UNABLE: Final = HostReport(why="cannot take part: no torch", is_unable=True)


def test_a_host_that_cannot_meet_any_is_no_member_and_none_is_blamed() -> None:
    check = played(5, {"gpu-1": UNABLE})
    assert (check.state, blames(check)) == (CheckState.PASSED, ())
    assert "gpu-1" not in check.members


def test_of_two_of_which_one_cannot_none_meets() -> None:
    check = played(2, {"gpu-1": UNABLE})
    assert (check.state, check.why) == (CheckState.SKIPPED, "fewer than two of its hosts can take part")


def test_what_was_only_called_off_is_not_blamed_next_to_one_whose_own_process_broke_off() -> None:
    check, now_ms = moved_on(all_ready(2), 0, 0), 0
    while check.state is CheckState.MEETING:
        number = len(check.rounds)
        check = accept_report(
            check, "gpu-1", number, HostReport(why="its process ended by signal 9", is_own_fault=True), 5000, now_ms
        )
        check = accept_report(check, "gpu-0", number, HostReport(why="called off", is_called_off=True), 5000, now_ms)
        now_ms += OVER_MS
        check = moved_on(check, now_ms, 0)
    assert [each.host for each in blames(check)] == ["gpu-1"]
