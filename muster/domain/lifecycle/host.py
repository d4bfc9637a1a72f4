"""The launcher's machine: what this host claimed, runs, must stop, has to report and may forget.

The ledger is persisted before each command with an effect is carried out, so that a launcher killed at any point
finds its way again: a CLAIMING record may claim again with the same nonce; a CLAIMED one may or may not have spawned
(the supervisor's own lock and record show which); from STARTED on, the supervisor's files show the state.

Every fact is reported from the first one on, in order, until the server says to forget the attempt: reports may be
lost, doubled or reordered without harm. Times are milliseconds of the boot-time clock.
"""

from dataclasses import replace
from typing import Final

from muster.domain.lifecycle.host_messages import (
    ClaimGranted,
    ClaimRefused,
    Command,
    Event,
    ExtendLease,
    Forget,
    GoReceived,
    HeartbeatAnswered,
    HostLedger,
    HostReady,
    HostRecord,
    Outcome,
    Phase,
    Prepare,
    ProgramExited,
    ProgramStarted,
    ProveClean,
    ProvedClean,
    Report,
    SendClaim,
    StartProgram,
    StopProgram,
    Tick,
)

__all__ = [
    "ClaimGranted",
    "ClaimRefused",
    "Command",
    "Event",
    "ExtendLease",
    "Forget",
    "GoReceived",
    "HeartbeatAnswered",
    "HostLedger",
    "HostReady",
    "HostRecord",
    "Outcome",
    "Phase",
    "Prepare",
    "ProgramExited",
    "ProgramStarted",
    "ProveClean",
    "ProvedClean",
    "Report",
    "SendClaim",
    "StartProgram",
    "StopProgram",
    "Tick",
    "may_prepare",
    "may_start",
    "restarted",
    "step",
]

_PHASES_THAT_MAY_RUN: Final = frozenset({Phase.CLAIMED, Phase.STARTED})
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
    if isinstance(event, HostReady):
        return _ready(ledger, record)
    if isinstance(event, GoReceived):
        return _go(ledger, record)
    return _progress(ledger, record, event)


def _ready(ledger: HostLedger, record: HostRecord) -> Outcome:
    if record.phase is not Phase.CLAIMED or not record.awaits_go or record.is_ready:
        return ledger, ()
    return _with(ledger, replace(record, is_ready=True)), (Report(record.attempt_id),)


def _go(ledger: HostLedger, record: HostRecord) -> Outcome:
    if record.phase is not Phase.CLAIMED or not record.is_ready or record.has_go or record.kill_at_ms is not None:
        return ledger, ()
    record = replace(record, has_go=True)
    ledger = _with(ledger, record)
    return ledger, tuple(_begun(ledger, record))


def _refused(ledger: HostLedger, record: HostRecord) -> Outcome:
    """Report that nothing ran, so that the part is clean: a claim may have been granted, and its answer lost."""
    if record.phase is not Phase.CLAIMING:
        return ledger, ()
    return _never_started(ledger, record)


def _progress(ledger: HostLedger, record: HostRecord, event: ProgramStarted | ProgramExited | ProvedClean) -> Outcome:
    report = Report(record.attempt_id)
    if isinstance(event, ProgramStarted) and record.phase is Phase.CLAIMED:
        return _with(ledger, replace(record, phase=Phase.STARTED, has_started=True)), (report,)
    if isinstance(event, ProgramExited) and record.phase in _PHASES_THAT_MAY_RUN:
        return _with(ledger, replace(record, phase=Phase.EXITED)), (report, ProveClean(record.attempt_id))
    if isinstance(event, ProvedClean) and record.phase is Phase.EXITED:
        return _with(ledger, replace(record, phase=Phase.CLEAN)), (report,)
    return ledger, ()


def restarted(ledger: HostLedger, boot_id: str) -> Outcome:
    """Apply the launcher's own start. Same boot: claim, adopt and report again. New boot: nothing old runs; forget it.

    The server learns of the reboot from the new boot id in the heartbeat, so old records need no report.
    """
    if ledger.boot_id != boot_id:
        gone = tuple(Forget(attempt_id) for attempt_id in ledger.records)
        return HostLedger(boot_id, ledger.highest_epoch), gone
    return ledger, tuple(command for record in ledger.records.values() for command in _repeated(ledger, record))


def _repeated(ledger: HostLedger, record: HostRecord) -> list[Command]:
    """Return the commands of the record's phase that the last launcher may not have carried out."""
    if record.phase is Phase.CLAIMING:
        return [SendClaim(record.attempt_id, record.fence)]
    if record.phase is Phase.CLAIMED:
        return _stopped_again(record) or [*_reported_again(record), *_begun(ledger, record)]
    if record.phase is Phase.EXITED:
        return [Report(record.attempt_id), ProveClean(record.attempt_id)]
    return [Report(record.attempt_id), *_stopped_again(record)]


def _stopped_again(record: HostRecord) -> list[Command]:
    """Repeat the stop: the launcher may have died between writing a stop down and carrying it out."""
    if record.phase not in _PHASES_THAT_MAY_RUN or record.kill_at_ms is None:
        return []
    return [StopProgram(record.attempt_id, record.kill_at_ms, record.stop_reason or "stale")]


def _reported_again(record: HostRecord) -> list[Command]:
    """Report again that the part is ready: the last launcher may have died before it reported that."""
    return [Report(record.attempt_id)] if record.is_ready and not record.has_go else []


def _begun(ledger: HostLedger, record: HostRecord) -> list[Command]:
    """Start the program, or prepare it while it has no go.

    Nothing begins while an older attempt of the job may still run here: a tick then begins it later.
    """
    if _older_runs(ledger, record):
        return []
    if _is_free_to_start(record):
        return [StartProgram(record.attempt_id)]
    return [] if record.is_ready else [Prepare(record.attempt_id)]


def may_start(record: HostRecord, now_ms: int) -> bool:
    """Return whether the program may start now: nothing prevents it, and it has its go if it needs one."""
    return may_prepare(record, now_ms) and _is_free_to_start(record)


def may_prepare(record: HostRecord, now_ms: int) -> bool:
    """Return whether anything of it may begin now: it is claimed, within the lease, and not asked to stop."""
    return record.phase is Phase.CLAIMED and now_ms < record.lease_until_ms and record.kill_at_ms is None


def _is_free_to_start(record: HostRecord) -> bool:
    return record.has_go or not record.awaits_go


def _answered(ledger: HostLedger, answer: HeartbeatAnswered, now_ms: int) -> Outcome:
    commands: list[Command] = []
    lease_until_ms = answer.sent_ms + answer.lease_ms
    stops = answer.stops or {}
    for record in tuple(ledger.records.values()):
        if record.attempt_id in answer.forget:
            ledger = _without(ledger, record)
            commands.append(Forget(record.attempt_id))
            continue
        if record.phase in _PHASES_THAT_MAY_RUN and lease_until_ms > record.lease_until_ms:
            record = replace(record, lease_until_ms=lease_until_ms)  # noqa: PLW2901  # the same record, renewed
            ledger = _with(ledger, record)
            commands.append(ExtendLease(record.attempt_id, lease_until_ms))
        if record.attempt_id in stops:
            reason, kill_after_ms = stops[record.attempt_id]
            ledger, more = _stop(ledger, record, reason, now_ms + kill_after_ms)
            commands += more
        elif record.attempt_id in answer.go:
            ledger, more = _go(ledger, record)
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
    record = replace(
        record,
        phase=Phase.CLAIMED,
        job_id=event.job_id,
        lease_until_ms=lease_until_ms,
        awaits_go=event.awaits_go,
    )
    if now_ms >= lease_until_ms or _newer_is_granted(ledger, record):
        return _never_started(ledger, record)
    ledger = _with(ledger, record)
    older = [
        other
        for other in ledger.records.values()
        if other.job_id == event.job_id and other.fence < record.fence and other.phase in _PHASES_THAT_MAY_RUN
    ]
    commands: list[Command] = []
    for other in older:
        ledger, more = _stop(ledger, other, "stale", now_ms)
        commands += more
    return ledger, (*commands, *_begun(ledger, record))


def _stop(ledger: HostLedger, record: HostRecord, reason: str, kill_at_ms: int) -> Outcome:
    if record.phase is Phase.CLAIMING:  # the grant may be in transit: report that nothing ran, and nothing will
        return _never_started(ledger, record)
    if record.phase not in _PHASES_THAT_MAY_RUN:
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
        if record.phase in _PHASES_THAT_MAY_RUN and now_ms >= record.lease_until_ms and record.kill_at_ms is None:
            ledger, more = _stop(ledger, record, "lease", now_ms)
            commands += more
        elif may_prepare(record, now_ms):
            commands += _begun(ledger, record)
    return ledger, tuple(commands)


def _older_runs(ledger: HostLedger, record: HostRecord) -> bool:
    return any(
        other.job_id == record.job_id and other.fence < record.fence and other.phase in _PHASES_THAT_MAY_RUN
        for other in ledger.records.values()
    )


def _newer_is_granted(ledger: HostLedger, record: HostRecord) -> bool:
    """Return whether the job has a newer attempt here: a grant may arrive that late."""
    return any(other.job_id == record.job_id and other.fence > record.fence for other in ledger.records.values())


def _with(ledger: HostLedger, record: HostRecord) -> HostLedger:
    return HostLedger(ledger.boot_id, ledger.highest_epoch, {**ledger.records, record.attempt_id: record})


def _without(ledger: HostLedger, record: HostRecord) -> HostLedger:
    return replace(ledger, records={key: value for key, value in ledger.records.items() if key != record.attempt_id})
