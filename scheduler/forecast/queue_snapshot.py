"""The pending jobs of one plan, in their order, with equal ones together: the same for all answers about the plan."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final

from muster.domain.ids import JobId, TenantId
from scheduler.fleet.maintenance_start import maintenance_start_of
from scheduler.fleet.topology import FleetState
from scheduler.model import Plan, Question, WaitingJob
from scheduler.solve.request import Request, request_of

_REQUESTED: Final = attrgetter(
    "tenant_id",
    "tier",
    "nodes",
    "min_nodes",
    "gpus_per_node",
    "required_level",
    "preferred_level",
    "avoid_nodes",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs of one tenant with equal requests, by number: if one of them does not start, none does.

    Equal requests share one object.
    """

    request: Request
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue snapshot of one plan.

    ``jobs``: the pending jobs in the order of their turns; a job's number is its index there. ``requests``: their
    requests; None in a tier that the policy no longer defines, where no job starts. ``gpus_before``: the GPUs that the
    jobs before each need at least.
    """

    jobs: tuple[WaitingJob, ...]
    number_of: Mapping[JobId, int]
    requests: Sequence[Request | None]
    kinds: Sequence[Kind]
    gpus_before: Sequence[int]

    def kinds_apart(self, alone: Collection[int]) -> list[Kind]:
        """Return the kinds, where each of these numbers is a kind of its own."""
        found = []
        for kind in self.kinds:
            rest = [number for number in kind.numbers if number not in alone]
            found += [kind] if len(rest) == len(kind.numbers) else self._kind(rest)
        return [*found, *(kind for number in sorted(alone) for kind in self._kind([number]))]

    def _kind(self, numbers: list[int]) -> list[Kind]:
        request = self.requests[numbers[0]] if numbers else None
        return [] if request is None else [Kind(request, numbers)]


def queue_snapshot_of(state: FleetState, question: Question, decided: Plan) -> QueueSnapshot:
    queue = {job.job_id: job for job in question.queue}
    jobs = tuple([queue[waiting.job_id] for waiting in decided.waiting])
    requests: list[Request | None] = [None] * len(jobs)
    kinds: dict[tuple[Request, TenantId], Kind] = {}
    equal: dict[Request, Request] = {}
    for closing_ms, numbers in _distinguished(state, question, jobs):
        request = _request(question, jobs[numbers[0]], closing_ms)
        if request is None:
            continue
        request = equal.setdefault(request, request)
        for number in numbers:
            requests[number] = request
        kind = kinds.setdefault((request, jobs[numbers[0]].tenant_id), Kind(request, []))
        kind.numbers.extend(numbers)
    for kind in kinds.values():
        kind.numbers.sort()
    number_of = {job.job_id: number for number, job in enumerate(jobs)}
    gpus_before = [*accumulate([job.fewest_gpus for job in jobs], initial=0)]
    return QueueSnapshot(jobs, number_of, requests, [*kinds.values()], gpus_before)


def _distinguished(
    state: FleetState, question: Question, jobs: Sequence[WaitingJob]
) -> Iterator[tuple[int | None, list[int]]]:
    """Return the numbers of jobs that state the same, with the closing that they would meet.

    They are grouped before requests are made, since most jobs of a long queue state one of a few things. Their run time
    is left out: it does not decide whether a place is found.
    """
    closings_ms: list[int | None] = [None] * len(jobs)
    if state.closings_ms:
        closings_ms = [maintenance_start_of(state, job, question.policy, question.workload.now_ms) for job in jobs]
    found: dict[object, tuple[int | None, list[int]]] = {}
    rules = [id(job.rule) for job in jobs]
    for number, key in enumerate(zip(map(_REQUESTED, jobs), rules, closings_ms, strict=True)):
        alike = found.get(key)
        if alike is None:
            alike = found[key] = key[2], []
        alike[1].append(number)
    return iter(found.values())


def _request(question: Question, job: WaitingJob, maintenance_start_ms: int | None) -> Request | None:
    """Return the smallest request that the job allows; None if the policy does not define its tier."""
    tier = question.policy.tiers.get(job.tier)
    if tier is None:
        return None
    return request_of(
        job, is_reclaimable=tier.notice_s is not None, maintenance_start_ms=maintenance_start_ms
    ).at_least()
