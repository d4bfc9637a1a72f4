"""The judge of a hang: one verdict from the reports of all hosts.

It collects candidates from four kinds of evidence, each with a weight, and the heaviest one is the verdict:

1. the process state of each rank: stopped, dead (``from_ranks``);
2. the sequences of collectives: the rank that others wait for and which waits for none, or collectives of one number
   that differ (``from_sequences``);
3. the stack of that rank, and its phase if there is no stack (``standing``);
4. the root among the log lines, never a cascade or a symptom (``from_lines``).

Clocks of hosts may differ, so nothing here compares times of two hosts.
"""

from collections.abc import Sequence
from dataclasses import replace

from watch.forensics.candidates import Candidate, State, Weight
from watch.forensics.from_lines import line_candidates
from watch.forensics.from_ranks import is_loop, rank_candidates
from watch.forensics.from_sequences import sequence_candidates
from watch.forensics.line_evidence import quotes_in, sequences_in
from watch.forensics.sentences import (
    frame_words,
    moment_words,
    place_words,
    predicate,
    rank_evidence,
    readings_evidence,
    waits_words,
)
from watch.forensics.sequences import join, wait_graph
from watch.forensics.standing import Standing, on_gpu_stand, stand_of
from watch.phases import Phase
from watch.reports import HostReport, RankReport
from watch.verdicts import Verdict, VerdictKind

_MAX_EVIDENCE = 24
_MAX_NOTES = 6
_UNKNOWN = Candidate(Weight.NOTHING, "unknown", (), whole="No evidence names a rank that holds up the others.")


def judge_hang(reports: Sequence[HostReport]) -> Verdict:
    """Return what caused the hang: the ranks at fault, the cause, and the evidence for it."""
    state = _state(reports)
    candidates = [*rank_candidates(state), *sequence_candidates(state), *line_candidates(state)]
    best = max(candidates, key=lambda each: each.weight, default=_unknown(state))
    return _verdict(state, best, [each for each in candidates if each is not best])


def _unknown(state: State) -> Candidate:
    if len(state.ranks) != 1:
        return _UNKNOWN
    (rank,) = state.ranks
    return replace(_UNKNOWN, whole=f"Rank {rank} makes no progress, and no evidence shows why.")


def _state(reports: Sequence[HostReport]) -> State:
    quotes = quotes_in(reports)
    stated = sequences_in(quotes)
    ranks: dict[int, tuple[str, RankReport]] = {}
    for report in reports:
        for rank in report.ranks:
            known = rank if rank.collectives else replace(rank, collectives=stated.get(rank.rank, ()))
            if rank.rank not in ranks or len(known.collectives) > len(ranks[rank.rank][1].collectives):
                ranks[rank.rank] = (report.node, known)
    busy, on_gpu = _loops_in(reports, needs_gpus=False), _loops_in(reports, needs_gpus=True)
    stands = {number: stand_of(rank) for number, (_, rank) in ranks.items()}
    stands |= {number: on_gpu_stand(stands[number]) for number in on_gpu}
    joined = join(rank for _, rank in ranks.values())

    def may_lag(number: int) -> bool:
        return number not in stands or stands[number].is_suspect

    readings: dict[str, dict[str, float]] = {}
    for report in reports:
        readings.setdefault(report.node, {}).update(report.readings)
    notes = tuple(f"{report.node}: {note}" if report.node else note for report in reports for note in report.notes)
    return State(ranks, stands, joined, wait_graph(joined, may_lag), quotes, readings, notes, busy, on_gpu)


def _loops_in(reports: Sequence[HostReport], *, needs_gpus: bool) -> tuple[int, ...]:
    wanted = [report for report in reports if report.is_busy and report.needs_gpus is needs_gpus]
    return tuple(sorted({rank.rank for report in wanted for rank in report.ranks if is_loop(rank)}))


def _verdict(state: State, best: Candidate, others: list[Candidate]) -> Verdict:
    first = best.ranks[0] if best.ranks else None
    node, rank = state.ranks.get(-1 if first is None else first, ("", None))
    node = best.node or node
    gpu = rank.gpu if rank is not None else ""
    stand = state.stands.get(-1 if first is None else first)
    frame = stand.frame if stand is not None else None
    waiting = tuple(number for number in _waiting(state) if number not in best.ranks)
    sentence = best.whole and f"{best.whole.rstrip('.')}."
    if not sentence:
        where = frame_words(frame) if stand is not None and stand.is_frame_shown else ""
        about = (
            f"{place_words(best.ranks, node, gpu)} {predicate(best.does, len(best.ranks))}{where}{moment_words(rank)}"
        )
        sentence = f"{about}{waits_words(waiting, best.waits_in)}."
    phase = rank.phase if rank is not None else Phase.STEP
    step = rank.step if rank is not None else state.step
    evidence = _evidence(state, best, others)
    return Verdict(
        VerdictKind.HANG, best.cause, best.ranks, node, gpu, phase, step, best.operation, frame, evidence, sentence,
        waiting, best.is_measured,
    )  # fmt: skip


def _waiting(state: State) -> tuple[int, ...]:
    """Return the ranks that wait for others: by the sequences, else by their stacks."""
    if state.graph.waits:
        return tuple(sorted({rank for wait in state.graph.waits for rank in wait.ranks}))
    return tuple(sorted(number for number, stand in state.stands.items() if stand.standing is Standing.COLLECTIVE))


def _evidence(state: State, best: Candidate, others: list[Candidate]) -> tuple[str, ...]:
    """Return the lines that the verdict rests on, then lines of the other candidates, heaviest first, then what is
    missing.
    """
    lines = list(best.evidence)
    for number in [each for each in best.ranks[:4] if each in state.ranks]:
        node, rank = state.ranks[number]
        lines.append(rank_evidence(node, rank, state.stands[number]))
        lines += readings_evidence(node, rank, state.readings.get(node, {}))
    for each in sorted(others, key=lambda other: -other.weight):
        lines += each.evidence
    notes = state.notes[:_MAX_NOTES]
    return (*tuple(dict.fromkeys(lines))[: _MAX_EVIDENCE - len(notes)], *notes)
