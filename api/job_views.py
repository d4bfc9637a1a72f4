"""Jobs as the JSON that callers see: their attempts, checkpoints, training and logs."""

from collections.abc import Sequence
from typing import Any, cast

from api.money_views import planned_cost_view
from api.views import time_of
from control.attempts.types import JobRecord, LabelledJob, SubmittedJob
from control.checkpoints.types import CheckpointRecord
from control.core.visibility import may_see
from control.jobs.job_energy import AttemptEnergy
from control.jobs.job_logs import LogChunkRecord
from control.jobs.job_plans import JobPlan
from control.jobs.log_search import LogLine
from control.jobs.read import AttemptView
from control.jobs.training_views import TrainingRankRecord, TrainingStepRecord
from control.placement.wait_records import binding_of, firm_start_at, reasons_of
from muster import documents
from muster.domain.ids import TenantId
from muster.domain.job.energy import J_PER_KWH
from muster.domain.job.plan_texts import Tense, reason_text
from muster.domain.job.request import listed_spec
from muster.domain.principals import Principal
from muster.domain.states import PlanOutcome
from scheduler.model import Reason
from scheduler.solve.alignment import Alignment


def job_view(job: SubmittedJob) -> documents.Job:
    return _view(job, job.spec)


def listed_job_view(job: LabelledJob) -> documents.Job:
    """Return the job as lists show it: its specification without the program and the parts that only a host reads."""
    return _view(job, listed_spec(job.request, job.labels))


def _view(job: JobRecord, spec: dict[str, Any]) -> documents.Job:
    return {
        "id": job.id,
        "tenant_id": job.tenant_id,
        "name": job.name,
        "tier": job.tier,
        "state": job.state,
        "state_reason": job.state_reason,
        "spec": spec,
        "submitted_by": job.submitted_by,
        "created_at": time_of(job.created_at),
        "updated_at": time_of(job.updated_at),
        "finished_at": time_of(job.finished_at),
        "restarts_used": job.restarts_used,
        "accumulation": 1 << job.oom_doublings,
        "wanted_nodes": job.wanted_nodes,
        "job_class": job.job_class,
        "copied_from": job.copied_from,
        "binding": binding_of(job.state, job.wait_verdict),
        "reasons": [_reason_view(reason) for reason in reasons_of(job.state, job.wait_verdict)],
        "firm_start_at": time_of(firm_start_at(job.state, job.wait_verdict)),
        "next_try_at": time_of(job.next_try_at),
        "cancel_requested_at": time_of(job.cancel_requested_at),
        "version": job.version,
    }


def attempt_view(view: AttemptView) -> documents.Attempt:
    attempt = view.attempt
    return {
        "id": attempt.id,
        "number": attempt.number,
        "fence": attempt.fence,
        "state": attempt.state,
        "cause": attempt.cause,
        "proof": attempt.proof,
        "stop_reason": attempt.stop_reason,
        "stop_deadline_at": time_of(attempt.stop_deadline_at),
        "num_nodes": attempt.num_nodes or len(view.hosts),
        "placed_at": time_of(attempt.placed_at),
        "claimed_at": time_of(attempt.claimed_at),
        "go_at": time_of(attempt.go_at),
        "running_at": time_of(attempt.running_at),
        "ended_at": time_of(attempt.ended_at),
        "idle_since": time_of(attempt.idle_since),
        "idle_stop_at": time_of(attempt.idle_stop_at),
        "checkpoint_interval": cast("documents.CheckpointInterval | None", attempt.checkpoint_interval),
        "energy": None if attempt.energy is None else attempt_energy_view(AttemptEnergy.of_kept(attempt.energy)),
        "dropped": {
            "log_bytes": view.dropped.get("log_bytes", 0),
            "events": view.dropped.get("events", 0),
            "checkpoints": view.dropped.get("checkpoints", 0),
            "steps": view.dropped.get("steps", 0),
        },
        "steps_removed": attempt.steps_removed,
        "hosts": [
            {
                "node_id": host.part.node_id,
                "node_name": host.node_name,
                "node_rank": host.part.node_rank,
                "state": host.part.state,
                "gpus": list(host.gpus),
                "claimed_at": time_of(host.part.claimed_at),
                "awaits_go": host.part.awaits_go,
                "ready_at": time_of(host.part.ready_at),
                "is_at_fault": host.part.is_at_fault,
                "started_at": time_of(host.part.started_at),
                "exited_at": time_of(host.part.exited_at),
                "clean_at": time_of(host.part.clean_at),
                "exit_record": host.part.exit_record,
                "gpu_processes_unknown": (host.part.clean_proof or {}).get("gpu_processes_unknown"),
            }
            for host in view.hosts
        ],
    }


def job_plan_view(plan: JobPlan, principal: Principal) -> documents.JobPlan:
    """Return the plan as ``principal`` may read it.

    A tenant reads tier, size and cost of victims, and no hosts on which others still run; of jobs before it, it reads
    tier and size. Ids are included where the jobs are its own.
    """

    def is_named(owner: TenantId) -> bool:
        return may_see(principal, owner)

    return {
        "outcome": plan.outcome.value,
        "why": None if plan.verdict is None else plan.verdict.in_tense(plan.tense),
        "binding": None if plan.verdict is None else plan.verdict.binding.value,
        "reasons": []
        if plan.verdict is None
        else [_reason_view(reason, plan.tense) for reason in plan.verdict.reasons],
        "starts_at": time_of(plan.starts_at),
        "earliest_at": time_of(plan.earliest_at),
        "latest_at": time_of(plan.latest_at),
        "firm_start_at": time_of(plan.firm_start_at),
        "num_ahead": plan.num_ahead,
        "gpus_ahead": plan.gpus_ahead,
        "ahead": [
            {
                "job_id": one.job_id if is_named(one.tenant_id) else None,
                "tenant_id": one.tenant_id if is_named(one.tenant_id) else None,
                "tier": one.tier,
                "num_gpus": one.num_gpus,
            }
            for one in plan.ahead
        ],
        "expected_run_s": plan.expected_run_s,
        "expected_from": None if plan.expected_from is None else plan.expected_from.value,
        "hosts": [
            {"node_id": host.node_id, "node_name": host.node_name, "node_rank": rank, "gpus": list(host.gpus)}
            for rank, host in enumerate(plan.hosts)
            if principal.sees_all_tenants or plan.outcome is PlanOutcome.STARTS
        ],
        "groups": _groups_view(plan.alignment),
        "rails": _rails_view(plan.alignment),
        "victims": [
            {
                "job_id": victim.job_id if is_named(victim.tenant_id) else None,
                "tenant_id": victim.tenant_id if is_named(victim.tenant_id) else None,
                "tier": victim.tier,
                "num_gpus": victim.num_gpus,
                "notice_s": victim.notice_s,
                "cost_gpu_s": victim.cost_gpu_s,
                "num_kept_gpus": victim.num_kept_gpus,
            }
            for victim in plan.victims
        ],
        "changes": [{"field": change.field, "value": change.value} for change in plan.changes],
        "environment": plan.environment,
        "cost": None if plan.cost is None else planned_cost_view(plan.cost),
    }


def _groups_view(alignment: Alignment | None) -> list[documents.PlannedGroups]:
    return [
        {
            "dimension": one.dimension,
            "level": one.level,
            "num_groups": one.num_groups,
            "num_together": one.num_together,
        }
        for one in (() if alignment is None else alignment.groups)
    ]


def _rails_view(alignment: Alignment | None) -> documents.PlannedRails | None:
    found = None if alignment is None else alignment.rails
    return None if found is None else {"rails": list(found.rails), "num_hosts": found.num_hosts}


def _reason_view(reason: Reason, tense: Tense = Tense.DONE) -> documents.WaitingReason:
    return {
        "token": reason.token.value,
        "text": reason_text(reason.token, tense),
        "num_gpus": reason.num_gpus,
        "num_hosts": reason.num_hosts,
    }


def checkpoint_view(row: CheckpointRecord) -> documents.Checkpoint:
    return {
        "id": row.id,
        "attempt_id": row.attempt_id,
        "step": row.step,
        "generation": row.generation,
        "status": row.status,
        "reason": row.reason,
        "bytes": row.num_bytes,
        "save_s": row.manifest.get("save_s"),
        "committed_at": time_of(row.committed_at),
        "verified_at": time_of(row.verified_at),
        "lineage": row.manifest.get("lineage"),
        "pinned_at": time_of(row.pinned_at),
        "pinned_by": row.pinned_by,
        "pin_applied_at": time_of(row.pin_applied_at),
        "scrubbed_at": time_of(row.scrubbed_at),
    }


def energy_view(found: Sequence[AttemptEnergy]) -> documents.JobEnergy:
    known = [each.energy_j for each in found if each.energy_j is not None]
    total_j = sum(known) if known else None
    return {
        "energy_j": total_j,
        "energy_kwh": _kwh(total_j),
        "is_simulated": any(each.is_simulated for each in found),
        "attempts": [attempt_energy_view(each) for each in found],
    }


def attempt_energy_view(each: AttemptEnergy) -> documents.AttemptEnergy:
    return {
        "attempt_id": each.attempt_id,
        "number": each.number,
        "gpus": each.num_gpus,
        "gpus_metered": each.num_metered,
        "gpus_unsupported": each.num_unsupported,
        "energy_j": each.energy_j,
        "energy_kwh": _kwh(each.energy_j),
        "gpu_seconds": each.gpu_seconds,
        "assigned_gpu_seconds": each.assigned_gpu_seconds,
        "is_simulated": each.is_simulated,
        "tokens_per_j": each.tokens_per_j,
        "steps": each.num_steps,
        "j_per_step": each.j_per_step,
        "why": each.why,
    }


def _kwh(energy_j: float | None) -> float | None:
    return None if energy_j is None else energy_j / J_PER_KWH


def rank_view(row: TrainingRankRecord) -> documents.Rank:
    return {
        "attempt_id": row.attempt_id,
        "rank": row.rank,
        "node_id": row.node_id,
        "world_size": row.world_size,
        "step": row.step,
        "loss": row.loss,
        "step_s": row.step_s,
        "outcome": row.outcome,
        "pace": cast("documents.Pace | None", row.pace),
        "warnings": row.warnings or {},
        "updated_at": time_of(row.updated_at),
    }


def step_view(row: TrainingStepRecord) -> documents.Step:
    return {
        "attempt_id": row.attempt_id,
        "step": row.step,
        "loss": row.loss,
        "step_s": row.step_s,
        "pace": cast("documents.Pace | None", row.pace),
        "at": time_of(row.at),
    }


def log_line_view(found: LogLine) -> documents.LogLine:
    return {
        "attempt_id": found.attempt_id,
        "node_id": found.node_id,
        "stream": found.stream,
        "offset": found.line.offset,
        "received_at": time_of(found.received_at),
        "text": _text(found.line.text),
    }


def log_view(chunk: LogChunkRecord) -> documents.LogPiece:
    return {
        "position": chunk.position,
        "attempt_id": chunk.attempt_id,
        "node_id": chunk.node_id,
        "stream": chunk.stream,
        "offset": chunk.byte_offset,
        "received_at": time_of(chunk.received_at),
        "text": _text(chunk.content),
    }


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace").replace("\x00", "\ufffd")
