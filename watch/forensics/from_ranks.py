"""Candidates from the ranks alone: stopped and dead processes, and ranks that stand apart from the others."""

from collections.abc import Iterator
from typing import Final

from muster.domain.exit.fault_lines import Role
from watch.forensics.candidates import Candidate, State, Weight
from watch.forensics.sentences import DOES, gpu_evidence, place_words, rank_evidence, span_words
from watch.forensics.standing import CAUSE_OF_STANDING, DEAD_LOOP, Standing
from watch.reports import RankReport

MOST_READ: Final = 4
"""Ranks whose readings are evidence of a wait on GPUs."""


def rank_candidates(state: State) -> Iterator[Candidate]:
    """Yield the candidates that process states and stacks give without any sequence."""
    for standing, weight in ((Standing.STOPPED, Weight.STOPPED), (Standing.DEAD, Weight.DEAD)):
        if numbers := _first_of(state, standing):
            operation, words = state.wait_of(numbers[0])
            node = state.ranks[numbers[0]][0]
            yield Candidate(weight, CAUSE_OF_STANDING[standing], numbers, DOES[standing], operation, words, (), node)
    if state.on_gpu:
        yield _on_gpu(state)
    if state.graph.edges:
        return
    yield from _loops(state)
    apart = [number for number, stand in sorted(state.stands.items()) if stand.is_suspect]
    apart.sort(key=lambda number: (state.ranks[number][1].step, state.ranks[number][1].ticks, number))
    if apart:
        first = apart[0]
        standing = state.stands[first].standing
        numbers = tuple(number for number in apart if state.stands[number].standing is standing)
        weight = Weight.HOLDER if len(state.ranks) == 1 else Weight.APART
        node = state.ranks[first][0]
        yield Candidate(weight, CAUSE_OF_STANDING[standing], numbers, DOES[standing], "", "", (), node)
    elif behind := _behind(state):
        does = "has made the least progress"
        yield Candidate(Weight.SILENT, "unknown", behind, does, "", "", (), state.ranks[behind[0]][0])


def is_loop(rank: RankReport) -> bool:
    """Return whether the rank has used the processor for most of the time in which it has done nothing else."""
    return not rank.has_sensor and rank.busy_quiet_s is not None and rank.still_s < rank.busy_quiet_s / 2


def _loops(state: State) -> Iterator[Candidate]:
    """Yield the ranks that compute without effect, except those whose stack shows what they wait for.

    Without a stack, a rank with a GPU may also wait for that in a loop of the driver: then the cause is unknown.
    """
    numbers = tuple(
        number for number in state.busy if state.stands[number].standing in {Standing.PYTHON, Standing.UNKNOWN}
    )
    if not numbers:
        return
    first, of_all = state.stands[numbers[0]], [state.ranks[number] for number in numbers]
    is_known = first.standing is Standing.PYTHON or not of_all[0][1].gpu
    span = span_words(min(rank.busy_quiet_s or 0.0 for _, rank in of_all))
    does = f"has used the processor for {span} without output, I/O, a change of its processes or work on a GPU"
    cause = DEAD_LOOP if is_known else "unknown"
    yield Candidate(Weight.LOOP, cause, numbers, f"{does}{',' * first.is_frame_shown}", node=of_all[0][0])


def _on_gpu(state: State) -> Candidate:
    """Return the candidate that names no rank: each of these waits for another one."""
    span = span_words(min(state.ranks[number][1].busy_quiet_s or 0.0 for number in state.on_gpu))
    verb = "waits" if len(state.on_gpu) == 1 else "wait"
    whole = (
        f"{place_words(state.on_gpu, '', '')} {verb} on the GPU, which has been utilised for {span} without "
        "arithmetic, as in a collective; the program printed nothing, and no evidence names a rank that holds up the "
        "others"
    )
    evidence = [
        line
        for number in state.on_gpu[:MOST_READ]
        for node, rank in [state.ranks[number]]
        for line in (rank_evidence(node, rank, state.stands[number]), *gpu_evidence(rank, state.readings.get(node, {})))
    ]
    return Candidate(Weight.ON_GPU, "unknown", (), evidence=tuple(evidence), whole=whole)


def _first_of(state: State, standing: Standing) -> tuple[int, ...]:
    """Return the ranks of a standing; of dead ones those first that do not report the loss of another rank."""
    numbers = [number for number, stand in state.stands.items() if stand.standing is standing]
    followers = {each.finding.rank for each in state.quotes if each.finding.role is Role.CASCADE}
    own = [number for number in numbers if number not in followers]
    return tuple(sorted(own or numbers))


def _behind(state: State) -> tuple[int, ...]:
    """Return the ranks at the lowest step and tick, if others are further."""
    places = {number: (rank.step, rank.ticks) for number, (_, rank) in state.ranks.items()}
    lowest = min(places.values(), default=(0, 0))
    behind = tuple(sorted(number for number, place in places.items() if place == lowest))
    return behind if len(behind) < len(places) else ()
