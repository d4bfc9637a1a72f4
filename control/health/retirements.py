"""Incident of a board that is past repair, where the policy lets no rule retire it: one a GPU.

It is open as long as the rule would retire the GPU: until it is retired, or until its grounds no longer exist (a
dismissal, a burn-in, a repair that is done, or repairs so long ago that they count no more).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from control.core.unit_of_work import UnitOfWork
from control.incidents import incidents
from health.standing.gpu_case import GpuCase, Move, MoveReason
from health.standing.retirement import retirement_of
from muster.db.models import Gpu
from muster.domain.evidence.findings import Severity
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from muster.domain.times import to_ms, to_time

KIND: Final = IncidentKind.RETIREMENT_PROPOSED


def keep_proposals(
    unit: UnitOfWork, gpus: Sequence[Gpu], cases: Mapping[GpuUuid, GpuCase], policy: HealthPolicy
) -> None:
    """Keep incidents about exactly the GPUs among ``gpus`` (locked) that a rule would retire if it were allowed to."""
    proposed: dict[str, Move] = {}
    if not policy.repair.retires_by_rule:
        moves = (retirement_of(cases[gpu.uuid], to_ms(unit.now), policy) for gpu in gpus)
        proposed = {move.gpu_uuid: move for move in moves if move is not None}
    standing = {found.subject_id: found for found in incidents.open_about(unit, KIND, [gpu.uuid for gpu in gpus])}
    for gpu in gpus:
        move, incident = proposed.get(gpu.uuid), standing.get(gpu.uuid)
        if move is not None and incident is None:
            _propose(unit, gpu, cases[gpu.uuid], move)
        elif move is None and incident is not None:
            is_retired = gpu.standing is Standing.RETIRED
            why = "it is retired" if is_retired else f"nothing asks for it any more; it is {gpu.standing}"
            incidents.close_incident(unit, incident, reason=why)


def _propose(unit: UnitOfWork, gpu: Gpu, case: GpuCase, move: Move) -> None:
    cited = [each for each in case.evidence if each.id in set(move.evidence_ids)]
    words = "; ".join(each.summary for each in cited) if move.reason is MoveReason.TO_BE_REPLACED else move.text
    payload: dict[str, Any] = {
        "severity": Severity.CONDEMNING.name.lower(),
        "gpu_uuid": gpu.uuid,
        "serial": gpu.serial,
        "node_id": gpu.node_id,
        "cause": move.reason,
        "evidence": [
            {
                "id": each.id,
                "fault_key": each.fault_key,
                "summary": each.summary,
                "onset_at": to_time(each.onset_ms).isoformat(),
            }
            for each in cited
        ],
        "to_do": f"Have the board replaced and retire it: `muster gpu retire {gpu.uuid}`. If that is wrong, dismiss "
        "the cited evidence, or repair it again: a repair that is done ends the proposal.",
    }
    incidents.open_incident(unit, KIND, "gpu", gpu.uuid, f"{gpu.uuid} is to be retired: {words}", payload)
