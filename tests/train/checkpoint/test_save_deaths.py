"""Killed at each point of a save: what is listed is whole, and the next attempt continues bit for bit."""

import json

import pytest

from muster.train.checkpoint.storage.disk_store import DiskStore
from tests.train.marks import TRAINS
from tests.train.train_case import Training

pytestmark = TRAINS
Steps = dict[int, list[str]]
KILLS = {
    "before its folder is there": "save.prepare",
    "before any file": "save.before_files",
    "before a rank's file": "save.write",
    "in the middle of a rank's file": "disk.write@4",
    "with that file not on the disk yet": "disk.before_sync@3",
    "with that file not named yet": "disk.before_rename@3",
    "with every file there": "save.before_commit",
    "before the manifest": "save.commit",
    "with the manifest not on the disk yet": "disk.before_sync@4",
    "with the manifest not named yet": "disk.before_rename@4",
    "before its name": "commit.before_rename",
    "right behind its name": "commit.renamed",
    "before a word of it": "save.after_commit",
}
"""Of rank 0 in an attempt's first save. Before it, the fence and its check are written to the disk."""
NAMED = {"commit.renamed", "save.after_commit"}
OF_ANY_RANK = {
    "before its file": "save.write",
    "in the middle of its file": "disk.write@2",
    "with its file not named yet": "disk.before_rename@1",
}
"""Of rank 1, which writes no fence and no manifest."""
REMOVALS = {"before a removal": "retention.before", "in the middle of a removal": "retention.half"}


def killed(training: Training, rank: int, failpoint: str, *words: str, resume: str = "") -> None:
    only = {rank: {"MUSTER_TRAIN_FAILPOINT": failpoint}}
    attempt = training.start(*words, num_ranks=2, only=only, MUSTER_RESUME=resume)
    assert attempt.ended()[rank] == -9, f"{failpoint} was never met: {attempt.ranks[rank].errors}"


def require_whole(training: Training, newest: str) -> None:
    """Whatever has a name is as it was saved."""
    store = DiskStore(training.checkpoints)
    found = store.list_generations()
    assert found[0].name == newest
    for generation in found:
        store.verify(generation)


def goes_on(training: Training, undisturbed: list[Steps], step: int) -> None:
    steps = training.run(num_ranks=2).steps
    assert steps == [{number: rank[number] for number in range(step + 1, 13)} for rank in undisturbed]
    assert not any("partial" in name for name in training.generations()), "what was half written was removed"


@pytest.mark.parametrize("moment", KILLS)
def test_no_death_of_the_first_rank_in_a_save_costs_what_was_saved_before(
    training: Training, four_steps: Training, undisturbed: list[Steps], moment: str
) -> None:
    training.continue_from(four_steps)
    killed(training, 0, KILLS[moment])
    has_name = KILLS[moment] in NAMED
    require_whole(training, "step-00000008/gen-2" if has_name else "step-00000004/gen-1")
    goes_on(training, undisturbed, 8 if has_name else 4)


@pytest.mark.parametrize("moment", OF_ANY_RANK)
def test_no_death_of_another_rank_does_either(
    training: Training, four_steps: Training, undisturbed: list[Steps], moment: str
) -> None:
    training.continue_from(four_steps)
    killed(training, 1, OF_ANY_RANK[moment])
    require_whole(training, "step-00000004/gen-1")
    goes_on(training, undisturbed, 4)


@pytest.mark.parametrize("moment", REMOVALS)
def test_no_death_in_a_removal_costs_what_is_kept(training: Training, undisturbed: list[Steps], moment: str) -> None:
    """Saved at each step, of which few are kept; one that is half removed is there by name and never the newest."""
    told = json.dumps({"good_after_steps": 1, "hold_s": 0})
    killed(training, 0, REMOVALS[moment], "--every", "1", "--synchronous", "--sleep", "0.1", resume=told)
    store = DiskStore(training.checkpoints)
    newest, *older = store.list_generations()
    assert store.verify(newest).step == newest.step
    assert older, "more than one was kept"
    goes_on(training, undisturbed, newest.step)
