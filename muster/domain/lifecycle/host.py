"""The launcher's machine: what this host claimed, runs, must stop, has to report and may forget.

The ledger is persisted before each command with an effect is carried out, so that a launcher killed at any point
finds its way again: a CLAIMING record may claim again with the same nonce; a CLAIMED one may or may not have spawned
(the supervisor's own lock and record tell); from STARTED on, the supervisor's files tell.

Every fact is reported from the first one on, in order, until the server says to forget the attempt: reports may be
lost, doubled or reordered without harm. Times are milliseconds of the boot-time clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from muster.domain.ids import AttemptId, Fence, JobId


class Phase(StrEnum):
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    STARTED = "started"
    EXITED = "exited"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class HostRecord:
    """One attempt on this host. ``lease_until_ms`` counts from the *sending* of the claim or heartbeat."""

    attempt_id: AttemptId
    fence: Fence
    boot_id: str
    phase: Phase = Phase.CLAIMING
    job_id: JobId | None = None
    lease_until_ms: int = 0
    kill_at_ms: int | None = None
    stop_reason: str | None = None
    has_started: bool = False


@dataclass(frozen=True, slots=True)
class HostLedger:
    """All records of this host in this boot, and the highest cluster epoch it has seen (a lower one is refused)."""

    boot_id: str
    highest_epoch: int = 0
    records: Mapping[AttemptId, HostRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """``sent_ms``: when the request left; ``stops``: attempt → (reason, milliseconds until SIGKILL)."""

    sent_ms: int
    lease_ms: int
    unclaimed: tuple[tuple[AttemptId, Fence], ...] = ()
    stops: Mapping[AttemptId, tuple[str, int]] | None = None
    forget: tuple[AttemptId, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    attempt_id: AttemptId
    job_id: JobId
    sent_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ProgramStarted:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ProgramExited:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ProvedClean:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: leases may have ended, kill times may have come."""


Event = HeartbeatAnswered | ClaimGranted | ClaimRefused | ProgramStarted | ProgramExited | ProvedClean | Tick


@dataclass(frozen=True, slots=True)
class SendClaim:
    attempt_id: AttemptId
    fence: Fence


@dataclass(frozen=True, slots=True)
class StartProgram:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class StopProgram:
    """SIGTERM now, SIGKILL of everything at ``kill_at_ms``."""

    attempt_id: AttemptId
    kill_at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExtendLease:
    """Tell the supervisor, which fences itself by this time even when the launcher is dead."""

    attempt_id: AttemptId
    lease_until_ms: int


@dataclass(frozen=True, slots=True)
class ProveClean:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Report:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Forget:
    attempt_id: AttemptId


Command = SendClaim | StartProgram | StopProgram | ExtendLease | ProveClean | Report | Forget
Outcome = tuple[HostLedger, tuple[Command, ...]]

_MAY_RUN: Final = frozenset({Phase.CLAIMED, Phase.STARTED})
_EPOCH_SHIFT: Final = 32


def step(ledger: HostLedger, event: Event, now_ms: int) -> Outcome:
    """One event on this host's ledger. Events that do not fit a record's phase change nothing."""
    if isinstance(event, HeartbeatAnswered):
        return _answered(ledger, event, now_ms)
    if isinstance(event, Tick):
        return _tick(ledger, now_ms)
    record = ledger.records.get(event.attempt_id)
    if record is None:
        return ledger, ()
    if isinstance(event, ClaimGranted):
        return _granted(ledger, record, event, now_ms)
    if isinstance(event, ClaimRefused):
        return _refused(ledger, record)
    return _progress(ledger, record, event)


def _refused(ledger: HostLedger, record: HostRecord) -> Outcome:
    """An earlier claim may have been granted, and its answer lost: say that nothing ran, so that the part is clean."""
    if record.phase is not Phase.CLAIMING:
        return ledger, ()
    return _never_started(ledger, record)


def _progress(ledger: HostLedger, record: HostRecord, event: ProgramStarted | ProgramExited | ProvedClean) -> Outcome:
    report = Report(record.attempt_id)
    if isinstance(event, ProgramStarted) and record.phase is Phase.CLAIMED:
        return _with(ledger, replace(record, phase=Phase.STARTED, has_started=True)), (report,)
    if isinstance(event, ProgramExited) and record.phase in _MAY_RUN:
        return _with(ledger, replace(record, phase=Phase.EXITED)), (report, ProveClean(record.attempt_id))
    if isinstance(event, ProvedClean) and record.phase is Phase.EXITED:
        return _with(ledger, replace(record, phase=Phase.CLEAN)), (report,)
    return ledger, ()


def restarted(ledger: HostLedger, boot_id: str) -> Outcome:
    """After the launcher's own start. Same boot: claim, adopt and report again. New boot: nothing of old runs; forget.

    The server learns of the reboot from the new boot id in the heartbeat, so old records need no report.
    """
    if ledger.boot_id != boot_id:
        gone = tuple(Forget(attempt_id) for attempt_id in ledger.records)
        return HostLedger(boot_id, ledger.highest_epoch), gone
    commands: list[Command] = []
    for record in ledger.records.values():
        if record.phase is Phase.CLAIMING:
            commands.append(SendClaim(record.attempt_id, record.fence))
        elif record.phase is Phase.CLAIMED:
            commands += _stopped_again(record) or _started_again(ledger, record)
        elif record.phase is Phase.EXITED:
            commands += [Report(record.attempt_id), ProveClean(record.attempt_id)]
        else:
            commands += [Report(record.attempt_id), *_stopped_again(record)]
    return ledger, tuple(commands)


def _stopped_again(record: HostRecord) -> list[Command]:
    """The launcher may have died between writing a stop down and carrying it out."""
    if record.phase not in _MAY_RUN or record.kill_at_ms is None:
        return []
    return [StopProgram(record.attempt_id, record.kill_at_ms, record.stop_reason or "stale")]


def _started_again(ledger: HostLedger, record: HostRecord) -> list[Command]:
    """Not while an older attempt of its job may still run here: then a tick starts it later."""
    return [] if _older_runs(ledger, record) else [StartProgram(record.attempt_id)]


def may_start(record: HostRecord, now_ms: int) -> bool:
    """Whether the program may be started at this moment: claimed, within the lease, and not asked to stop."""
    return record.phase is Phase.CLAIMED and now_ms < record.lease_until_ms and record.kill_at_ms is None


def _answered(ledger: HostLedger, answer: HeartbeatAnswered, now_ms: int) -> Outcome:
    commands: list[Command] = []
    lease_until_ms = answer.sent_ms + answer.lease_ms
    stops = answer.stops or {}
    for record in tuple(ledger.records.values()):
        if record.attempt_id in answer.forget:
            ledger = _without(ledger, record)
            commands.append(Forget(record.attempt_id))
            continue
        if record.phase in _MAY_RUN and lease_until_ms > record.lease_until_ms:
            record = replace(record, lease_until_ms=lease_until_ms)  # noqa: PLW2901  # the same record, renewed
            ledger = _with(ledger, record)
            commands.append(ExtendLease(record.attempt_id, lease_until_ms))
        if record.attempt_id in stops:
            reason, kill_after_ms = stops[record.attempt_id]
            ledger, more = _stop(ledger, record, reason, now_ms + kill_after_ms)
            commands += more
        elif record.phase is Phase.CLAIMING:
            commands.append(SendClaim(record.attempt_id, record.fence))
        elif record.phase in {Phase.EXITED, Phase.CLEAN}:
            commands.append(Report(record.attempt_id))
    for attempt_id, fence in answer.unclaimed:
        epoch = fence >> _EPOCH_SHIFT
        if attempt_id in ledger.records or epoch < ledger.highest_epoch:
            continue
        record = HostRecord(attempt_id, fence, ledger.boot_id)
        ledger = replace(_with(ledger, record), highest_epoch=max(epoch, ledger.highest_epoch))
        commands.append(SendClaim(attempt_id, fence))
    return ledger, tuple(commands)


def _granted(ledger: HostLedger, record: HostRecord, event: ClaimGranted, now_ms: int) -> Outcome:
    if record.phase is not Phase.CLAIMING:
        return ledger, ()
    lease_until_ms = event.sent_ms + event.lease_ms
    record = replace(record, phase=Phase.CLAIMED, job_id=event.job_id, lease_until_ms=lease_until_ms)
    if now_ms >= lease_until_ms or _newer_is_granted(ledger, record):
        return _never_started(ledger, record)
    ledger = _with(ledger, record)
    older = [
        other
        for other in ledger.records.values()
        if other.job_id == event.job_id and other.fence < record.fence and other.phase in _MAY_RUN
    ]
    commands: list[Command] = []
    for other in older:
        ledger, more = _stop(ledger, other, "stale", now_ms)
        commands += more
    if older:
        return ledger, tuple(commands)
    return ledger, (StartProgram(record.attempt_id),)


def _stop(ledger: HostLedger, record: HostRecord, reason: str, kill_at_ms: int) -> Outcome:
    if record.phase is Phase.CLAIMING:  # the grant may be on its way: say that nothing ran, and nothing will
        return _never_started(ledger, record)
    if record.phase not in _MAY_RUN:
        return ledger, (Report(record.attempt_id),)
    if record.kill_at_ms is not None and record.kill_at_ms <= kill_at_ms:
        return ledger, ()
    record = replace(record, kill_at_ms=kill_at_ms, stop_reason=reason)
    return _with(ledger, record), (StopProgram(record.attempt_id, kill_at_ms, reason),)


def _never_started(ledger: HostLedger, record: HostRecord) -> Outcome:
    exited = replace(record, phase=Phase.EXITED)
    return _with(ledger, exited), (Report(record.attempt_id), ProveClean(record.attempt_id))


def _tick(ledger: HostLedger, now_ms: int) -> Outcome:
    """Self-fence what is past its lease, and start what waited for an older attempt of its job to go."""
    commands: list[Command] = []
    for record in tuple(ledger.records.values()):
        if record.phase in _MAY_RUN and now_ms >= record.lease_until_ms and record.kill_at_ms is None:
            ledger, more = _stop(ledger, record, "lease", now_ms)
            commands += more
        elif may_start(record, now_ms) and not _older_runs(ledger, record):
            commands.append(StartProgram(record.attempt_id))
    return ledger, tuple(commands)


def _older_runs(ledger: HostLedger, record: HostRecord) -> bool:
    return any(
        other.job_id == record.job_id and other.fence < record.fence and other.phase in _MAY_RUN
        for other in ledger.records.values()
    )


def _newer_is_granted(ledger: HostLedger, record: HostRecord) -> bool:
    """A grant may come so late that its job has another attempt here by now."""
    return any(other.job_id == record.job_id and other.fence > record.fence for other in ledger.records.values())


def _with(ledger: HostLedger, record: HostRecord) -> HostLedger:
    return HostLedger(ledger.boot_id, ledger.highest_epoch, {**ledger.records, record.attempt_id: record})


def _without(ledger: HostLedger, record: HostRecord) -> HostLedger:
    return replace(ledger, records={key: value for key, value in ledger.records.items() if key != record.attempt_id})
