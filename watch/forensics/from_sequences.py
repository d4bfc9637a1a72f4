"""Candidates from the sequences of collectives: the awaited rank, differing collectives, and what all ranks are in."""

from collections.abc import Iterator

from watch.forensics.candidates import Candidate, State, Weight
from watch.forensics.mismatches import Mismatch, first_mismatch, order_breakers
from watch.forensics.sentences import DOES, place_words, rank_words, waits_words
from watch.forensics.sequences import Wait
from watch.forensics.standing import CAUSE_OF_STANDING, Standing
from watch.phases import Phase
from watch.reports import SCHEDULED, STARTED, ProcessState


def sequence_candidates(state: State) -> Iterator[Candidate]:
    """Yield the candidates that the sequences of all ranks give."""
    if (mismatch := first_mismatch(state.joined)) is not None:
        yield _of_mismatch(mismatch)
    if state.graph.is_circle:
        yield _of_circle(state)
    else:
        yield from _of_holders(state)
    yield from _of_states(state, mismatch)


def _of_mismatch(mismatch: Mismatch) -> Candidate:
    operation = mismatch.stated[0][0].split(" ")[0]
    where = mismatch.place
    evidence = (f"collectives of one number differ: {where} is {mismatch.collectives}",)
    if mismatch.skipped:
        verb = "it" if len(mismatch.culprits) == 1 else "they"
        does = f"skipped {mismatch.skipped}, {where}: {verb} entered {_entered(mismatch)} under that number"
        return Candidate(Weight.MISMATCH, "skipped_collective", mismatch.culprits, does, mismatch.skipped, "", evidence)
    does = f"entered {_entered(mismatch)} as {where}, where {rank_words(mismatch.stated[0][1])} entered "
    does += mismatch.stated[0][0]
    if mismatch.culprits == mismatch.stated[0][1] or len(mismatch.culprits) > len(mismatch.stated[-1][1]):
        does = f"entered different collectives as {where}: {mismatch.collectives}"
    return Candidate(Weight.MISMATCH, "mismatched_collective", mismatch.culprits, does, operation, "", evidence)


def _entered(mismatch: Mismatch) -> str:
    culprit = mismatch.culprits[0]
    return next(operation for operation, ranks in mismatch.stated if culprit in ranks)


def _of_holders(state: State) -> Iterator[Candidate]:
    """Yield a candidate for each group of awaited ranks with the same standing."""
    holders = state.graph.holders()
    by_standing: dict[Standing, list[int]] = {}
    for number in holders:
        standing = state.stands[number].standing if number in state.stands else Standing.DEAD
        by_standing.setdefault(standing, []).append(number)
    for standing, numbers in by_standing.items():
        yield _of_holder(state, standing, tuple(numbers))


def _of_holder(state: State, standing: Standing, numbers: tuple[int, ...]) -> Candidate:
    first = numbers[0]
    operation, words = state.wait_of(first)
    evidence = tuple(_missing_words(wait) for wait in state.graph.waits if set(wait.missing) & set(numbers))
    if first not in state.ranks:
        if all(rank.process is ProcessState.UNKNOWN for _, rank in state.ranks.values()):
            return _of_uncollected(state, numbers, evidence)
        does = "has sent no report: its process or its host has ended"
        return Candidate(Weight.DEAD, "dead_rank", numbers, does, operation, words, evidence)
    node, rank = state.ranks[first]
    is_past = rank.phase is Phase.END or (state.step and rank.step > state.step)
    if is_past and standing not in {Standing.DEAD, Standing.STOPPED}:
        does = f"skipped {operation or 'a collective'}: it is past it, at step {rank.step}, phase {rank.phase}"
        return Candidate(Weight.HOLDER, "skipped_collective", numbers, does, operation, words, evidence, node)
    cause = CAUSE_OF_STANDING.get(standing, "unknown")
    weight = Weight.HOLDER if cause != "unknown" else Weight.LAGGARD
    if standing is Standing.DEAD:
        weight = Weight.DEAD
    return Candidate(weight, cause, numbers, DOES[standing], operation, words, evidence, node)


def _of_uncollected(state: State, numbers: tuple[int, ...], evidence: tuple[str, ...]) -> Candidate:
    """Return the candidate of ranks that could be known by dumps alone, and of which no file was collected.

    They may wait like the others, as may a rank whose dump cannot be used: any of them may be the one at fault.
    """
    wait = next(each for each in state.graph.waits if set(each.missing) & set(numbers))
    entered = state.joined.of.get(wait.key, {})
    members = state.joined.members.get(wait.key, frozenset())
    unusable = tuple(sorted((members & state.ranks.keys()) - entered.keys() - set(wait.missing)))
    does = f"{place_words(numbers, '', '')} gave no dump and no report"
    if unusable:
        does += f", and {rank_words(unusable)} no usable dump of its collectives"
    whole = f"{does}{waits_words(wait.ranks, wait.words)}"
    ranks = tuple(sorted({*numbers, *unusable}))
    return Candidate(Weight.UNSEEN, "unknown", ranks, "", wait.operation, wait.words, evidence, whole=whole)


def _of_circle(state: State) -> Candidate:
    """Return the candidate of ranks that wait for each other: one left the order, else they took different orders."""
    circle = state.graph.holders()
    broken, skipped = order_breakers(state.joined, state.graph.edges)
    operation, words = state.wait_of((broken or circle)[0])
    evidence = tuple(_missing_words(wait) for wait in state.graph.waits if wait.missing)
    if broken and len(broken) < len(state.graph.edges):
        cause = "skipped_collective" if skipped else "mismatched_collective"
        does = f"skipped {skipped}" if skipped else "entered collectives in another order than in earlier steps"
        return Candidate(Weight.MISMATCH, cause, broken, does, skipped or operation, words, evidence)
    does = "wait for each other in different groups: they entered collectives in different orders"
    return Candidate(Weight.CIRCLE, "mismatched_collective", circle, does, operation, "", evidence)


def _of_states(state: State, mismatch: Mismatch | None) -> Iterator[Candidate]:
    """Yield what follows from collectives that every member has entered alike."""
    for wait in state.graph.waits:
        if mismatch is not None and (wait.group, wait.sequence) == (mismatch.group, mismatch.sequence):
            continue
        entered = state.joined.of.get(wait.key, {})
        members = state.joined.members.get(wait.key, frozenset())
        unseen = tuple(sorted(members - entered.keys()))
        if unseen and not wait.missing:
            yield from _of_order(state, wait)
            if unknown := tuple(rank for rank in unseen if not _is_waiting(state, rank)):
                yield _of_unseen(state, wait, unknown)
        if wait.missing or not members <= set(wait.ranks):
            continue
        states = {rank: entered[rank][wait.sequence].state for rank in wait.ranks}
        late = tuple(rank for rank, word in states.items() if word == SCHEDULED)
        has_started = any(word == STARTED for word in states.values())
        if has_started and late:
            evidence = (f"{rank_words(late)} enqueued {wait.words}, and never started it; the others started it",)
            does = f"enqueued {wait.words}, and its GPU never started it"
            yield Candidate(Weight.STATE, "gpu", late, does, wait.operation, "", evidence)
        elif len(members) > 1:
            verb = "started" if has_started else "entered"
            all_of = f"All {len(members)} ranks of the group {verb} {wait.words}"
            weight = Weight.STATE if has_started else Weight.ALL_ALIKE
            whole = f"{all_of}, and none completed it: the network between them is the likeliest cause."
            evidence = (f"{rank_words(wait.ranks)} {verb} {wait.words}, and none completed it",)
            yield Candidate(weight, "network", (), "", wait.operation, wait.words, evidence, "", whole)


def _of_unseen(state: State, wait: Wait, unseen: tuple[int, ...]) -> Candidate:
    """Return the candidate of ranks without a usable dump, where all others wait in one collective."""
    verb = "is" if len(unseen) == 1 else "are"
    evidence = (f"{waits_in_words(wait)}; no collective of {rank_words(unseen)} {verb} known",)
    does = "gave no usable dump of its collectives, and no stack that shows its state"
    node = state.ranks[unseen[0]][0] if unseen[0] in state.ranks else ""
    return Candidate(Weight.UNSEEN, "unknown", unseen, does, wait.operation, wait.words, evidence, node)


def _is_waiting(state: State, rank: int) -> bool:
    """Return whether the rank's stack shows that it waits: its dump may only have come too late from a busy host."""
    return rank in state.stands and state.stands[rank].standing is Standing.COLLECTIVE


def _of_order(state: State, wait: Wait) -> Iterator[Candidate]:
    """Yield the candidate of ranks that left the order of their own earlier steps, where other ranks have no dump."""
    broken, skipped = order_breakers(state.joined, wait.ranks)
    if skipped:
        evidence = (f"{rank_words(broken)} entered {wait.words} without {skipped}, which came first in earlier steps",)
        does = f"skipped {skipped}: in earlier steps it came before {wait.operation}"
        yield Candidate(Weight.CIRCLE, "skipped_collective", broken, does, skipped, "", evidence)


def _missing_words(wait: Wait) -> str:
    verb = "has" if len(wait.missing) == 1 else "have"
    return f"{waits_in_words(wait)}, which {rank_words(wait.missing)} {verb} not entered"


def waits_in_words(wait: Wait) -> str:
    """Return which ranks wait, and in which collective."""
    return f"{rank_words(wait.ranks)} {'waits' if len(wait.ranks) == 1 else 'wait'} in {wait.words}"
