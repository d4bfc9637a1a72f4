"""The choice of victims for one gang: the ones that lose least, of all sets that suffice. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from scheduler.fleet.topology import FleetState, Ints
from scheduler.holds.outcomes import Obstacle, Refused
from scheduler.model import RunnerUp, RunningAttempt
from scheduler.reclaim.candidates import ReclaimCandidates
from scheduler.reclaim.lending import Claim
from scheduler.reclaim.minimise_victims import minimal
from scheduler.reclaim.reclaim_refusal import Refusals
from scheduler.reclaim.release_effect import Due, Reach
from scheduler.reclaim.shrinking import Surplus, cheapest_shrink, kept_alongside, surplus_of, within_cap
from scheduler.reclaim.victims import VictimCandidates, VictimSet, cheapest_covers
from scheduler.solve.solver import Chosen, Request


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice. ``target``: where the gang goes once ``victims``, by index, have given their GPUs in it."""

    target: Chosen
    victims: list[int]
    cost: float
    runner_up: RunnerUp | None = None


class Chooser:
    """The choice in one cycle, on a state in which the GPUs that become free by themselves are free."""

    def __init__(
        self,
        state: FleetState,
        attempts: Sequence[RunningAttempt],
        candidates: ReclaimCandidates,
        reach: Reach,
        now_ms: int,
        shrink_cost_factor: float,
    ) -> None:
        self._state, self._attempts, self._candidates, self._reach, self._now_ms = (
            state,
            attempts,
            candidates,
            reach,
            now_ms,
        )
        self._shrink_cost_factor = shrink_cost_factor
        self._refusals = Refusals(state, reach, candidates, now_ms)

    def victims(self, request: Request, claim: Claim | None, due: Due | None = None) -> Choice | Refused:
        """Return the victims. Elastic attempts that can shrink are preferred, unless whole victims lose far less.

        The state must have the GPUs free that become free by themselves. ``due``: the victims of now, if known.
        """
        due = due or self._reach.due(self._candidates.free_from_ms(request, claim), request, self._now_ms)
        free_from = due.free_from
        whole = self._whole_victims(request, due, claim)
        shrunk = self._shrunk(request, free_from, claim)
        if shrunk is None and isinstance(whole, Refused):
            return self._mixed(request, free_from, claim, whole) or whole
        if shrunk is None:
            return whole
        if isinstance(whole, Refused):
            return shrunk
        is_too_dear = shrunk.cost > whole.cost * self._shrink_cost_factor
        choice, other = (whole, shrunk) if is_too_dear else (shrunk, whole)
        return replace(choice, runner_up=self._next_best(choice, self._runner_up(other), whole.runner_up))

    def _next_best(self, choice: Choice, *others: RunnerUp | None) -> RunnerUp | None:
        """Return the cheapest choice with other victims."""
        own = {self._attempts[index].attempt_id for index in choice.victims}
        differing = (one for one in others if one is not None and set(one.victims) != own)
        return min(differing, key=lambda one: one.cost_gpu_s, default=None)

    def _shrunk(self, request: Request, free_from: Ints, claim: Claim | None) -> Choice | None:
        if not self._candidates.elastic:
            return None
        owner = self._reach.owners_if(free_from <= self._now_ms, request)
        offers = self._offers(owner, free_from)
        shrink = cheapest_shrink(self._state, request, offers, self._candidates.allowance)
        if shrink is None:
            return None
        target = self._reach.with_freed(shrink.gpus, request)
        if target is None:
            return None
        used = set(owner[target.gpus].tolist())
        victims = [victim for victim in shrink.victims if victim in used]
        if claim is not None and not claim.may_lose(victims, self._given_up(victims, target)):
            return None
        return Choice(target, victims, float(sum(self._candidates.costs[index] for index in victims)))

    def _offers(self, owner: Ints, free_from: Ints) -> list[Surplus]:
        """Return the hosts that elastic attempts could give now."""
        return [
            surplus_of(
                index, self._attempts[index], self._state.layout, owner, cost=float(self._candidates.costs[index])
            )
            for index in self._candidates.elastic
            if free_from[index] <= self._now_ms
        ]

    def _mixed(self, request: Request, free_from: Ints, claim: Claim | None, whole: Refused) -> Choice | None:
        """Return elastic victims that give spare hosts, together with others that end.

        This is tried if caps or guarantees make neither alone sufficient.
        """
        givers = self._candidates
        if not givers.elastic or whole.obstacle not in {Obstacle.CAP, Obstacle.GUARANTEES}:
            return None
        may_give = givers.is_within_cap()
        may_give[givers.elastic] = True
        owner = self._reach.owners_if(may_give & (free_from <= self._now_ms), request)
        owner, num_given = within_cap(owner, self._offers(owner, free_from), givers.allowance)
        num_gpus = [num_given.get(index, num) for index, num in enumerate(givers.num_gpus)]
        candidates = replace(self._reach.candidates(owner, givers.allowance_by_code()), num_gpus=num_gpus)
        if claim is not None:
            candidates = replace(candidates, may_lose=partial(claim.may_lose, given=num_given))
        return self._covered(request, owner, candidates)

    def _covered(
        self, request: Request, owner: Ints, candidates: VictimCandidates, claim: Claim | None = None
    ) -> Choice | None:
        """Return the cheapest set that suffices and that the claim allows, as its victims would be left."""
        rest = iter(cheapest_covers(self._state, request, candidates))
        for cover in rest:
            target, victims = minimal(self._state, cover, owner, request, self._attempts, self._candidates.costs)
            if claim is None or claim.may_lose(victims, self._given_up(victims, target)):
                break
        else:
            return None
        next_best = next((other for other in rest if set(other.victims) != set(victims)), None)
        cost = float(sum(self._candidates.costs[index] for index in victims))
        return Choice(target, victims, cost, None if next_best is None else self._runner_up(next_best))

    def _given_up(self, victims: Sequence[int], target: Chosen) -> dict[int, int]:
        """Return the GPUs that each gives for the target: all of its own if it cannot continue with the rest."""
        held = frozenset([self._state.layout.uuids[gpu] for gpu in target.gpus.tolist()])
        attempts = {index: self._attempts[index] for index in victims}
        return {index: len(one.gpus) - len(kept_alongside(one, held)) for index, one in attempts.items()}

    def _whole_victims(self, request: Request, due: Due, claim: Claim | None) -> Choice | Refused:
        givers, free_from, owner = self._candidates, due.free_from, due.owner
        candidates = self._reach.candidates(owner, givers.allowance_by_code(), due.shares)
        lent = candidates if claim is None else replace(candidates, may_lose=claim.may_lose)
        choice = self._covered(request, owner, lent, claim)
        if choice is None and claim is not None and cheapest_covers(self._state, request, candidates):
            return Refused(Obstacle.GUARANTEES, num_gpus=self._reach.num_given(free_from <= self._now_ms, request))
        return choice or self._refusals.of(free_from, request, claim)

    def _runner_up(self, victim_set: VictimSet | Choice) -> RunnerUp:
        return RunnerUp(tuple(self._attempts[index].attempt_id for index in victim_set.victims), victim_set.cost)
