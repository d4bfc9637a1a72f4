"""GPUs that stay a job's after an interruption, as in ``control.attempts.resume_holds``.

They stay so until the job continues or cannot. ``Kept`` computes them apart from the holds, so that a hold that was
forgotten, or is never released, shows.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from muster.domain.exit.causes import KEEPS_ITS_GPUS
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.policy.document import Policy
from scheduler.model import Plan, Question, WaitingJob
from simulator.world.truth import require

Parts = Mapping[NodeId, Collection[GpuUuid]]


def kept_of(life: AttemptLifecycle, parts: Parts) -> Iterator[GpuUuid]:
    """Yield the GPUs that the job of an ended attempt keeps: all except the GPUs of hosts at fault."""
    if life.ending is None or life.ending.cause not in KEEPS_ITS_GPUS:
        return
    at_fault = {part.node_id for part in life.hosts if part.is_at_fault}
    for node_id, part in parts.items():
        if node_id not in at_fault:
            yield from part


@dataclass(slots=True)
class Kept:
    """The job that keeps each GPU since an interruption."""

    job_of: dict[GpuUuid, JobId] = field(default_factory=dict)

    def note(self, life: AttemptLifecycle, parts: Parts, hold: Mapping[GpuUuid, JobId]) -> None:
        """Record the kept GPUs. ``hold``: GPUs that are already held for jobs; these stay theirs."""
        own = (gpu for gpu in kept_of(life, parts) if hold.get(gpu, life.job_id) == life.job_id)
        self.job_of.update(dict.fromkeys(own, life.job_id))

    def forget(self, job_id: JobId, gpus: Collection[GpuUuid] | None = None) -> None:
        """Forget the job's GPUs; ``gpus``: only these of them."""
        self.job_of = {
            gpu: owner
            for gpu, owner in self.job_of.items()
            if owner != job_id or (gpus is not None and gpu not in gpus)
        }

    def require_own(self, job_id: JobId, gpus: Collection[GpuUuid]) -> None:
        taken = {gpu: owner for gpu in gpus if (owner := self.job_of.get(gpu, job_id)) != job_id}
        require(not taken, "kept", f"{taken} are kept since an interruption, and {job_id} takes them")


def fault_of_kept(question: Question, decided: Plan) -> str | None:
    """Return which hold this plan keeps without using it or waiting with it; None if there is none."""
    settled = {one.job_id for one in decided.placements} | {one.beneficiary for one in decided.lapses}
    queue = {job.job_id: job for job in question.queue} if question.workload.holds else {}
    for own in question.workload.holds:
        job = queue.get(own.job_id)
        if (
            job is not None
            and own.job_id not in settled
            and not _may_wait(job, question.policy, question.workload.now_ms)
        ):
            return f"{own} remains held, and {own.job_id} neither continues on it nor waits for a replacement"
    return None


def _may_wait(job: WaitingJob, policy: Policy, now_ms: int) -> bool:
    """Return whether the job may still wait for another host of its required domain, by the policy."""
    if job.interrupted_ms is None or job.required_level is None or job.min_nodes is not None:
        return False
    return now_ms < job.interrupted_ms + int(policy.recovery.wait_for_replacement_s * 1000)
