"""The pairwise check of a gang that is about to start: its rounds as plain data, and the decisions from its answers.

All hosts are ready and hold their GPUs. Each round's groups are decided from the answers before (``check``), so a
restarted control plane continues where the last one was. A host without an answer in its round's time is silent.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from health.detectors.detector import counts_for_ms
from health.pairwise.check import Assessment, GroupResult, PairwiseLimits, assess
from health.pairwise.proof import Host
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.start import PAIRWISE_LATE_S

NAME: Final = "pairwise_check"
VERSION: Final = 1
_LATE_MS: Final = round(PAIRWISE_LATE_S * 1000)
_LEAST: Final = 2


class CheckState(StrEnum):
    """State of a check.

    ``AWAITED``: not all hosts are ready. ``SKIPPED``: fewer than two can. ``FAILED``: hosts were named.
    """

    AWAITED = "awaited"
    MEETING = "meeting"
    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


OPEN_CHECKS: Final = frozenset({CheckState.AWAITED, CheckState.MEETING})


@dataclass(frozen=True, slots=True)
class Member:
    """A host that is met at ``address``. ``port``: of the store that it would hold next."""

    node_id: NodeId
    address: str
    port: int
    has_gpu: bool


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host's answer: received bytes a second, or None and ``why``.

    A host that was called off shows nothing about itself.

    ``is_unable``: it cannot take part, such as without torch. ``is_own_fault``: its own process broke off.
    """

    rate_bytes_per_s: float | None = None
    why: str = ""
    is_called_off: bool = False
    is_unable: bool = False
    is_own_fault: bool = False


@dataclass(frozen=True, slots=True)
class GroupMeeting:
    """One group of a round.

    ``port``: of its store, on its first host. ``failed_ms``: since when the others are called off.
    """

    hosts: tuple[Host, ...]
    port: int
    reports: Mapping[Host, HostReport] = field(default_factory=dict)
    failed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StartCheck:
    """State of a gang's check. ``hosts``: names, neighbours next to each other.

    The hosts of ``members`` take part. The numbers are of the policy at the first claim.
    """

    hosts: tuple[Host, ...]
    round_s: float
    gather_bytes: int
    num_gathers: int
    limits: PairwiseLimits
    state: CheckState = CheckState.AWAITED
    members: Mapping[Host, Member] = field(default_factory=dict)
    rounds: tuple[tuple[GroupMeeting, ...], ...] = ()
    round_since_ms: int = 0
    why: str = ""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """GPUs, where every host has some."""
        return "cuda" if all(member.has_gpu for member in self.members.values()) else "cpu"


@dataclass(frozen=True, slots=True)
class Blame:
    """A host that must not start. ``severity`` None: it is indistinguishable from another, and has no finding."""

    host: Host
    why: str
    severity: Severity | None


def joined(check: StartCheck, host: Host, member: Member) -> StartCheck:
    if check.state is not CheckState.AWAITED or host not in check.hosts:
        return check
    return replace(check, members={**check.members, host: member})


def accept_report(check: StartCheck, host: Host, number: int, report: HostReport, port: int, now_ms: int) -> StartCheck:
    """Return the check with a host's answer. ``number``: of the round that the answer is about.

    A repeated answer, or one about another round, has no effect. A host that cannot take part is no member from then
    on.
    """
    if check.state is not CheckState.MEETING or number != len(check.rounds):
        return check
    group = next((each for each in check.rounds[-1] if host in each.hosts), None)
    if group is None or host in group.reports:
        return check
    failed_ms = group.failed_ms
    if failed_ms is None and report.rate_bytes_per_s is None:
        failed_ms = now_ms
    told = replace(group, reports={**group.reports, host: report}, failed_ms=failed_ms)
    last = tuple(told if each is group else each for each in check.rounds[-1])
    members = {**check.members, host: replace(check.members[host], port=port)}
    if report.is_unable:
        del members[host]
    return replace(check, members=members, rounds=(*check.rounds[:-1], last))


def meeting_of(check: StartCheck, host: Host) -> GroupMeeting | None:
    """Return the host's present group; None where it has answered, was called off, or is in no group of this round."""
    if check.state is not CheckState.MEETING:
        return None
    for group in check.rounds[-1]:
        if host in group.hosts:
            return None if host in group.reports or group.failed_ms is not None else group
    return None


def moved_on(check: StartCheck, now_ms: int, contact_since_ms: int) -> StartCheck:
    """Return the check with its next round, or its end, where the present one is over.

    ``AWAITED``: all hosts are ready.

    ``contact_since_ms``: since when the control plane receives answers without a gap; a round's time restarts with it.
    """
    if check.state is CheckState.AWAITED and len(check.members) < _LEAST:
        return replace(check, state=CheckState.SKIPPED, why="fewer than two of its hosts support the check")
    if check.state is CheckState.MEETING and not _is_over(check, now_ms, contact_since_ms):
        return check
    if check.state not in OPEN_CHECKS:
        return check
    if len(check.members) < _LEAST:
        return replace(check, state=CheckState.SKIPPED, why="fewer than two of its hosts can take part")
    groups = assessment(check).next_groups
    if groups:
        meetings = tuple(GroupMeeting(hosts, check.members[hosts[0]].port) for hosts in groups)
        rounds = (*check.rounds, meetings)
        return replace(check, state=CheckState.MEETING, rounds=rounds, round_since_ms=now_ms)
    blamed = blames(check)
    state = CheckState.FAILED if blamed else CheckState.PASSED
    return replace(check, state=state, why="; ".join(f"{each.host}: {each.why}" for each in blamed))


def assessment(check: StartCheck) -> Assessment:
    """Return the result of its rounds so far."""
    here = tuple(host for host in check.hosts if host in check.members)
    return assess(here, [tuple(map(result_of, groups)) for groups in check.rounds], check.limits)


def blames(check: StartCheck) -> tuple[Blame, ...]:
    """Return the hosts that must not start.

    A host that is only slower than others, and indistinguishable from them, may.

    Of hosts that failed and are indistinguishable, each is named; of two that fail with each other alone, the second.
    """
    found = assessment(check)
    results = [result_of(group) for groups in check.rounds for group in groups]
    failed = {host for groups in check.rounds for group in groups for host in _failed(group)}
    named = [
        Blame(host, why, Severity.DEGRADED if host in failed else Severity.WARNING) for host, why in found.bad.items()
    ]
    doubted = [
        Blame(host, f"it or another host is at fault: {why}", None)
        for host, why in found.undecided.items()
        if host in failed
    ]
    apart = [
        Blame(second, f"fails with {first}, and passes with others: the path between them is at fault", None)
        for first, second in found.paths
        if any(set(each.hosts) == {first, second} and each.rate_bytes_per_s is None for each in results)
    ]
    return (*named, *doubted, *apart)


def in_words(check: StartCheck) -> str:
    """Return as text why the start waits, or the result."""
    number, most = len(check.rounds), check.limits.rounds_max
    rounds = "round" if number == 1 else "rounds"
    words = {
        CheckState.AWAITED: "its hosts are checked in pairs once all are ready",
        CheckState.MEETING: f"its hosts are checked in pairs before the start: round {number} of at most {most}",
        CheckState.PASSED: f"its hosts were checked in pairs, {number} {rounds}: all may start",
        CheckState.SKIPPED: f"its hosts were not checked in pairs: {check.why}",
        CheckState.FAILED: f"its hosts were checked in pairs: {check.why}",
    }
    return words[check.state]


def finding_of(blame: Blame, severity: Severity, node_id: NodeId, at_ms: int, policy: HealthPolicy) -> Finding:
    """Return a finding about the host, not its GPUs.

    At most one GPU of each host took part, and any part of the path may be bad.
    """
    return Finding(
        detector=NAME,
        version=VERSION,
        fault_key=f"{NAME}:{'failed' if severity is Severity.DEGRADED else 'slow'}",
        gpu_uuid=None,
        node_id=node_id,
        severity=severity,
        trust=Trust.MEASURED,
        source=Source.PAIRWISE,
        onset_ms=at_ms,
        counts_for_ms=counts_for_ms(severity, policy, NAME),
        summary=f"all-gathers with other hosts of a gang before its start: {blame.why}",
    )


def ids_of(check: StartCheck, blamed: Sequence[Blame]) -> tuple[NodeId, ...]:
    return tuple(check.members[each.host].node_id for each in blamed)


def _is_over(check: StartCheck, now_ms: int, contact_since_ms: int) -> bool:
    """Return whether all have answered, or their time is over.

    After a failure in a group, the others' time is only that of an answer.
    """
    since_ms = max(check.round_since_ms, contact_since_ms)
    until_ms = since_ms + round(check.round_s * 1000) + _LATE_MS
    return all(_is_reported(group, now_ms, until_ms, contact_since_ms) for group in check.rounds[-1])


def _is_reported(group: GroupMeeting, now_ms: int, until_ms: int, contact_since_ms: int) -> bool:
    if group.reports.keys() >= set(group.hosts) or now_ms >= until_ms:
        return True
    return group.failed_ms is not None and now_ms >= max(group.failed_ms, contact_since_ms) + _LATE_MS


def _failed(group: GroupMeeting) -> Collection[Host]:
    """Return the hosts of a failed group to which the failure may be attributed.

    A host that was called off as another host's own process broke is not among them.
    """
    result = result_of(group)
    if result.rate_bytes_per_s is not None:
        return ()
    if any(said.is_own_fault for said in group.reports.values()):
        return [host for host in group.hosts if host not in group.reports or not group.reports[host].is_called_off]
    return result.silent or result.hosts


def result_of(group: GroupMeeting) -> GroupResult:
    """Return the group's result.

    A host that has not answered by the end of its round, or cannot take part, is silent.
    """
    silent = frozenset(group.hosts) - group.reports.keys() | {
        host for host, said in group.reports.items() if said.is_unable
    }
    rates = [said.rate_bytes_per_s for said in group.reports.values() if said.rate_bytes_per_s is not None]
    whys = [
        f"{host}: {said.why or 'no figure'}"
        for host, said in group.reports.items()
        if said.rate_bytes_per_s is None and not said.is_called_off
    ]
    is_whole = len(rates) == len(group.hosts)
    return GroupResult(group.hosts, min(rates) if is_whole else None, "; ".join(whys), silent)
