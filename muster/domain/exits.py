"""From a host's exit record to the cause of the attempt's end, with its proof in one line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster.domain.causes import STOP_CAUSES
from muster.domain.states import Cause, StopReason

_SIGKILL: Final = 9
_STOPPED_BY_TRAIN: Final = frozenset({75, 76})
_SIGTERM: Final = 15
_SIGNAL_NAMES: Final[Mapping[int, str]] = {6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_GPU_OOM: Final = ("CUDA out of memory", "torch.OutOfMemoryError", "CUBLAS_STATUS_ALLOC_FAILED")
_COLLECTIVE_TIMEOUT: Final = ("Watchdog caught collective operation timeout",)
_CASCADE: Final = (
    *_COLLECTIVE_TIMEOUT,
    "Received a dump signal due to a collective timeout",
    "remote process exited or there was a network error",
    "failure detected by watchdog at work sequence id",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
)
"""What a rank says when another one failed: never a root while some rank says something else."""
_LONGEST_LINE: Final = 300


@dataclass(frozen=True, slots=True)
class RankExit:
    """Exit code or signal of one rank; neither is known where it never ran or vanished with its supervisor."""

    exit_code: int | None = None
    signal: int | None = None
    ended_at_ms: int | None = None
    error_excerpt: str | None = None

    @property
    def has_failed(self) -> bool:
        return self.signal is not None or (self.exit_code is not None and self.exit_code != 0)

    @property
    def has_succeeded(self) -> bool:
        return self.exit_code == 0 and self.signal is None


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """One host's part as its supervisor saw it end. ``launcher``: ``torchrun``, or ``command``, which is its own rank;
    None where a supervisor does not say. ``stop_reason`` is set only where the stop had taken effect:
    SIGTERM had been sent to a program that still ran.
    """

    launcher: str | None = None
    launcher_exit_code: int | None = None
    launcher_signal: int | None = None
    ranks: Mapping[int, RankExit] = field(default_factory=dict)
    stop_reason: str | None = None
    self_fenced: bool = False
    wall_time_exceeded: bool = False
    spawn_error: str | None = None
    spawn_fault: str | None = None
    oom_killed: bool = False
    cgroup_oom_kills: int | None = None
    memory_limit_bytes: int | None = None
    supervisor_vanished: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """``is_cascade``: as in ``lifecycle.model``, with no rank that can have been the first."""

    cause: Cause
    proof: str
    culprit_rank: int | None = None
    is_cascade: bool = False


class _RankDocument(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    exit_code: int | None = None
    signal: int | None = None
    ended_at_ms: int | None = None
    error_excerpt: str | None = None


class _Document(BaseModel):
    """Extra fields are ignored: a newer supervisor may say more."""

    model_config = ConfigDict(strict=True, extra="ignore")
    launcher: str | None = Field(default=None, max_length=32)
    launcher_exit_code: int | None = None
    launcher_signal: int | None = None
    ranks: dict[str, _RankDocument] = Field(default_factory=dict, max_length=4096)
    stop_reason: str | None = None
    self_fenced: bool = False
    wall_time_exceeded: bool = False
    spawn_error: str | None = None
    spawn_fault: str | None = None
    oom_killed: bool = False
    cgroup_oom_kills: int | None = None
    memory_limit_bytes: int | None = None
    supervisor_vanished: bool = False


def parse_exit_record(document: Mapping[str, Any]) -> ExitRecord:
    """The record of the wire or the disk.

    Raises:
        ValueError: names each field that does not fit, or says that the record tells nothing.
    """
    try:
        parsed = _Document.model_validate(dict(document))
        ranks = {_rank_number(name): RankExit(**rank.model_dump()) for name, rank in parsed.ranks.items()}
    except ValidationError as fault:
        fields = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors())
        raise ValueError(f"not an exit record: {fields}") from None
    record = ExitRecord(**{**{name: getattr(parsed, name) for name in _Document.model_fields}, "ranks": ranks})
    says_how = record.launcher_exit_code is not None or record.launcher_signal is not None
    if not (says_how or record.spawn_error or record.supervisor_vanished or record.self_fenced):
        raise ValueError("not an exit record: launcher_exit_code, launcher_signal and spawn_error are all missing")
    return record


def _rank_number(name: str) -> int:
    if not (name.isascii() and name.isdigit()) or len(name) > 7:
        raise ValueError(f"not an exit record: ranks.{name[:20]!r} is not the number of a rank")
    return int(name)


def classify(record: ExitRecord, stop: StopReason | None) -> Verdict:
    """Why this host's part ended. ``stop``: the most urgent reason that stood on the attempt by the server's word.

    A program that ended by itself before the stop reached it is judged by its own end. A cancel outlasts a lost
    contact: the tenant wanted no more of it, so nothing may be tried again.
    """
    if record.spawn_error is not None:
        return _never_ran(record, stop)
    if _ended_well_by_itself(record):
        return Verdict(Cause.SUCCEEDED, "every rank ended with code 0")
    if record.self_fenced or record.supervisor_vanished:
        return _out_of_contact(record, stop)
    if record.stop_reason is not None:
        return _stopped(record, stop)
    return _failed(record)


def _ended_well_by_itself(record: ExitRecord) -> bool:
    if record.stop_reason is not None or record.self_fenced or record.supervisor_vanished:
        return False
    if record.ranks:
        return all(rank.has_succeeded for rank in record.ranks.values())
    return record.launcher_exit_code == 0


def _never_ran(record: ExitRecord, stop: StopReason | None) -> Verdict:
    reason = stop or _known_stop(record.stop_reason)
    if record.spawn_fault == "refused" and reason is not None:
        return Verdict(STOP_CAUSES[reason], f"stopped ({reason}) before it started")
    if record.spawn_fault == "program":
        return Verdict(Cause.USER_ERROR, f"the program could not be started: {_last_line(record.spawn_error)}")
    if record.spawn_fault == "preflight":
        return Verdict(Cause.PREFLIGHT_FAILED, f"the host was not ready: {_last_line(record.spawn_error)}")
    return Verdict(Cause.LAUNCH_FAILED, f"the host could not start the program: {_last_line(record.spawn_error)}")


def _out_of_contact(record: ExitRecord, stop: StopReason | None) -> Verdict:
    if stop is StopReason.CANCEL:
        return Verdict(Cause.CANCELLED, "cancelled; the host ended it out of contact")
    if record.supervisor_vanished:
        return Verdict(Cause.NODE_LOST, "its supervisor vanished without an exit record")
    return Verdict(Cause.NODE_LOST, "the lease ended without contact, and the host stopped the program itself")


def _stopped(record: ExitRecord, stop: StopReason | None) -> Verdict:
    reason = stop or _known_stop(record.stop_reason)
    if reason is None:
        # A cause for a reason: the server had it stopped because another host's part had ended of that.
        is_cascade = record.stop_reason in set(Cause)
        return Verdict(Cause.NODE_LOST, f"stopped by the host: {record.stop_reason}", is_cascade=is_cascade)
    if record.wall_time_exceeded and stop is None:
        return Verdict(Cause.WALLTIME, "the wall time was over")
    return Verdict(STOP_CAUSES[reason], f"stopped: {reason}")


def _known_stop(reason: str | None) -> StopReason | None:
    return StopReason(reason) if reason in set(StopReason) else None


def _failed(record: ExitRecord) -> Verdict:
    failing = {number: rank for number, rank in record.ranks.items() if rank.has_failed}
    if not failing:
        how = _ending(record.launcher_exit_code, record.launcher_signal)
        return Verdict(Cause.LAUNCH_FAILED, f"the launcher ended with {how}, and no rank failed")
    if record.oom_killed:
        number = _first({n: rank for n, rank in failing.items() if rank.signal == _SIGKILL} or failing)
        return Verdict(Cause.HOST_OOM, _proof(number, failing[number], _memory_words(record)), number)
    if _lost_its_torchrun(record, failing):
        how = _ending(None, record.launcher_signal)
        return Verdict(Cause.LAUNCH_FAILED, f"torchrun ended with {how}, and took its ranks with it")
    if out_of_memory := {number: rank for number, rank in failing.items() if _says(rank, _GPU_OOM)}:
        number = _first(out_of_memory)
        return Verdict(Cause.GPU_OOM, _proof(number, failing[number], _line_with(failing[number], _GPU_OOM)), number)
    # torchrun ends the other ranks with SIGTERM once one has failed: those are never the root.
    own = {number: rank for number, rank in failing.items() if rank.signal != _SIGTERM} or failing
    roots = {number: rank for number, rank in own.items() if not _says(rank, _CASCADE) and not _was_told(rank)}
    timed_out = {number: rank for number, rank in own.items() if _says(rank, _COLLECTIVE_TIMEOUT)}
    if timed_out and not roots:
        number = _first(timed_out)
        words = _line_with(failing[number], _COLLECTIVE_TIMEOUT)
        return Verdict(Cause.NCCL_TIMEOUT, _proof(number, failing[number], words), number, is_cascade=True)
    number = _first(roots or own)
    words = _last_line(failing[number].error_excerpt)
    return Verdict(Cause.USER_ERROR, _proof(number, failing[number], words), number, is_cascade=not roots)


def _lost_its_torchrun(record: ExitRecord, failing: Mapping[int, RankExit]) -> bool:
    """Ranks die with their torchrun by SIGKILL, and it never ends by a signal because one of them failed."""
    is_torchrun = record.launcher == "torchrun" and record.launcher_signal is not None
    return is_torchrun and all(rank.signal == _SIGKILL for rank in failing.values())


def _memory_words(record: ExitRecord) -> str:
    """By whose count, and against which limit: whether to ask for more or to use less is the reader's next question."""
    if not record.cgroup_oom_kills:
        return "the kernel counted a memory kill"
    limit = record.memory_limit_bytes
    bound = "without a limit of its own" if limit is None else f"limited to {limit / (1 << 30):.3g} GiB"
    count = f"{record.cgroup_oom_kills} memory kill{'' if record.cgroup_oom_kills == 1 else 's'}"
    return f"the kernel counted {count} in the attempt's own group, {bound}"


def _first(ranks: Mapping[int, RankExit]) -> int:
    """The one that ended first; unknown times come last, and the lower rank where they are equal."""
    return min(ranks, key=lambda number: (ranks[number].ended_at_ms or float("inf"), number))


def _was_told(rank: RankExit) -> bool:
    """It left because another rank had been told to stop: ``muster.train``'s codes, with and without a checkpoint."""
    return rank.exit_code in _STOPPED_BY_TRAIN


def _says(rank: RankExit, tokens: tuple[str, ...]) -> bool:
    return any(token in (rank.error_excerpt or "") for token in tokens)


def _line_with(rank: RankExit, tokens: tuple[str, ...]) -> str:
    lines = (rank.error_excerpt or "").splitlines()
    return next((line.strip() for line in lines if any(token in line for token in tokens)), "")[:_LONGEST_LINE]


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else ""


def _ending(exit_code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"signal {signal}" + (f" ({_SIGNAL_NAMES[signal]})" if signal in _SIGNAL_NAMES else "")
    return f"code {exit_code}"


def _proof(number: int, rank: RankExit, words: str) -> str:
    ending = f"rank {number} ended with {_ending(rank.exit_code, rank.signal)}"
    return f"{ending}: {words}" if words else ending
