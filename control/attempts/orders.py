"""The order for a host's part of an attempt, once the host has claimed it."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import func, select

from control.attempts.attempts import LoadedAttempt
from control.attempts.learnt import learnt_before
from control.attempts.mapping import grace_ms, job_request, spec_of, stored_spec
from control.attempts.reruns import doubt_in, order_for
from control.checkpoints.checkpoints import resume_of
from control.core.unit_of_work import UnitOfWork
from control.fleet.failure_rates import rule_for_attempt
from control.secrets.job_secrets import named_by
from muster.db.models import Allocation, AllocationGpu, AttemptHost, Gpu, Job, Tenant
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.job.dataset_spec import environment_of
from muster.domain.job.elastic import pieces
from muster.domain.job.spec import CheckpointRule, JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.wire.host import (
    Order,
    PartBundle,
    PartContainer,
    PartDataset,
    PartEnvironment,
    PartGit,
    PartLimits,
    PartOutputs,
    Preparation,
    Rendezvous,
)

_FETCH_PART: Final = 0.75
"""Part of the time for all checks in which a host gets the bundle."""


def order_of(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, policy: Policy) -> Order:
    job, attempt, host = loaded.job, loaded.attempt, loaded.host(node_id)
    document = stored_spec(unit.session, job.id)
    spec = JobSpec.model_validate(document, strict=False)
    training = {**_training_environment(unit, loaded, spec, policy), "MUSTER_SPEC_SHA256": _sha256_of(document)}
    gpus = unit.session.scalars(
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == attempt.id, AllocationGpu.node_id == node_id)
        .order_by(AllocationGpu.local_index)
    ).all()
    return msgspec.structs.replace(
        _order_of_program(unit, job, spec, policy),
        attempt_id=attempt.id,
        fence=attempt.fence,
        node_rank=host.node_rank if host is not None else 0,
        num_nodes=len(loaded.hosts),
        gpus=tuple(gpus),
        env={**spec.program.env, **environment_of(spec.datasets), **training},
        rendezvous=Rendezvous(host=attempt.rendezvous_address, port=attempt.rendezvous_port),
        wall_time_s=spec.wall_time_s,
        grace_s=grace_ms(job_request(job), Timers.of(policy)) / 1000,
        preparation=_preparation(unit, loaded, host, gpus, policy),
        durations=learnt_before(unit.session, attempt),
        outputs=PartOutputs(
            patterns=spec.outputs,
            max_bytes=policy.content.outputs_bytes,
            max_files=policy.content.outputs_files,
        ),
    )


def preflight_order_of(unit: UnitOfWork, job: Job, preflight_id: str, number: int, policy: Policy) -> Order:
    """Return the order of a preflight, before the job has any GPU: its first host's alone, and never started."""
    spec = spec_of(unit.session, job)
    order = _order_of_program(unit, job, spec, policy)
    laid = tuple(name for name in order.secrets if name not in order.sealed_secrets)
    return msgspec.structs.replace(
        order,
        secrets=laid,  # of the others the server knows that they are there, and only an attempt receives them
        sealed_secrets=(),
        secret_variables={variable: name for variable, name in order.secret_variables.items() if name in laid},
        attempt_id=preflight_id,
        fence=number,
        bundle=_bundle_of(job, spec, policy, policy.dispatch.preflight_within_s),
        environment=_environment_of(spec, policy.environment.build_s),
        dataset_check_s=min(policy.dispatch.dataset_check_s, policy.dispatch.preflight_within_s / 2),
        env={**spec.program.env, **_checkpoint_environment(spec.checkpoint, job.id)},
        preparation=Preparation(disk_free_bytes=policy.dispatch.disk_free_bytes, is_preflight_only=True),
    )


def _order_of_program(unit: UnitOfWork, job: Job, spec: JobSpec, policy: Policy) -> Order:
    """Return the part of an order that depends on the job's specification alone, for one host and without a GPU."""
    return Order(
        attempt_id="",
        job_id=job.id,
        fence=0,
        node_rank=0,
        num_nodes=1,
        ranks_per_node=spec.shape.num_ranks_per_node,
        gpus=(),
        launcher=spec.program.launcher,
        script=spec.program.script,
        args=spec.program.args,
        argv=spec.program.argv,
        python=spec.program.python,
        working_dir=spec.program.working_dir,
        env=spec.program.env,
        rendezvous=Rendezvous(host="127.0.0.1", port=0),
        wall_time_s=None,
        grace_s=0.0,
        kill_grace_s=policy.contact.kill_grace_s,
        log_limit_bytes_per_stream=policy.limits.log_bytes_per_stream,
        limits=PartLimits(**spec.limits.model_dump()),
        tenant=unit.session.get_one(Tenant, job.tenant_id).name,
        secrets=spec.secret_names,
        sealed_secrets=named_by(unit.session, job.id) if spec.secret_names else (),
        secret_variables=spec.secret_env,
        job_number=job.number,
        venv=spec.program.venv,
        datasets=tuple(PartDataset(**dataset.model_dump(mode="json")) for dataset in spec.datasets),
        dataset_check_s=min(policy.dispatch.dataset_check_s, policy.dispatch.ready_within_s / 2),
        watch=policy.watch.model_dump(mode="json", exclude={"stragglers"}),
        bundle=_bundle_of(job, spec, policy, policy.dispatch.ready_within_s),
        environment=_environment_of(spec, policy.environment.ready_s),
        container=PartContainer.of(spec.model_dump(mode="json")["program"]["container"]),
    )


def _bundle_of(job: Job, spec: JobSpec, policy: Policy, within_s: float) -> PartBundle | None:
    """Return the program's bundle. The rest of ``within_s`` is for the other checks, and for the report."""
    request = job_request(job)
    if request.bundle is None and not request.awaits_bundle:
        return None
    return PartBundle(
        digest=request.bundle or "",
        tenant_id=job.tenant_id,
        fetch_s=_FETCH_PART * within_s,
        disk_free_bytes=policy.dispatch.disk_free_bytes,
        git=_git_of(spec, policy) if request.awaits_bundle else None,
    )


def _git_of(spec: JobSpec, policy: Policy) -> PartGit | None:
    git = spec.program.git
    if git is None:
        return None
    return PartGit(
        key=git.key,
        **git.model_dump(),
        build_s=policy.environment.build_s,
        max_bytes=policy.content.bundle_bytes,
        max_files=policy.content.bundle_files,
    )


def _environment_of(spec: JobSpec, within_s: float) -> PartEnvironment | None:
    environment = spec.program.environment
    return None if environment is None else PartEnvironment(**environment.model_dump(), build_s=within_s)


def _preparation(
    unit: UnitOfWork, loaded: LoadedAttempt, host: AttemptHost | None, gpus: Sequence[GpuUuid], policy: Policy
) -> Preparation | None:
    if host is None or not host.awaits_go:
        return None
    return Preparation(
        disk_free_bytes=policy.dispatch.disk_free_bytes,
        quick_check_s=quick_check_s(loaded.job, policy),
        is_simulated=bool(unit.session.scalar(select(func.bool_or(Gpu.is_simulated)).where(Gpu.uuid.in_(gpus)))),
        has_pairwise_check=loaded.attempt.pairwise is not None,
    )


def quick_check_s(job: Job, policy: Policy) -> float:
    """Return the quick check's time. It is 0 for a tier that the active policy no longer has."""
    tier = policy.tiers.get(job.tier)
    return 0.0 if tier is None else tier.quick_check_s


def _sha256_of(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _training_environment(unit: UnitOfWork, loaded: LoadedAttempt, spec: JobSpec, policy: Policy) -> dict[str, str]:
    """Return the checkpoints' place, the one to continue from, the interval of saves, and the pieces of a batch."""
    job, num_nodes = loaded.job, len(loaded.hosts)
    kept = {"good_after_steps": policy.training.good_after_steps, "hold_s": policy.training.fault_detection_s}
    doubt = doubt_in(unit.session, loaded.attempt)
    resume = json.dumps({**resume_of(unit.session, job.id, doubt), **kept})
    place = _checkpoint_environment(spec.checkpoint, job.id)
    num_pieces = pieces(spec.shape, num_nodes) << job.oom_doublings
    smaller = {"MUSTER_ACCUMULATION": str(num_pieces)} if num_pieces > 1 else {}
    interval = json.dumps(rule_for_attempt(unit, job.id, num_nodes * spec.shape.gpus_per_node, policy))
    told = {
        "MUSTER_RESUME": resume,
        "MUSTER_CHECKPOINT_INTERVAL": interval,
        "MUSTER_SCRUB": json.dumps(policy.training.scrub.model_dump()),
        "MUSTER_LAST_SAVE_RETRY_S": f"{policy.training.last_save_retry_s:g}",
        "MUSTER_NODES_RANGE": f"{spec.shape.sizes[0]}-{spec.shape.sizes[-1]}",
    }
    if spec.on_value_fault is not None:
        told["MUSTER_ON_VALUE_FAULT"] = spec.on_value_fault
    if (rerun := order_for(unit.session, loaded.attempt, policy)) is not None:
        told["MUSTER_RERUN"] = rerun
    return {**told, **smaller, **place}


def _checkpoint_environment(rule: CheckpointRule, job_id: JobId) -> dict[str, str]:
    """Return where checkpoints are. The job finds its secrets by their names.

    A store has a variable of its own, separate from the host's folder: older hosts know no store.
    """
    told = {
        "MUSTER_CHECKPOINT_DIR": None if rule.folder is None else f"{rule.folder.rstrip('/')}/{job_id}",
        "MUSTER_CHECKPOINT_STORE": None if rule.store is None else f"{rule.store.rstrip('/')}/{job_id}",
        "MUSTER_CHECKPOINT_CREDENTIALS_FILE": rule.credentials,
        "MUSTER_CHECKPOINT_KEY_FILE": rule.encryption_keys,
    }
    return {name: value for name, value in told.items() if value is not None}
