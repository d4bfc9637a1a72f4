"""The place that a gang takes on the GPUs of a cover, and the victims that it needs there. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.fleet.topology import FleetState, Ints
from scheduler.model import RunningAttempt
from scheduler.reclaim.victims import VictimSet, dispensable
from scheduler.solve.solver import Chosen, Request, most_nodes, narrowed, place

MAX_MINIMISED: Final = 64
"""Most victims of which each is left out on trial; of more, the greedy run has left some out by counts."""


def minimal(
    state: FleetState,
    victim_set: VictimSet,
    owner: Ints,
    request: Request,
    attempts: Sequence[RunningAttempt],
    costs: npt.NDArray[np.float64],
) -> tuple[Chosen, list[int]]:
    """Return the target among the GPUs that the cover frees, and the victims without which none is found.

    The target is at the narrowest level at which the whole cover gives one, since the cover was chosen for that level.
    ``owner``: the attempt, by index, of each GPU that would become free to the request, else -1.
    """
    victims = list(victim_set.victims)
    given_by = _given_by(victims, owner, len(attempts))
    state.give(np.concatenate(list(given_by.values())))
    request = narrowed(state, request)
    for victim in _trials(state, request, given_by, costs):
        state.take(given_by[victim])
        if most_nodes(state, request) >= request.nodes:
            victims.remove(victim)
        else:
            state.give(given_by[victim])
    target = _sparing(state, request, [attempts[index] for index in victims], given_by) or place(state, request)
    state.take(np.concatenate([given_by[victim] for victim in victims]))
    if target is None:
        message = "a cover of victims does not free enough GPUs for the gang: a bug in Muster"
        raise AssertionError(message)
    used = set(owner[target.gpus].tolist())
    return target, [victim for victim in victims if victim in used]


def _trials(
    state: FleetState, request: Request, given_by: Mapping[int, Ints], costs: npt.NDArray[np.float64]
) -> list[int]:
    """Return the victims that may be left out, the dearest first."""
    dearest = sorted(dispensable(state, request, given_by), key=lambda index: (-costs[index], index))[:MAX_MINIMISED]
    if not dearest or not request.rule.slices:
        return dearest
    in_slices = dispensable(state, request, given_by, request.rule.slices[-1])
    return [victim for victim in dearest if victim in in_slices]


def _sparing(
    state: FleetState, request: Request, victims: Sequence[RunningAttempt], given_by: Mapping[int, Ints]
) -> Chosen | None:
    """Return the target without the hosts with which elastic victims could continue, if there is one.

    The state must have all GPUs of the victims free. Their first ranks are kept.
    """
    gangs = [attempt.elastic for attempt in victims]
    kept_parts = [part for gang in gangs if gang is not None for _, part in gang.parts[: gang.min_nodes]]
    keeps = [uuid for part in kept_parts for uuid in part]
    if not keeps:
        return None
    kept = np.intersect1d(state.layout.gpu_indices(keeps), np.concatenate(list(given_by.values())))
    state.take(kept)
    target = place(state, request)
    state.give(kept)
    return target


def _given_by(victims: Sequence[int], owner: Ints, num_attempts: int) -> dict[int, Ints]:
    is_victim = np.zeros(num_attempts + 1, dtype=np.bool_)
    is_victim[list(victims)] = True
    gpus = np.flatnonzero(is_victim[owner])
    gpus = gpus[np.argsort(owner[gpus], kind="stable")]
    numbers, starts = np.unique(owner[gpus], return_index=True)
    return dict(zip(numbers.tolist(), np.split(gpus, starts[1:]), strict=True))
