"""Extras that differ from rank to rank are each rank's own; extras that do not are written once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from muster.train.checkpoint import extras, state
from muster.train.data.cursors import Cursors
from muster.train.parallel.ranks import Agreement
from muster.train.parallel.shards import CoverageError
from tests.train.train_case import Attempt, Training

PROGRAM = Path(__file__).parents[1] / "own_extras_program.py"


def had(attempt: Attempt) -> list[dict[str, Any]]:
    """What each rank had before its first step."""
    return [json.loads(rank.output.splitlines()[0]) for rank in attempt.ranks]


def parts(training: Training, generation: str, num_ranks: int) -> list[dict[str, Any]]:
    folder = training.checkpoints / generation
    return [state.unpacked((folder / f"rank-{rank:05d}.pt").read_bytes()) for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_rank_gets_back_its_own_and_what_is_alike_is_written_once(training: Training, num_ranks: int) -> None:
    training.run("--steps", "8", num_ranks=num_ranks, program=PROGRAM)
    again = training.run("--steps", "12", num_ranks=num_ranks, program=PROGRAM)
    assert had(again) == [
        {"step": 8, "count": 8 * (rank + 1), "newest": [100.0 * rank + 7] * 3} for rank in range(num_ranks)
    ]
    written = parts(training, "step-00000008/gen-1", num_ranks)
    assert [set(part.get(extras.OWN, {})) for part in written] == [{"extra seen"}] * num_ranks
    assert set(written[0][extras.ALIKE]) == {"extra same"}
    assert all(extras.ALIKE not in part for part in written[1:])


def test_what_is_alike_on_all_ranks_fits_any_number_of_them(training: Training) -> None:
    training.run("--steps", "8", "--alike", num_ranks=2, program=PROGRAM)
    assert all(extras.OWN not in part for part in parts(training, "step-00000008/gen-1", 2))
    for num_ranks, done in ((1, 8), (4, 9)):
        again = training.run("--steps", str(done + 1), "--alike", num_ranks=num_ranks, program=PROGRAM)
        assert had(again) == [{"step": done, "count": done, "newest": [done - 1.0] * 3}] * num_ranks


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_another_number_of_ranks_is_refused_by_name_unless_the_program_states_how(
    training: Training, num_ranks: int
) -> None:
    training.run("--steps", "8", num_ranks=2, program=PROGRAM)
    refused = training.start("--steps", "12", num_ranks=num_ranks, program=PROGRAM)
    assert set(refused.ended()) == {1}
    words = f"extra seen differed from rank to rank when 2 ranks saved it, and {num_ranks} ranks continue"
    assert words in refused.ranks[0].errors
    taken = training.run("--steps", "9", "--summed", num_ranks=num_ranks, program=PROGRAM)
    assert [each["count"] for each in had(taken)] == [8 + 16] * num_ranks


def test_a_checkpoint_from_before_that_is_read_as_it_was_written() -> None:
    class Kept:
        loaded: dict[str, Any] | None = None

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any], /) -> None:
            self.loaded = state

    kept = Kept()
    for rank in range(3):
        extras.restore([{"stateful": {"extra kept": {"a": 1}}}, {}], {"extra kept": kept}, rank=rank, world_size=3)
        assert kept.loaded == {"a": 1}
    with pytest.raises(CoverageError, match="no extra other was saved"):
        extras.restore([{"stateful": {}}], {"extra other": kept}, rank=0, world_size=1)
    with pytest.raises(CoverageError, match="no extra kept was saved by rank 1"):
        extras.restore([{"own_stateful": {"extra kept": {}}}, {}], {"extra kept": kept}, rank=0, world_size=2)


def averaged(weight: float, mean: float) -> torch.nn.Module:
    """As an averaged model has them: parameters of all ranks, and a batch norm's running means of its own."""
    module = torch.optim.swa_utils.AveragedModel(torch.nn.BatchNorm1d(1))
    module.load_state_dict({**module.state_dict(), "module.weight": torch.tensor([weight])})
    module.load_state_dict({**module.state_dict(), "module.running_mean": torch.tensor([mean])})
    return module


@pytest.mark.parametrize(("rank", "world_size", "mean"), [(0, 1, 10.0), (1, 2, 11.0), (2, 5, 12.0), (4, 5, 10.0)])
def test_a_module_of_which_only_buffers_differ_goes_on_as_the_model_does_on_any_number_of_ranks(
    rank: int, world_size: int, mean: float
) -> None:
    loaded = [{extras.OWN: {"extra average": averaged(2.0, 10.0 + number).state_dict()}} for number in range(3)]
    here = averaged(0.0, 0.0)
    extras.restore(loaded, {"extra average": here}, rank=rank, world_size=world_size)
    state = here.state_dict()
    assert (float(state["module.weight"]), float(state["module.running_mean"])) == (2.0, mean)


def test_a_module_whose_parameters_differ_is_nobodys_buffer() -> None:
    loaded = [{extras.OWN: {"extra average": averaged(float(rank), 0.0).state_dict()}} for rank in range(3)]
    with pytest.raises(CoverageError, match="extra average differed from rank to rank when 3 ranks saved it"):
        extras.restore(loaded, {"extra average": averaged(0.0, 0.0)}, rank=0, world_size=2)


def test_one_rank_alone_keeps_all_of_it_as_alike() -> None:
    part = {extras.ALIKE: {"scheduler": {"last_epoch": 3}}}
    assert extras.divided(part, Agreement(0, 1, None)) is part


def test_a_digest_reports_values_kinds_and_shapes_apart_and_nothing_else() -> None:
    a = torch.arange(6.0).reshape(2, 3)
    one: dict[str, Any] = {"a": a, "b": [1, 2.0, None, True, "x"], "c": (torch.zeros(0),)}
    same = {"a": torch.arange(12.0)[::2].div(2).reshape(2, 3), "b": [1, 2.0, None, True, "x"], "c": (torch.zeros(0),)}
    assert extras.digest_of(one) == extras.digest_of(same)
    turned = dict(reversed(one.items()))
    assert extras.digest_of(one) == extras.digest_of(turned), "a dictionary's order is no state"
    assert extras.digest_of({"s": {"b", "a"}}) == extras.digest_of({"s": frozenset(("a", "b"))})
    others = [
        {**one, "a": a.reshape(3, 2)},
        {**one, "a": a.double()},
        {**one, "a": a + 1e-6},
        {**one, "b": [1, 2.0, None, 1, "x"]},
        {**one, "b": [1, 2, None, True, "x"]},
        {**one, "c": (torch.zeros(0, 2),)},
        {"a": a, "b": one["b"]},
        {**one, "d": torch.bfloat16},
        {**one, "d": {1, 2}},
        {**one, "d": {1, 3}},
        {**one, "d": [1, 2]},
        {**one, "d": {1: 2}},
        {**one, "d": {2: 1}},
        {**one, "d": {1: {2: 3}}},
        {**one, "d": {1: {}, 2: 3}},
    ]
    digests = [extras.digest_of(each) for each in [one, *others]]
    assert len(set(digests)) == len(digests)
    assert extras.digest_of(torch.ones(3, dtype=torch.bfloat16)) == extras.digest_of(torch.ones(3).bfloat16())
    assert extras.digest_of(lambda: 0) == extras.digest_of(lambda: 0), "what cannot be pickled is refused elsewhere"


class _Loader:
    """Shaped as torchdata's loader, which is no dependency: its state is equal on all ranks, and each rank's own."""

    __module__ = "torchdata.stateful_dataloader.stateful_dataloader"

    def __init__(self, batch_sampler: object = None) -> None:
        self.batch_sampler = batch_sampler
        self.loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"_num_yielded": 5}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


_Loader.__name__ = "StatefulDataLoader"


def test_a_loader_that_counts_its_ranks_batches_continues_on_as_many_ranks_alone() -> None:
    loader = _Loader()
    saved = [{extras.ALIKE: {"extra loader": loader.state_dict()}}, {}]
    extras.restore(saved, {"extra loader": loader}, rank=0, world_size=2)
    assert loader.loaded == {"_num_yielded": 5}
    with pytest.raises(CoverageError, match=r"extra loader is a StatefulDataLoader.* 2 ranks saved it, and on 3 some"):
        extras.restore(saved, {"extra loader": loader}, rank=0, world_size=3)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, for names that torchdata asks it for
def test_torchdatas_own_loader_continues_on_as_many_ranks_alone() -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    loader = torchdata.StatefulDataLoader(list(range(8)), batch_size=2)
    next(iter(loader))
    saved = [{extras.ALIKE: {"extra loader": loader.state_dict()}}, {}]
    resumed = torchdata.StatefulDataLoader(list(range(8)), batch_size=2)
    extras.restore(saved, {"extra loader": resumed}, rank=0, world_size=2)
    assert next(iter(resumed)).tolist() == [2, 3]
    with pytest.raises(CoverageError, match=r"extra loader is a StatefulDataLoader.* 2 ranks saved it, and on 3 some"):
        extras.restore(saved, {"extra loader": resumed}, rank=0, world_size=3)


def test_a_loader_over_a_stream_leaves_its_position_to_the_stream() -> None:
    stream = Cursors(0, 0, 3).stream("train", 8, 2, shuffle=True, endless=True, drop_last=False)
    loader = _Loader(stream)
    saved = [{extras.ALIKE: {"extra loader": loader.state_dict()}}, {}]
    extras.restore(saved, {"extra loader": loader}, rank=0, world_size=3)
    assert loader.loaded == {}
