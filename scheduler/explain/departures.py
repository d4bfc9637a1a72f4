"""What-if of departures: the planner's input as it is once some attempts have left their GPUs.

A drain, a quarantine or a reclaim asks attempts to leave. Their GPUs are then free, each job waits with the right to
its good GPUs, and the planner states where it continues. Before and after, where ``a`` has to leave node 1:

    node 1   a a        node 1   . .  (cordoned)
    node 2   . .        node 2   . .                queue   a
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid
from scheduler.model import GpuView, Question, ResumeHold, RunningAttempt, WaitingJob


@dataclass(frozen=True, slots=True)
class Departure:
    """One attempt that leaves, and its job as it waits afterwards; None: it ends permanently.

    ``keeps_its_gpus``: no other job takes them.
    """

    attempt_id: AttemptId
    job: WaitingJob | None
    keeps_its_gpus: bool = True


def after_departures(question: Question, departures: Sequence[Departure]) -> Question:
    """Return the input of a cycle that begins when all of them have left and their hosts are clean."""
    gone = {each.attempt_id for each in departures}
    leaving = {each.attempt_id: each for each in question.workload.running if each.attempt_id in gone}
    freed = {uuid for attempt in leaving.values() for uuid in attempt.gpus}
    known = {job.job_id for job in question.queue}
    workload = replace(
        question.workload,
        running=tuple(each for each in question.workload.running if each.attempt_id not in gone),
        holds=(*question.workload.holds, *_holds(question, departures, leaving)),
    )
    waiting = (each.job for each in departures if each.job is not None and each.job.job_id not in known)
    queue = [*question.queue, *waiting]
    return replace(question, gpus=_freed(question.gpus, freed), queue=queue, workload=workload)


def _holds(
    question: Question, departures: Sequence[Departure], leaving: dict[AttemptId, RunningAttempt]
) -> list[ResumeHold]:
    """Return the resume holds of the jobs that have none yet. A GPU that is held for another job stays so."""
    standing = question.workload.holds
    held = {uuid for each in standing for uuid in each.gpus}
    held.update(uuid for each in question.workload.reclaims for uuid in each.hold)
    known = {each.job_id for each in standing}
    found = []
    for each in departures:
        attempt = leaving.get(each.attempt_id)
        if attempt is None or each.job is None or not each.keeps_its_gpus or each.job.job_id in known:
            continue
        own = tuple(uuid for uuid in attempt.gpus if uuid not in held)
        found.append(ResumeHold(each.job.job_id, own, each.job.tenant_id, each.job.tier))
    return found


def _freed(gpus: Sequence[GpuView], freed: Collection[GpuUuid]) -> list[GpuView]:
    # Facts are shared by all GPUs of one kind, and the planner is fast because of that: so are the changed ones.
    kinds: dict[int, AdmissionFacts] = {}

    def facts_of(gpu: GpuView) -> AdmissionFacts:
        key = id(gpu.facts)
        if key not in kinds:
            kinds[key] = replace(gpu.facts, is_assigned=False)
        return kinds[key]

    return [replace(gpu, facts=facts_of(gpu)) if gpu.uuid in freed else gpu for gpu in gpus]
