"""Slowed ranks: named within five windows with the right cause, and no alarm in clean windows.

The worlds are from ``tests/watch/stragglers``: reports of pace on virtual time, with noise, evaluations, saves and
single slow windows. The product's own code folds and judges them. One rank slows by 20 %, in its
compute, data, disk, processor time, garbage collection or other threads; or all collectives take longer.
``watch_stragglers_live`` has the live cases.
"""

import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from tests.watch.stragglers.worlds import CAUSES, Gang

SLOWER: Final = 0.2
WITHIN_WINDOWS: Final = 5
PAST_WINDOWS: Final = 8
NAMED_BAR: Final = 95.0
CAUSE_BAR: Final = 90.0
NETWORK: Final = "network"
KINDS: Final[Mapping[str, str]] = {**CAUSES, NETWORK: NETWORK}
"""The part that slows, and the cause that is right."""
_WINDOWS_OF_A_GANG: Final = 25


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark: replayed slow ranks, and clean windows that are judged."""

    cases: int
    windows: int


SIZES: Final = Sizes(full=Size(cases=210, windows=1000), smallest=Size(cases=7, windows=25))


def measure(size: Size) -> Groups:
    found = [_judged(number) for number in range(size.cases)]
    named, right = (100 * statistics.mean(each) for each in zip(*found, strict=True))
    peers = {"replayed": float(size.cases), "live": 0.0}
    alarms, accused = _alarms(size.windows)
    clean = {"windows": float(size.windows), "uneven ranks accused": float(accused)}
    yield [
        Figure("stragglers: named within 5 windows", named, "%", NAMED_BAR, "higher", peers, basis=Basis.COUNT),
        Figure("stragglers: cause right", right, "%", CAUSE_BAR, "higher", peers, basis=Basis.COUNT),
        Figure("stragglers: alarms in clean windows", float(alarms), "", 0.0, peers=clean, basis=Basis.COUNT),
    ]


def _judged(number: int) -> tuple[bool, bool]:
    """Return whether the slow rank, and no other, is named in time, and whether the cause is right."""
    rng = random.Random(number)  # noqa: S311  # a case that repeats
    kind = list(KINDS)[number % len(KINDS)]
    num_ranks = rng.choice([2, 3, 4, 8, 16])
    gang = Gang(num_ranks, number, own_s=rng.uniform(0.2, 2.0), noise=rng.uniform(0.005, 0.03))
    if kind == NETWORK:  # longer waits are the network's only where the work is as before
        gang.work = dict.fromkeys(range(num_ranks), 1000.0)
    for _ in gang.judgements(PAST_WINDOWS):
        pass
    culprit = rng.randrange(num_ranks)
    if kind == NETWORK:
        gang.transfer_s += SLOWER * (gang.own_s + gang.transfer_s)
    else:
        gang.slow[culprit] = (kind, SLOWER)
    for judgement in gang.judgements(WITHIN_WINDOWS + 1):  # the window of the onset is only partly slow
        if kind == NETWORK and judgement.network is not None:
            return True, True
        if judgement.stragglers:
            is_named = [each.rank for each in judgement.stragglers] == [culprit] and kind != NETWORK
            return is_named, judgement.stragglers[0].cause == KINDS[kind]
    return False, False


def _alarms(number: int) -> tuple[int, int]:
    """Return the alarms in clean windows, and how many of them accuse a rank that has more work."""
    num_alarms = num_accused = num_done = 0
    while num_done < number:
        rng = random.Random(num_done)  # noqa: S311
        num_ranks = rng.choice([1, 2, 3, 4, 8])
        work = dict.fromkeys(range(num_ranks), 1000.0)
        is_uneven = rng.random() < 0.4
        if is_uneven:
            work[0] = rng.uniform(1200, 1600)
        is_staged = num_ranks >= 4 and rng.random() < 0.3
        places = {rank: f"stage={2 * rank // num_ranks}" for rank in range(num_ranks)} if is_staged else {}
        gang = Gang(num_ranks, num_done, own_s=rng.uniform(0.2, 2.0), work=work, places=places)
        if rng.random() < 0.3:  # constant additional work on the last rank, which no count of tokens shows
            gang.slow[num_ranks - 1] = (rng.choice(["compute", "threads", "gc"]), rng.uniform(0.05, 0.5))
        for judgement in gang.judgements(min(_WINDOWS_OF_A_GANG, number - num_done)):
            num_done += 1
            num_alarms += bool(judgement.stragglers) or judgement.network is not None
            num_accused += is_uneven and any(each.rank == 0 for each in judgement.stragglers)
    return num_alarms, num_accused
