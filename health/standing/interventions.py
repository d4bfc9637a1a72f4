"""Moves that a person makes, or that follow from a repair: each checks its request, and a refusal states the reason."""

from dataclasses import replace
from typing import Final

from health.evidence.state import is_open
from health.standing.gpu_case import RULE, GpuCase, Move, MoveReason, condemning_of, move_to, return_to_of, weighed
from health.standing.retirement import is_used_up
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import STANDING_EDGES, Standing

_REASON_LENGTH_MAX: Final = 4096


class RefusedMoveError(ValueError):
    """A requested move that is refused. The text states the cause, and what to do instead."""


def retire(gpu: GpuCase, *, person: str, reason: str, now_ms: int) -> Move:
    """Return the move out of service, from any standing."""
    return _requested_move(gpu, Standing.RETIRED, MoveReason.RETIRED, person, reason, now_ms)


def reinstate(gpu: GpuCase, *, person: str, reason: str, now_ms: int) -> Move:
    """Return the move of a retired GPU back to UNPROVEN: its burn-in follows."""
    if gpu.standing is not Standing.RETIRED:
        raise RefusedMoveError(f"{gpu.gpu_uuid} is {gpu.standing}: only a RETIRED GPU is reinstated")
    return _requested_move(gpu, Standing.UNPROVEN, MoveReason.REINSTATED, person, reason, now_ms)


def quarantine(gpu: GpuCase, *, person: str, reason: str, now_ms: int) -> Move:
    """Return the move of a person who takes a GPU out: from then on only a proof brings it back."""
    move = _requested_move(gpu, Standing.QUARANTINED, MoveReason.TAKEN_OUT, person, reason, now_ms)
    return replace(move, return_to=return_to_of(gpu))


def start_repair(gpu: GpuCase, fault_group: str, *, actor: str, reason: str, now_ms: int, policy: HealthPolicy) -> Move:
    """Return the move of a quarantined GPU to REPAIR. A person may exceed the number of attempts; a rule may not."""
    if gpu.standing is not Standing.QUARANTINED:
        raise RefusedMoveError(f"{gpu.gpu_uuid} is {gpu.standing}: quarantine it before its repair")
    if actor == RULE and is_used_up(gpu, fault_group, now_ms, policy):
        raise RefusedMoveError(f"{gpu.gpu_uuid} had {policy.repair.attempts_max} repairs of {fault_group}: retire it")
    move = _requested_move(gpu, Standing.REPAIR, MoveReason.REPAIR_STARTED, actor, reason, now_ms)
    return replace(move, return_to=gpu.origin)


def require_faults_over(gpu: GpuCase, policy: HealthPolicy) -> None:
    """Check that no standing fault still condemns the GPU: otherwise a repair has fixed nothing yet.

    Raises:
        RefusedMoveError: such a fault is open.
    """
    standing = [
        each for each in condemning_of(gpu) if each.detector in policy.evidence.standing_detectors and is_open(each)
    ]
    if standing:
        words = "; ".join(f"{each.id} ({each.summary})" for each in standing)
        raise RefusedMoveError(f"{gpu.gpu_uuid} still has the faults under repair, as its agent reports: {words}")


def finish_repair(gpu: GpuCase, *, actor: str, now_ms: int, text: str = "") -> Move:
    """Return the move after a repair that is reported done: to UNPROVEN, its burn-in follows."""
    _require_repair(gpu)
    return move_to(gpu, Standing.UNPROVEN, MoveReason.REPAIR_DONE, now_ms, actor=actor, text=text)


def fail_repair(gpu: GpuCase, *, actor: str, now_ms: int, text: str = "") -> Move:
    """Return the move after a failed repair, back to QUARANTINED.

    The breaker does not count it: the GPU was out already.
    """
    _require_repair(gpu)
    return move_to(
        gpu,
        Standing.QUARANTINED,
        MoveReason.REPAIR_FAILED,
        now_ms,
        actor=actor,
        return_to=return_to_of(gpu),
        text=text,
    )


def dismiss(
    gpu: GpuCase,
    evidence_ids: frozenset[EvidenceId],
    *,
    person: str,
    reason: str,
    now_ms: int,
    policy: HealthPolicy,
) -> Move | None:
    """Dismiss evidence on behalf of a person, and return the move that follows, or None.

    A QUARANTINED GPU returns to its origin once nothing condemns it any longer, no evidence that its quarantine cited
    is left, and its score is not under the quarantine line. One that was SUSPECT before is SUSPECT again.

    Raises:
        RefusedMoveError: without a reason, or for evidence that is not this GPU's.
    """
    _require_reason(person, reason)
    unknown = evidence_ids - {each.id for each in gpu.evidence}
    if unknown:
        raise RefusedMoveError(f"{', '.join(sorted(unknown))}: no evidence about {gpu.gpu_uuid}")
    dismissed = (replace(each, is_dismissed=True) if each.id in evidence_ids else each for each in gpu.evidence)
    after = replace(gpu, evidence=tuple(dismissed))
    if gpu.standing is not Standing.QUARANTINED or _is_proposed(after, now_ms, policy):
        return None
    target, return_to = _cleared_to(gpu)
    return replace(
        _requested_move(after, target, MoveReason.DISMISSED, person, reason, now_ms),
        evidence_ids=tuple(sorted(evidence_ids)),
        return_to=return_to,
    )


def _is_proposed(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> bool:
    """Return whether anything still keeps a GPU in quarantine after a dismissal."""
    quarantined = quarantining_move(gpu)
    cited = set(quarantined.evidence_ids) if quarantined is not None else set()
    if condemning_of(gpu) or any(each.id in cited and not each.is_dismissed for each in gpu.evidence):
        return True
    return weighed(gpu, policy, now_ms).measured_value < policy.score.quarantine_line


def _cleared_to(gpu: GpuCase) -> tuple[Standing, Standing | None]:
    """Return the standing of a cleared GPU, and its new origin."""
    origin = gpu.origin or Standing.UNPROVEN
    quarantined = quarantining_move(gpu)
    if quarantined is None or quarantined.from_standing is not Standing.SUSPECT:
        return origin, None
    return (Standing.SUSPECT, origin) if origin in STANDING_EDGES[Standing.SUSPECT] else (origin, None)


def quarantining_move(gpu: GpuCase) -> Move | None:
    return next((move for move in reversed(gpu.moves) if move.to_standing is Standing.QUARANTINED), None)


def _requested_move(
    gpu: GpuCase, target: Standing, move_reason: MoveReason, person: str, reason: str, now_ms: int
) -> Move:
    _require_reason(person, reason)
    if target not in STANDING_EDGES[gpu.standing]:
        raise RefusedMoveError(f"{gpu.gpu_uuid} is {gpu.standing}: it cannot become {target}")
    return move_to(gpu, target, move_reason, now_ms, actor=person, text=reason)


def _require_reason(person: str, reason: str) -> None:
    if not person.strip():
        raise RefusedMoveError("a requested move needs the name of the person")
    if not reason.strip() or len(reason) > _REASON_LENGTH_MAX:
        raise RefusedMoveError(f"a person's move needs a reason, 1 to {_REASON_LENGTH_MAX} characters")


def _require_repair(gpu: GpuCase) -> None:
    if gpu.standing is not Standing.REPAIR:
        raise RefusedMoveError(f"{gpu.gpu_uuid} is {gpu.standing}: it is not in REPAIR")
