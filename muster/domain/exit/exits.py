"""The step from a host's exit record to the cause of the attempt's end, with its proof in one line.

A measurement of a rank's GPU decides first, then its exit code if the code has a meaning (``EXIT_CLASSES``), then the
line of its log that indicates a known fault (``exit_signs``); anything else is the program's own. Of several ranks the
first to end is the root, but never one that only missed another.

A SIGTERM that Muster did not send is no fault of the program. A SIGKILL that is neither ours nor a counted memory kill
is: it comes from a process of the job's own user, or from a person, and an excuse that any program can bring about
would cost others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muster.domain.exit.causes import STOP_CAUSES
from muster.domain.exit.exit_record import (
    CORRUPTION,
    CORRUPTION_CODE,
    DIVERGED,
    SAVE_FAILED,
    ExitRecord,
    RankExit,
    parse_exit_record,
)
from muster.domain.exit.exit_signs import (
    CASCADES,
    GPU_SIGNS,
    ROOT_CAUSES,
    TIMEOUTS,
    USAGE_ERROR,
    Sign,
    ended_out_of_gpu_memory,
    first_of,
    is_usage_error,
    last_words,
)
from muster.domain.exit.rerun_codes import RERUN_CODES, RerunCodes, declared_code
from muster.domain.ids import GpuUuid
from muster.domain.states import Cause, StopReason

__all__ = [
    "EXIT_CLASSES",
    "ExitClass",
    "ExitRecord",
    "GpuFault",
    "KnownFaults",
    "RankExit",
    "Verdict",
    "classify",
    "parse_exit_record",
]

_SIGABRT: Final = 6
"""Signal that also ends an interpreter whose program ends by an exception while threads of torch run."""
_SIGKILL: Final = 9
_SIGTERM: Final = 15
_SIGNAL_NAMES: Final[Mapping[int, str]] = {6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_LONGEST_LINE: Final = 300
_SINGLE_RANK: Final = re.compile(r"\bon rank (\d{1,7})\b")


@dataclass(frozen=True, slots=True)
class ExitClass:
    """The meaning of a rank's exit code. ``is_final``: a new attempt would end in the same way."""

    cause: Cause
    words: str
    is_final: bool = False


EXIT_CLASSES: Final[Mapping[int, ExitClass]] = {
    CORRUPTION_CODE: ExitClass(Cause.GPU_FAULT, "it asks to compute the same again on another GPU"),
    17: ExitClass(Cause.DIVERGED, "its results did not pass their validation"),
    64: ExitClass(Cause.USER_ERROR, "its command or configuration is wrong", is_final=True),
    SAVE_FAILED: ExitClass(Cause.SAVE_FAILED, "its results could not be saved"),
    93: ExitClass(Cause.USER_ERROR, "it is not to be started again", is_final=True),
}
"""16, 17 and 93 as Megatron-LM and NVRx have them, 64 as sysexits.h. 74, and 75 and 76 of a rank that was asked to
stop, are ``muster.train``'s own: another program may end with them for its own reasons (``RankExit.meant_code``)."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault of a GPU of the attempt that ends or falsifies programs, as it was measured.

    ``ranks``: the global numbers of the ranks that computed on it; empty where they are not known.
    """

    gpu_uuid: GpuUuid
    words: str
    onset_ms: int
    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class KnownFaults:
    """The faults of one attempt's GPUs since its placement.

    ``window_ms``: the largest distance between a fault and a rank's end that the fault explains.
    """

    found: tuple[GpuFault, ...] = ()
    window_ms: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause of a part's end with its proof.

    ``is_cascade``: as in ``lifecycle.model``, with no rank that can have been the first. ``is_final``: the program
    itself states that it would end in the same way again. ``is_reported``: only the program's report blames a GPU.
    ``has_lacked``: the host lacks a part of the start, and ends each further one in the same way until it is supplied.
    ``rerun_code``: the declared code by which a program of its own ended after a re-run.
    """

    cause: Cause
    proof: str
    culprit_rank: int | None = None
    is_cascade: bool = False
    is_final: bool = False
    is_reported: bool = False
    has_lacked: bool = False
    rerun_code: int | None = None


def classify(
    record: ExitRecord,
    stop: StopReason | None,
    *,
    is_elsewhere: bool = False,
    faults: KnownFaults = KnownFaults(),
    rerun_codes: RerunCodes | None = None,
) -> Verdict:
    """Return why this host's part ended.

    ``stop``: the most urgent reason that the server had for a stop of the attempt. ``is_elsewhere``: another host
    found all parts of the job's start, so a host that lacks one is at fault. ``faults``: the known faults of this
    host's GPUs. ``rerun_codes``: what the job says of its exit codes 16 and 17.

    A program that ended by itself before the stop reached it is judged by its own end. A cancel outlasts a lost
    contact: the tenant wanted no further attempt.
    """
    if record.spawn_error is not None:
        return _never_ran(record, stop, is_elsewhere=is_elsewhere)
    if _ended_well_by_itself(record):
        return Verdict(Cause.SUCCEEDED, "every rank ended with code 0")
    if record.self_fenced or record.supervisor_vanished:
        return _out_of_contact(record, stop)
    if record.stop_reason is not None:
        return _stopped(record, stop)
    return _failed(record, stop, faults, rerun_codes)


def _ended_well_by_itself(record: ExitRecord) -> bool:
    if record.stop_reason is not None or record.self_fenced or record.supervisor_vanished:
        return False
    if record.ranks:
        return all(rank.has_succeeded for rank in record.ranks.values())
    return record.launcher_exit_code == 0


def _never_ran(record: ExitRecord, stop: StopReason | None, *, is_elsewhere: bool) -> Verdict:
    reason = stop or _known_stop(record.stop_reason)
    if record.spawn_fault == "refused" and reason is not None:
        return Verdict(STOP_CAUSES[reason], f"stopped ({reason}) before it started")
    has_lacked = record.lacks is not None
    if record.spawn_fault == "program" and has_lacked and is_elsewhere:
        words = f"the host was not ready: {_last_line(record.spawn_error)}, and other hosts have it"
        return Verdict(Cause.PREFLIGHT_FAILED, words)
    if record.spawn_fault == "program":
        cause, words = Cause.USER_ERROR, "the program could not be started"
    elif record.spawn_fault == "preflight":
        cause, words = Cause.PREFLIGHT_FAILED, "the host was not ready"
    else:
        cause, words = Cause.LAUNCH_FAILED, "the host could not start the program"
    return Verdict(cause, f"{words}: {_last_line(record.spawn_error)}", has_lacked=has_lacked)


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


def _failed(
    record: ExitRecord, stop: StopReason | None, faults: KnownFaults, rerun_codes: RerunCodes | None
) -> Verdict:
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
    if lines := {number: line for number, rank in failing.items() if (line := _out_of_gpu_memory(rank)) is not None}:
        number = _first({number: failing[number] for number in lines})
        return Verdict(Cause.GPU_OOM, _proof(number, failing[number], lines[number][:_LONGEST_LINE]), number)
    # torchrun ends the other ranks with SIGTERM once one has failed: those are never the root.
    own = {number: rank for number, rank in failing.items() if rank.signal != _SIGTERM} or failing
    roots = {number: rank for number, rank in own.items() if not _is_cascade(rank)}
    if (fault := _fault_behind(roots, own, faults)) is not None:
        return _of_gpu(fault, own)
    return _root(_first(roots), roots, rerun_codes) if roots else _missed_another(record, own, stop)


def _fault_behind(roots: Mapping[int, RankExit], own: Mapping[int, RankExit], faults: KnownFaults) -> GpuFault | None:
    """Return the first fault of a GPU that explains the end. Ranks that only waited may have waited for hours."""
    if not roots and any(rank.was_stopped for rank in own.values()):
        return None
    if not roots:
        return min(faults.found, key=lambda fault: fault.onset_ms, default=None)
    first_ms = own[_first(roots)].ended_at_ms
    near = [
        fault
        for fault in faults.found
        if (not fault.ranks or fault.ranks & roots.keys())
        and (first_ms is None or abs(fault.onset_ms - first_ms) <= faults.window_ms)
    ]
    return min(near, key=lambda fault: fault.onset_ms, default=None)


def _of_gpu(fault: GpuFault, own: Mapping[int, RankExit]) -> Verdict:
    number = _first({n: rank for n, rank in own.items() if n in fault.ranks} or own)
    words = _proof(number, own[number], _last_line(own[number].error_excerpt))
    return Verdict(Cause.GPU_FAULT, f"{fault.words} on {fault.gpu_uuid}; {words}", number)


def _root(number: int, roots: Mapping[int, RankExit], rerun_codes: RerunCodes | None) -> Verdict:
    """Return the verdict on the first rank: by its exit code, by a line of its log, else as the program's own fault."""
    rank = roots[number]
    if rank.ended_by == CORRUPTION:
        proof = _reported_proof(number, rank, "")
        return Verdict(Cause.CORRUPTION, proof, _named_by(number, rank), is_reported=True)
    if (code := declared_code(rank, rerun_codes)) is not None:
        return _after_rerun(number, rank, code)
    if (known := _class_of(rank, rerun_codes)) is not None:
        is_reported = known.cause is Cause.GPU_FAULT
        proof = _reported_proof(number, rank, known.words)
        culprit = _named_by(number, rank)
        return Verdict(known.cause, proof, culprit, is_final=known.is_final, is_reported=is_reported)
    if rank.exit_code == USAGE_ERROR and is_usage_error(rank.error_excerpt):
        return Verdict(Cause.USER_ERROR, _proof(number, rank, _last_words(rank)), number, is_final=True)
    if _matches(rank, ROOT_CAUSES):
        return _with_cause(number, roots, ROOT_CAUSES)
    if (said := first_of(GPU_SIGNS, rank.error_excerpt)) is not None:
        words = f"{said[1][:_LONGEST_LINE]}, and nothing of the kind was measured on its host"
        return Verdict(Cause.USER_ERROR, _proof(number, rank, words), number)
    return Verdict(Cause.USER_ERROR, _proof(number, rank, _last_words(rank)), number)


def _class_of(rank: RankExit, rerun_codes: RerunCodes | None) -> ExitClass | None:
    if rank.meant_code is None or (rerun_codes == "own" and rank.meant_code in RERUN_CODES and not rank.is_by_runtime):
        return None
    return EXIT_CLASSES.get(rank.meant_code)


def _after_rerun(number: int, rank: RankExit, code: int) -> Verdict:
    meant, last = RERUN_CODES[code], _last_line(rank.error_excerpt)
    proof = _proof(number, rank, f"{meant.words}: {last}" if last else meant.words)
    return Verdict(meant.cause, proof, number, is_reported=meant.cause is Cause.CORRUPTION, rerun_code=code)


def _reported_proof(number: int, rank: RankExit, meaning: str) -> str:
    """Return the proof of an end whose code has a meaning: the reason that ``muster.train`` gave comes first."""
    if (reason := rank.reported_words[:_LONGEST_LINE]) != "":
        return f"{reason}; {_proof(number, rank, meaning)}"
    return _proof(number, rank, ": ".join(filter(None, (meaning, _last_line(rank.error_excerpt)))))


def _named_by(number: int, rank: RankExit) -> int | None:
    """Return the rank at fault where rank ``number`` ended first.

    Faults of values end all ranks alike, by one agreement. So the first to end means nothing there: it is the rank that
    ``muster.train`` names, if it names a single one.
    """
    if rank.ended_by not in {CORRUPTION, DIVERGED}:
        return number
    named = set(_SINGLE_RANK.findall(rank.reported_words))
    return int(named.pop()) if len(named) == 1 else None


def _last_words(rank: RankExit) -> str:
    """Return the last line of the rank's log, after the origin of a SIGKILL."""
    words = _last_line(rank.error_excerpt)
    if rank.signal != _SIGKILL:
        return words
    last = f"; its last words: {words}" if words else ""
    return f"sent neither by Muster nor by the kernel for want of memory{last}"


def _missed_another(record: ExitRecord, own: Mapping[int, RankExit], stop: StopReason | None) -> Verdict:
    """No rank here can have been the first: another host may say more."""
    number = _first(own)
    words = _proof(number, own[number], _last_line(own[number].error_excerpt))
    if (left := _left_early(record, own)) is not None:
        proof = f"rank {left} ended with code 0 while other ranks still needed it; {words}"
        return Verdict(Cause.USER_ERROR, proof, left, is_cascade=True)
    if told := {number: rank for number, rank in own.items() if _stopped_on_request(rank)}:
        if stop is not None:
            return Verdict(STOP_CAUSES[stop], f"stopped: {stop}, before this host had received it", is_cascade=True)
        number = _first(told)
        proof = f"{_proof(number, told[number], '')}, as after a stop request, which Muster had not sent"
        return Verdict(Cause.LAUNCH_FAILED, proof, number, is_cascade=True)
    waited = {number: rank for number, rank in own.items() if _matches(rank, TIMEOUTS)}
    return _with_cause(_first(waited or own), own, TIMEOUTS if waited else CASCADES, is_cascade=True)


def _with_cause(
    number: int, ranks: Mapping[int, RankExit], signs: tuple[Sign, ...], *, is_cascade: bool = False
) -> Verdict:
    """Return the verdict by the line of rank ``number`` that holds one of ``signs``."""
    sign, line = first_of(signs, ranks[number].error_excerpt) or (signs[0], "")
    return Verdict(sign.cause, _proof(number, ranks[number], line[:_LONGEST_LINE]), number, is_cascade=is_cascade)


def _lost_its_torchrun(record: ExitRecord, failing: Mapping[int, RankExit]) -> bool:
    """Ranks die with their torchrun by SIGKILL, and it never ends by a signal because one of them failed."""
    is_torchrun = record.launcher == "torchrun" and record.launcher_signal is not None
    return is_torchrun and all(rank.signal == _SIGKILL for rank in failing.values())


def _memory_words(record: ExitRecord) -> str:
    """Return as text which counter saw the memory kill, and against which limit.

    The reader has to decide next whether to request more memory or to use less.
    """
    if not record.cgroup_oom_kills:
        return "the kernel counted a memory kill"
    limit = record.memory_limit_bytes
    bound = "without a limit of its own" if limit is None else f"limited to {limit / (1 << 30):.3g} GiB"
    count = f"{record.cgroup_oom_kills} memory kill{'' if record.cgroup_oom_kills == 1 else 's'}"
    return f"the kernel counted {count} in the attempt's own group, {bound}"


def _first(ranks: Mapping[int, RankExit]) -> int:
    """Return the rank that ended first. Unknown times come last; the lower rank wins between equal times."""
    return min(ranks, key=lambda number: (ranks[number].ended_at_ms or float("inf"), number))


def _left_early(record: ExitRecord, failing: Mapping[int, RankExit]) -> int | None:
    """Return the rank that ended well before any of ``failing``, which only report that another rank was lost."""
    if any(_stopped_on_request(rank) for rank in failing.values()):
        return None
    first_failed_ms = min(rank.ended_at_ms or 0 for rank in failing.values())
    early = {
        number: rank
        for number, rank in record.ranks.items()
        if rank.has_succeeded and 0 < (rank.ended_at_ms or 0) < first_failed_ms
    }
    return _first(early) if early else None


def _stopped_on_request(rank: RankExit) -> bool:
    """Return whether the rank was asked to stop: by its outcome, or by SIGTERM if the program ignores it."""
    return rank.was_stopped or rank.signal == _SIGTERM


def _is_cascade(rank: RankExit) -> bool:
    """Return whether the rank ended because of another rank. Any cause of its own takes precedence."""
    if _stopped_on_request(rank):
        return True
    says_why = rank.meant_code in EXIT_CLASSES or _matches(rank, ROOT_CAUSES) or _matches(rank, GPU_SIGNS)
    return _matches(rank, CASCADES) and not says_why


def _out_of_gpu_memory(rank: RankExit) -> str | None:
    return ended_out_of_gpu_memory(rank.error_excerpt, was_raised=rank.exit_code == 1 or rank.signal == _SIGABRT)


def _matches(rank: RankExit, signs: tuple[Sign, ...]) -> bool:
    return first_of(signs, rank.error_excerpt) is not None


def _last_line(text: str | None) -> str:
    return last_words(text or "")[:_LONGEST_LINE]


def _ending(exit_code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"signal {signal}" + (f" ({_SIGNAL_NAMES[signal]})" if signal in _SIGNAL_NAMES else "")
    return f"code {exit_code}"


def _proof(number: int, rank: RankExit, words: str) -> str:
    ending = f"rank {number} ended with {_ending(rank.exit_code, rank.signal)}"
    return f"{ending}: {words}" if words else ending
