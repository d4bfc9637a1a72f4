"""What dismissed verdicts teach: a rule that was wrong so often about a job only notifies of that job for a time.

A rule is a kind of verdict in a phase, such as ``hang.step``: each phase has a limit of its own. It is muted for one
cause at a time, since a false alarm about slow storage states nothing about another cause. Only the job whose
verdicts were dismissed is affected. The limit itself is never changed: an operator sees a longer one as a proposal.
"""

from collections.abc import Mapping
from typing import Final

from muster.domain.job.verdicts import VerdictKind
from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase

MAY_BE_MUTED: Final = frozenset({VerdictKind.HANG, VerdictKind.STRAGGLER})
"""Kinds of verdicts whose reaction takes false alarms into account."""
NEVER_MUTED: Final = frozenset({"stopped_process", "dead_rank"})
"""Causes that are observed and not concluded: a process that is stopped or has ended."""
LONGER: Final = 2.0
"""The proposed limit is so many times the present one."""
_LIMIT_OF: Final[Mapping[Phase, str]] = {
    Phase.START: "start_s",
    Phase.IMPORT: "start_s",
    Phase.RESTORE: "restore_s",
    Phase.FIRST_STEP: "first_step_s",
    Phase.STEP: "step_s",
    Phase.DATA: "data_s",
    Phase.COMPILE: "compile_s",
    Phase.EVALUATION: "eval_s",
    Phase.SAVE: "save_s",
    Phase.END: "end_s",
}


def rule_of(kind: VerdictKind, phase: str) -> str:
    """Return the name of the rule that gave a verdict."""
    return f"{kind}.{phase}" if kind is VerdictKind.HANG else str(kind)


def may_be_muted(kind: VerdictKind, cause: str, *, is_measured: bool = False) -> bool:
    """Return whether false alarms may mute a verdict: not one that rests on a measurement or a process's state."""
    return kind in MAY_BE_MUTED and cause not in NEVER_MUTED and not is_measured


def only_notifies(num_dismissed: int, policy: WatchPolicy) -> bool:
    """Return whether a rule with so many false alarms of one cause about a job only notifies of it."""
    return 0 < policy.false_alarms <= num_dismissed


def proposal_of(kind: VerdictKind, phase: str, cause: str, num_dismissed: int, policy: WatchPolicy) -> str:
    """Return what an operator may change, as a sentence. The number is a proposal; nothing sets it."""
    times = (
        f"{num_dismissed} verdicts of {rule_of(kind, phase)} with the cause {cause} on this job were false alarms, "
        "so it only notifies"
    )
    if cause == "dead_loop":
        now_s = policy.busy_quiet_s
        return f"{times}; raise `watch.busy_quiet_s` from {now_s:g} s to {now_s * LONGER:g} s, or let the program print"
    field = _LIMIT_OF.get(Phase(phase)) if phase in set(Phase) else None
    if kind is not VerdictKind.HANG or field is None:
        return f"{times}; `muster verdict reset` lets it act again"
    known_s: float = getattr(policy.known, field)
    longest_s: float = getattr(policy.unknown, field)
    proposed_s = min(known_s * LONGER, longest_s)
    wanted = (
        f"raise `watch.known.{field}` from {known_s:g} s to {proposed_s:g} s"
        if proposed_s > known_s
        else f"raise `watch.unknown.{field}` and `watch.known.{field}` over {known_s:g} s"
    )
    return f"{times}; {wanted}, or let the program declare the phase with `run.phase`"
