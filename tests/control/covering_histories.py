"""What a history of the simulation is made of, and few histories that together hold all of it.

``python -m tests.control.covering_histories`` chooses them again: whatever changes the world moves the seeds.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from simulator.world.recording import RecordedWorld, recorded

WORDS: Final = ("cancel", "resize", "notify")
"""Requests that some history holds with an answer, since a test takes them out."""
NUM_SEARCHED: Final = 1_400


def parts_of(world: RecordedWorld) -> set[str]:
    """Return its kinds of request, the commits at which the control plane died, and the ends of its reclaims."""
    calls, given = world.calls, world.recorder.changes.given
    said = {f"{call.name} is answered" for call in calls if call.name in WORDS and call.died_at is None}
    died = {call.died_at for call in calls if call.died_at is not None}
    ends = {f"reclaim {one.state}" for one in given} | {"a reclaim keeps GPUs" for one in given if one.keeps}
    return {call.name for call in calls} | said | died | ends


def covering(parts: Mapping[int, set[str]], lengths: Mapping[int, int]) -> list[int]:
    """Return seeds that hold every part among them, of few requests in all; the shortest history first."""
    wanted: set[str] = set().union(*parts.values())
    left, chosen = set(wanted), list[int]()
    while left:
        best = max(parts, key=lambda seed: len(parts[seed] & left) / lengths[seed])
        chosen.append(best)
        left -= parts[best]
    for seed in sorted(chosen, key=lambda seed: -lengths[seed]):
        others = [each for each in chosen if each != seed]
        if wanted <= set().union(*(parts[each] for each in others)):
            chosen = others
    return sorted(chosen, key=lambda seed: lengths[seed])


def search(seeds: Iterable[int]) -> list[int]:
    worlds = {seed: recorded(seed) for seed in seeds}
    return covering(
        {seed: parts_of(world) for seed, world in worlds.items()},
        {seed: len(world.calls) for seed, world in worlds.items()},
    )


if __name__ == "__main__":
    print(search(range(NUM_SEARCHED)))  # noqa: T201  # this is what the command is for
