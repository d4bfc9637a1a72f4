"""Who waits by one plan, in their order, alike ones together: the same for all who ask about that plan."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from muster.domain.ids import JobId, TenantId
from scheduler.closing import closing_of
from scheduler.model import Plan, Question, WaitingJob
from scheduler.request import Request, request_of
from scheduler.topology import FleetState


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs of one tenant that ask for the same, by number: where one of them does not start, none does."""

    request: Request
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Line:
    """``jobs``: who waits, as their turns came; each one's number is its place there, and ``requests`` has what it asks
    for: None of a tier that the policy no longer defines, which starts nobody.
    """

    jobs: tuple[WaitingJob, ...]
    number_of: Mapping[JobId, int]
    requests: Sequence[Request | None]
    kinds: Sequence[Kind]

    def kinds_apart(self, alone: Collection[int]) -> list[Kind]:
        """Where each of these numbers is a kind of its own."""
        found = []
        for kind in self.kinds:
            rest = [number for number in kind.numbers if number not in alone]
            found += [kind] if len(rest) == len(kind.numbers) else self._kind(rest)
        return [*found, *(kind for number in sorted(alone) for kind in self._kind([number]))]

    def _kind(self, numbers: Sequence[int]) -> list[Kind]:
        request = self.requests[numbers[0]] if numbers else None
        return [] if request is None else [Kind(request, numbers)]


def line_of(state: FleetState, asked: Question, decided: Plan) -> Line:
    queue = {job.job_id: job for job in asked.queue}
    jobs = tuple(queue[waiting.job_id] for waiting in decided.waiting)
    requests = _requests(state, asked, jobs)
    kinds: dict[tuple[int, TenantId], tuple[Request, list[int]]] = {}
    known: dict[Request, int] = {}
    distinct = {id(request): request for request in requests if request is not None}
    number_as = {at: known.setdefault(request, len(known)) for at, request in distinct.items()}
    for number, (job, request) in enumerate(zip(jobs, requests, strict=True)):
        if request is not None:
            kinds.setdefault((number_as[id(request)], job.tenant_id), (request, []))[1].append(number)
    alike = [Kind(request, numbers) for request, numbers in kinds.values()]
    return Line(jobs, {job.job_id: number for number, job in enumerate(jobs)}, requests, alike)


def _requests(state: FleetState, asked: Question, jobs: Sequence[WaitingJob]) -> list[Request | None]:
    """The smallest that would do for each; those that ask for the same have it in common, told without a hash of it."""
    known: dict[object, Request] = {}
    found: list[Request | None] = []
    for job in jobs:
        tier = asked.policy.tiers.get(job.tier)
        if tier is None:
            found.append(None)
            continue
        closing_ms = None
        if state.closings_ms:
            closing_ms = closing_of(state, job, asked.policy, asked.workload.now_ms)
        size, place = (job.nodes, job.min_nodes, job.gpus_per_node), (job.required_level, job.preferred_level)
        key = (job.tier, size, place, job.avoid_nodes, id(job.rule), job.expected_s, closing_ms)
        if key not in known:
            is_reclaimable = tier.notice_s is not None
            known[key] = request_of(job, is_reclaimable=is_reclaimable, closing_ms=closing_ms).at_least()
        found.append(known[key])
    return found
