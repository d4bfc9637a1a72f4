"""Who waits by one plan, in their order, alike ones together: the same for all who ask about that plan."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final

from muster.domain.ids import JobId, TenantId
from scheduler.fleet.maintenance_start import closing_of
from scheduler.fleet.topology import FleetState
from scheduler.model import Plan, Question, WaitingJob
from scheduler.solve.request import Request, request_of

_ASKED_FOR: Final = attrgetter(
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
    """Jobs of one tenant that ask for the same, by number: where one of them does not start, none does.

    Of equal requests all have one object.
    """

    request: Request
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class Line:
    """``jobs``: who waits, as their turns came; each one's number is its place there, and ``requests`` has what it asks
    for: None of a tier that the policy no longer defines, which starts nobody. ``gpus_before``: what those before each
    need at least.
    """

    jobs: tuple[WaitingJob, ...]
    number_of: Mapping[JobId, int]
    requests: Sequence[Request | None]
    kinds: Sequence[Kind]
    gpus_before: Sequence[int]

    def kinds_apart(self, alone: Collection[int]) -> list[Kind]:
        """Where each of these numbers is a kind of its own."""
        found = []
        for kind in self.kinds:
            rest = [number for number in kind.numbers if number not in alone]
            found += [kind] if len(rest) == len(kind.numbers) else self._kind(rest)
        return [*found, *(kind for number in sorted(alone) for kind in self._kind([number]))]

    def _kind(self, numbers: list[int]) -> list[Kind]:
        request = self.requests[numbers[0]] if numbers else None
        return [] if request is None else [Kind(request, numbers)]


def line_of(state: FleetState, asked: Question, decided: Plan) -> Line:
    queue = {job.job_id: job for job in asked.queue}
    jobs = tuple([queue[waiting.job_id] for waiting in decided.waiting])
    requests: list[Request | None] = [None] * len(jobs)
    kinds: dict[tuple[Request, TenantId], Kind] = {}
    equal: dict[Request, Request] = {}
    for closing_ms, numbers in _told_apart(state, asked, jobs):
        request = _request(asked, jobs[numbers[0]], closing_ms)
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
    return Line(jobs, number_of, requests, [*kinds.values()], gpus_before)


def _told_apart(
    state: FleetState, asked: Question, jobs: Sequence[WaitingJob]
) -> Iterator[tuple[int | None, list[int]]]:
    """The numbers of those that say the same, before a request is made of it: most of a long queue say one of a few
    things. How long they run is not asked: it decides nothing about whether a place is found. And the closing that
    they would meet.
    """
    closings_ms: list[int | None] = [None] * len(jobs)
    if state.closings_ms:
        closings_ms = [closing_of(state, job, asked.policy, asked.workload.now_ms) for job in jobs]
    found: dict[object, tuple[int | None, list[int]]] = {}
    rules = [id(job.rule) for job in jobs]
    for number, key in enumerate(zip(map(_ASKED_FOR, jobs), rules, closings_ms, strict=True)):
        alike = found.get(key)
        if alike is None:
            alike = found[key] = key[2], []
        alike[1].append(number)
    return iter(found.values())


def _request(asked: Question, job: WaitingJob, closing_ms: int | None) -> Request | None:
    """The smallest that would do."""
    tier = asked.policy.tiers.get(job.tier)
    if tier is None:
        return None
    return request_of(job, is_reclaimable=tier.notice_s is not None, closing_ms=closing_ms).at_least()
