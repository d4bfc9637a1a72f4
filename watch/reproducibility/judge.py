"""Judgement of a check: whether a resumed run equals an undisturbed one bit for bit, and if not, why.

The records of an undisturbed run and of the attempts of a killed one are compared moment by moment. What differs first
is the cause; all that follows is its effect. If the steps before the kill differ too, then the program does not repeat
itself, and a resume is not the cause.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from watch.reproducibility.causes import STATES, Cause
from watch.reproducibility.compare import (
    Difference,
    Key,
    differences,
    first_difference,
    hints,
    restored_as_saved,
)
from watch.reproducibility.records import At, Attempt, order_of

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of a check. ``step``, counted from 1, ``tensor`` and ``ranks``: the first that differ.

    ``others``: what else differs at that moment. ``why``: the cause in a sentence. ``remedy``: what to change.
    """

    is_same: bool
    num_steps: int
    cause: Cause | None = None
    step: int = 0
    tensor: str = ""
    ranks: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Runs:
    """Records of a check: the undisturbed run, the killed attempt and the resumed one.

    ``again``: a second undisturbed run, if there is one. ``elsewhere``: one on another GPU.
    """

    whole: Attempt
    killed: Attempt
    resumed: Attempt
    again: Attempt | None = None
    elsewhere: Attempt | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """Cause with the key that shows it."""

    cause: Cause
    key: Key
    why: str
    remedy: str


def judge(runs: Runs, ignored: AbstractSet[str] = frozenset()) -> Judgement:
    """Judge a check. ``ignored``: names of variables that decide nothing."""
    num_steps = runs.whole.last_step
    fresh = [first_difference(runs.whole, each, ignored) for each in (runs.killed, runs.again) if each is not None]
    found = [each for each in fresh if each is not None]
    earliest = min(found, key=lambda each: order_of(each.step, each.at), default=None)
    if earliest is not None:
        return _judgement(earliest, _nondeterministic(earliest), num_steps)
    different = first_difference(runs.whole, runs.resumed, ignored)
    if different is None:
        return _on_another_gpu(runs, num_steps, ignored)
    return _judgement(different, _cause(runs, different, ignored), num_steps)


def _on_another_gpu(runs: Runs, num_steps: int, ignored: AbstractSet[str]) -> Judgement:
    """Judge the run on another GPU, where the resumed run is the same."""
    different = None if runs.elsewhere is None else first_difference(runs.whole, runs.elsewhere, ignored)
    if different is None:
        return Judgement(is_same=True, num_steps=num_steps)
    found = _Found(
        Cause.OTHER_GPU,
        _first(different.all_keys, ("rng", "input", "sample", "loss", "parameter")),
        "the same steps give other bits on another GPU of this machine, although a resume on one GPU is exact",
        "GPUs of one kind compute the same bits: run `muster burnin` on both, or compare their kinds and drivers",
    )
    return _judgement(different, found, num_steps)


def _judgement(different: Difference, found: _Found, num_steps: int) -> Judgement:
    ranks = tuple(rank for rank, keys in different.keys.items() if found.key in keys) or different.ranks
    step = different.step + (different.at is At.BEGIN)
    others = tuple(key.text for key in different.all_keys if key != found.key)
    return Judgement(False, num_steps, found.cause, step, found.key.text, ranks, others, found.why, found.remedy)


def _nondeterministic(different: Difference) -> _Found:
    return _Found(
        Cause.NONDETERMINISTIC,
        _first(different.all_keys, ("rng", "input", "sample", "variable", "parameter")),
        "two fresh runs of the program differ from each other, so it does not repeat itself even without a resume",
        "Seed every generator with a fixed number, not with the time or a process id; leave deterministic=True; do not "
        "let the order of threads, sets or files decide",
    )


def _first(keys: Sequence[Key], kinds: Sequence[str]) -> Key:
    """Return the first key by the order of kinds, in which a cause comes before its effects."""
    return min(keys, key=lambda key: kinds.index(key.kind) if key.kind in kinds else len(kinds))


def _cause(runs: Runs, different: Difference, ignored: AbstractSet[str]) -> _Found:
    by_kind: dict[str, Key] = {}
    for key in different.all_keys:
        by_kind.setdefault(f"{key.kind} {key.sort}".strip(), key)
    if (apart := _replica(runs, different)) is not None:
        return apart
    if different.at is At.BEGIN:
        for kind, cause, why, remedy in STATES:
            if kind in by_kind:
                key = by_kind[kind]
                return _Found(cause, key, why.format(name=key.name), remedy.format(name=_short(key.name)))
    drawn = by_kind.get("sample") or by_kind.get("input")
    if drawn is not None:
        return _samples(runs, different, drawn)
    if "rng" in by_kind:
        return _random_numbers(runs, different, by_kind["rng"], ignored)
    return _of_step(runs, different, by_kind)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _replica(runs: Runs, different: Difference) -> _Found | None:
    """Return the cause if ranks that were alike no longer are."""
    whole, resumed = runs.whole, runs.resumed
    for key in different.all_keys:
        if key.kind not in {"parameter", "optimizer"} or len(resumed.ranks) == 1:
            continue
        if _num_values(whole, different, key) == 1 and _num_values(resumed, different, key) > 1:
            return _Found(
                Cause.REPLICA,
                key,
                f"the ranks' copies of `{key.name}` were alike, and are not after the resume",
                "Let every rank load the same state: change no parameter on one rank alone after train.start",
            )
    return None


def _num_values(attempt: Attempt, different: Difference, key: Key) -> int:
    moments = (attempt.moment(rank, different.step, different.at) for rank in attempt.ranks)
    return len({moment.values.get(key.text) for moment in moments if moment is not None})


def _random_numbers(runs: Runs, different: Difference, key: Key, ignored: AbstractSet[str]) -> _Found:
    """Return why a generator of torch, Python or numpy differs, and nothing else before it."""
    whole, resumed = runs.whole, runs.resumed
    for rank in different.ranks:
        mine = resumed.moment(rank, different.step, different.at)
        others = (whole.moment(other, different.step, different.at) for other in whole.ranks if other != rank)
        values = {other.values.get(key.text) for other in others if other is not None}
        if mine is not None and mine.values.get(key.text) in values:
            return _Found(
                Cause.RANDOM_NUMBERS,
                key,
                f"rank {rank} has another rank's random numbers after the resume: one state was restored on all",
                "Leave the random numbers to train.start, which saves each rank's own; save none of your own",
            )
    follows = (each for each in differences(whole, resumed, ignored) if each.step <= different.step + 1)
    kinds = {other.kind for each in follows for other in each.all_keys}
    is_restored = all(restored_as_saved(whole, resumed, rank, key) for rank in different.ranks)
    is_seeded = all(_is_as_at_first(runs, different, rank, key) for rank in different.ranks)
    if different.at is At.BEGIN and is_restored and not is_seeded and kinds & {"input", "sample"}:
        return _Found(
            Cause.SAMPLES,
            key,
            f"the order of the data is drawn from the global random numbers ({key.name}), and the program draws it "
            "again at the resume",
            "Draw the samples from run.samples, as DataLoader(data, batch_sampler=run.samples(…)), which continues "
            "where it stood; a loader with shuffle=True draws a new order at each start",
        )
    if different.at is At.BEGIN and is_restored:
        return _Found(
            Cause.RANDOM_NUMBERS,
            key,
            f"the program seeds or draws random numbers ({key.name}) between train.start and the first step, where a "
            "resume has just restored them",
            "Move the seeding, and whatever draws, before train.start",
        )
    return _Found(
        Cause.RANDOM_NUMBERS,
        key,
        f"the random numbers of {key.name} were not restored",
        f"Import {key.name} before train.start, and give other generators to train.start as extras",
    )


def _is_as_at_first(runs: Runs, different: Difference, rank: int, key: Key) -> bool:
    """Return whether a value is again as it was before the very first step, as a seed makes it."""
    first, now = runs.whole.moment(rank, 0, At.BEGIN), runs.resumed.moment(rank, different.step, different.at)
    return first is not None and now is not None and first.values.get(key.text) == now.values.get(key.text)


def _samples(runs: Runs, different: Difference, key: Key) -> _Found:
    """Return why the data of a step differs, although all state before it is the same."""
    rank = next(rank for rank, keys in different.keys.items() if key in keys)
    mine = runs.resumed.moment(rank, different.step, At.END)
    got = "" if mine is None else mine.values.get(key.text, "")
    same = [
        each.step
        for each in runs.whole.ranks[rank]
        if each.at is At.END and each.step != different.step and each.values.get(key.text) == got
    ]
    words = f"it got the data of step {same[0]}" if same else "it got other data"
    restarted = ", as if its sampler began again" if same[:1] == [1] else ""
    return _Found(
        Cause.SAMPLES,
        key,
        f"step {different.step} did not get its own data after the resume: {words}{restarted}",
        "Draw the samples from run.samples, as DataLoader(data, batch_sampler=run.samples(…)), which continues where "
        "it stood. A batch that is held ahead is drawn before the first step, or in the step that uses it",
    )


def _of_step(runs: Runs, different: Difference, by_kind: dict[str, Key]) -> _Found:
    """Return why a step differs, although its data and all state before it are the same."""
    before = different.step - 1 if different.at is At.END else different.step
    numbers = hints(runs.whole, runs.resumed, before, At.BEGIN, "number")
    named = [f"`{key.name}` is {now} and was {then}" for key, then, now in numbers[:_MOST_NAMED]]
    words = f". Variables that differ before the step: {'; '.join(named)}" if named else ""
    if (key := by_kind.get("rate")) is not None:
        return _Found(
            Cause.LEARNING_RATE,
            key,
            f"the learning rate, or another option of the optimizer, is set by a counter that begins again{words}",
            "Compute it from the step that run.steps yields, or give train.start a scheduler",
        )
    gradients = hints(runs.whole, runs.resumed, runs.resumed.first_step, At.BEGIN, "gradient")
    key = _first(different.all_keys, ("loss", "parameter", "buffer", "optimizer"))
    if gradients and key.kind != "loss":
        return _Found(
            Cause.ACCUMULATION,
            gradients[0][0] if key.kind not in {"parameter", "optimizer"} else key,
            "gradients were held over the end of the step that was saved, and no checkpoint holds gradients",
            "Accumulate within a step: do all backward passes and the optimizer's step in one turn of run.steps",
        )
    return _Found(
        Cause.UNKNOWN,
        key,
        f"the step computes something else from the same state and data{words}",
        "Look for state outside modules, optimizer and loop: globals of other files, caches, compiled code",
    )
