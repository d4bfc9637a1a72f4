"""The state of burn rates in 200 simulated incidents, against a count of all events at each moment of a grid.

The check knows nothing of ``ledger.objectives``: it adds up raw events for each window at each five minutes, and
follows the rule as it is written. All events are on the grid, so no state can change between two of its moments.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from ledger.objectives import History, Tally, moves_of, pairs_of, state_changes
from muster.domain.policy.objectives import standard_burn_rates

SIZES: Final = Sizes(full=200, smallest=5)
GRID_S: Final = 300
DAYS: Final = 6
MIN_BAD: Final = 2
BEGINS: Final = DAYS * 86_400 // GRID_S // 2
RULES: Final[Mapping[str, tuple[float, int, int, int]]] = {
    "fast": (14.4, 12, 1, 2),
    "slow": (6.0, 72, 6, 2),
    "lasting": (1.0, 864, 72, 1),
}
"""Name → factor, long and short window in steps of the grid, and how urgent it is: written a second time on purpose."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Events by steps of the grid, of which the incident has bad ones; a quiet time is before and after it."""

    target: float
    good: Sequence[int]
    bad: Sequence[int]


def simulated(seed: int) -> Incident:
    """Return an incident: an outage, a slow loss, a flapping fault, or none, with a few bad events at any time."""
    chance = random.Random(seed)  # noqa: S311  # a simulation
    target = chance.choice((0.9, 0.95, 0.99, 0.999))
    traffic = chance.choice((0.2, 2.0, 20.0))
    kind = chance.choice(("outage", "outage", "slow", "slow", "flapping", "none"))
    length = chance.choice((1, 6, 36, 200))
    share = {"outage": chance.uniform(0.3, 1), "slow": (1 - target) * chance.uniform(0.8, 8)}.get(kind, 0.6)
    good, bad = [], []
    for step in range(DAYS * 86_400 // GRID_S):
        is_in = BEGINS <= step < BEGINS + length and kind != "none"
        is_in = is_in and (kind != "flapping" or (step // 3) % 2 == 0)
        fails = share if is_in else (1 - target) * 0.3
        num_events = int(traffic) + (chance.random() < traffic % 1)
        num_bad = sum(chance.random() < fails for _ in range(num_events))
        good.append(num_events - num_bad)
        bad.append(num_bad)
    return Incident(target, good, bad)


def expected(incident: Incident) -> list[int]:
    """Return how urgent the state is at each step, by a count of all events."""
    found = [0] * len(incident.bad)
    for factor, long, short, urgency in RULES.values():
        is_burning = False
        for step in range(len(incident.bad)):
            if is_burning or _has_rate(incident, step, short, factor):
                enough = sum(incident.bad[max(step - long + 1, 0) : step + 1]) >= MIN_BAD
                begins = not is_burning and enough and _has_rate(incident, step, long, factor)
                is_burning = (is_burning or begins) and _has_rate(incident, step, short, factor)
            found[step] = max(found[step], urgency if is_burning else 0)
    return found


def _has_rate(incident: Incident, step: int, length: int, factor: float) -> bool:
    begin = max(step - length + 1, 0)
    bad, good = sum(incident.bad[begin : step + 1]), sum(incident.good[begin : step + 1])
    # In thousandths, which all targets and tenths of factors are: no rounding decides.
    allowed = round(factor * 10) * round((1 - incident.target) * 1000) * (bad + good)
    return bad + good > 0 and bad * 10_000 >= allowed


def computed(incident: Incident) -> list[int]:
    """Return the same by ``ledger.objectives``, at the moments that it names."""
    grid_ms = GRID_S * 1000
    history = History(
        Tally(step * grid_ms, good, bad)
        for step, (good, bad) in enumerate(zip(incident.good, incident.bad, strict=True))
        if good or bad
    )
    pairs = pairs_of(standard_burn_rates())
    moves = moves_of(
        history, pairs, incident.target, since_ms=-1, until_ms=len(incident.bad) * grid_ms - 1, min_bad=MIN_BAD
    )
    changes = dict(state_changes((), moves, pairs))
    urgency, found = 0, []
    for step in range(len(incident.bad)):
        if (state := changes.get(step * grid_ms)) is not None:
            urgency = {"page": 2, "ticket": 1, "ok": 0}[state]
        found.append(urgency)
    return found


def is_right(incident: Incident) -> bool:
    return computed(incident) == expected(incident)


def measure(size: int) -> Groups:
    incidents = [simulated(seed) for seed in range(size)]
    right = sum(is_right(incident) for incident in incidents)
    urgencies = [max(expected(incident)) for incident in incidents]
    peers = {
        "pages": float(urgencies.count(2)),
        "tickets": float(urgencies.count(1)),
        "none": float(urgencies.count(0)),
    }
    yield [Figure("burn rate: state right", 100 * right / size, "%", 100.0, "higher", peers, basis=Basis.COUNT)]
