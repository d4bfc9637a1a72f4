"""Noise of real gloo ranks that nothing slows: no window of it accuses a rank, and a rank that is slower is named."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scaled import examples
from tests.watch.stragglers.worlds import Folded
from watch.stragglers.findings import Judgement

RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.json"))
BLOCK = 40
"""Steps that stay together when a longer run is drawn from a recorded one: noise lasts for some steps."""


class Replayed:
    """A run of any length, drawn in blocks from a recorded one, all ranks together. ``slow``: rank and share."""

    def __init__(self, path: Path, seed: int, slow: tuple[int, float] | None = None) -> None:
        document = json.loads(path.read_text(encoding="ascii"))
        self.rng = random.Random(seed)  # noqa: S311  # a seeded draw
        self.reports = [
            [dict(zip(document["fields"], each, strict=True)) for each in told] for told in document["ranks"]
        ]
        of_all = [(each["own_s"], each["own_steps"]) for told in self.reports for each in told]
        self.usual_s = sum(own_s * num for own_s, num in of_all) / sum(num for _, num in of_all)
        self.slow = slow
        self.last = min(told[-1]["step"] for told in self.reports)
        self.step = 0
        self.folded = Folded(len(self.reports))

    def judgements(self, num_windows: int) -> Iterator[Judgement]:
        while num_windows > 0:
            begin = self.rng.randrange(max(self.last - BLOCK, 1))
            for rank, told in enumerate(self.reports):
                chosen = [each for each in told if begin < each["step"] <= begin + BLOCK]
                for each in chosen:
                    if self._take(rank, each, self.step + each["step"] - begin) and rank == 0:
                        num_windows -= 1
                        yield self.folded.judgement()
            self.step += BLOCK

    def _take(self, rank: int, report: dict[str, Any], step: int) -> bool:
        pace = {**report, "num_steps": report["own_steps"]}
        if self.slow is not None:
            more_s = self.slow[1] * self.usual_s
            pace["own_s" if rank == self.slow[0] else "wait_s"] += more_s
        return self.folded.take(rank, step, pace)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_thousand_windows_of_recorded_noise_accuse_no_rank(path: Path) -> None:
    replayed = Replayed(path, 1)
    alarms = [found for found in replayed.judgements(examples(1000, quick=350)) if found.stragglers or found.network]
    assert alarms == []


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_rank_that_is_slower_by_three_tenths_than_the_recorded_ones_is_named(path: Path) -> None:
    """The recorded ranks share two busy processors: their steps differ by a third, which is more than a GPU's do.
    Of the seven windows one began before, and rank 1 has not ended the last one.
    """
    draws, named = examples(40, quick=5), 0
    for seed in range(draws):
        replayed = Replayed(path, seed)
        list(replayed.judgements(6))
        replayed.slow = (1, 0.3)
        found = {each.rank for judgement in replayed.judgements(7) for each in judgement.stragglers}
        assert found <= {1}, seed
        named += bool(found)
    assert named >= 0.9 * draws
