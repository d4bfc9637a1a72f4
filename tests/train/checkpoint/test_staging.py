"""The copy that is written while training changes the original."""

import contextlib
import importlib.util
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.train.marks import TRAINS

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.checkpoint import staging as module
    from muster.train.checkpoint.staging import Staging

    class Pair(NamedTuple):
        weights: torch.Tensor
        name: str

    class WithoutStorage(torch.Tensor):
        """As optimizers with states of few bits have them: a tensor of no storage around one that has."""

        content: torch.Tensor

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]  # as torch documents it
            cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> "WithoutStorage":
            bare = [each.content if isinstance(each, WithoutStorage) else each for each in args]
            return without_storage(func(*bare, **(kwargs or {})))

    def without_storage(content: torch.Tensor) -> WithoutStorage:
        make = torch.Tensor._make_wrapper_subclass  # torch's way to make one
        made: WithoutStorage = make(WithoutStorage, content.shape, dtype=content.dtype)
        made.content = content
        return made


def test_a_copy_is_equal_and_alone() -> None:
    weights, step = torch.arange(6.0).reshape(2, 3).t(), torch.tensor(3.0, requires_grad=True)
    part = {"model": {"w": weights}, "groups": [{"lr": 0.1, "betas": (0.9, 0.95)}], "rng": [step, [1, 2]]}
    staged = Staging().copied(part)
    weights += 1
    part["groups"][0]["lr"] = 0.2  # type: ignore[index]  # a list of dicts
    assert torch.equal(staged["model"]["w"], torch.arange(6.0).reshape(2, 3).t())
    assert staged["groups"] == [{"lr": 0.1, "betas": (0.9, 0.95)}]
    assert staged["rng"][1] == [1, 2]
    assert not staged["rng"][0].requires_grad


def test_the_memory_of_the_last_copy_is_used_again() -> None:
    staging, part = Staging(), {"w": torch.zeros(1000), "gone": torch.zeros(5)}
    first = staging.copied(part)["w"].data_ptr()
    part["w"] += 1
    del part["gone"]
    again = staging.copied(part)
    assert again["w"].data_ptr() == first
    assert torch.equal(again["w"], torch.ones(1000))
    assert list(again) == ["w"]
    part["w"] = torch.ones(7, dtype=torch.float64)
    assert staging.copied(part)["w"].dtype == torch.float64


def test_what_is_tied_is_copied_once() -> None:
    weights = torch.ones(4, 4)
    staged = Staging().copied({"embedding": weights, "head": weights.view(4, 4), "other": weights.clone()})
    assert staged["embedding"].data_ptr() == staged["head"].data_ptr() != staged["other"].data_ptr()
    rows = Staging().copied({"all": weights, "some": weights[:2]})
    assert rows["some"].shape == (2, 4)
    assert rows["some"].data_ptr() != rows["all"].data_ptr()


def test_empty_tensors_share_nothing() -> None:
    staged = Staging().copied({"a": torch.empty(0), "b": torch.empty(0, dtype=torch.int64)})
    assert (staged["a"].dtype, staged["b"].dtype) == (torch.float32, torch.int64)


def test_views_of_one_memory_that_mean_something_else_are_distinguished() -> None:
    value = torch.tensor([1 + 2j, 3 - 1j])
    staged = Staging().copied({"a": value, "b": value.conj()})
    assert torch.equal(staged["a"], value)
    assert torch.equal(staged["b"], value.conj())


def test_what_is_more_than_its_storage_is_copied_whole() -> None:
    ones, zeros = without_storage(torch.ones(3)), without_storage(torch.zeros(3))
    sparse = torch.eye(3).to_sparse()
    staged = Staging().copied({"ones": ones, "zeros": zeros, "sparse": sparse})
    assert isinstance(staged["ones"], WithoutStorage)
    assert torch.equal(staged["ones"].content, torch.ones(3))
    assert torch.equal(staged["zeros"].content, torch.zeros(3))
    assert torch.equal(staged["sparse"].to_dense(), torch.eye(3))


def test_tensors_are_found_in_whatever_holds_them() -> None:
    weights = torch.ones(2, requires_grad=True) * 1
    staged = Staging().copied({"pair": Pair(weights, "w"), "deep": ((weights,), [1])})
    assert staged["pair"].name == "w"
    assert torch.equal(staged["pair"].weights, torch.ones(2))
    assert torch.equal(staged["deep"][0][0], torch.ones(2))
    assert not staged["deep"][0][0].requires_grad


def test_room_that_was_made_before_is_what_the_first_copy_goes_into() -> None:
    weights = torch.arange(1000.0)
    part = {
        "model": {"w": weights, "tied": weights.view(1000)},
        "state": [torch.ones(3, dtype=torch.bfloat16)],
        "lr": 1,
    }
    staging = Staging()
    staging.make_room(part)
    assert staging._making is not None
    made = staging._making.result()
    assert sum(each.nbytes for each in made.values()) > 0
    weights += 1
    staged = staging.copied(part)
    assert staged["model"]["w"] is made["model", "w"]
    assert staged["model"]["tied"] is staged["model"]["w"], "what is tied has one room"
    assert staged["state"][0] is made["state", 0]
    assert torch.equal(staged["model"]["w"], torch.arange(1000.0) + 1), "of now, and not of when the room was made"
    assert staging.copied(part)["model"]["w"] is made["model", "w"]


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor says that it is a GPU's, and nothing can be pinned."""
    real = torch.empty_like

    def unpinned(value: torch.Tensor, **wanted: Any) -> torch.Tensor:
        return real(value, **{**wanted, "pin_memory": False})

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(torch, "empty_like", unpinned)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(synchronize=lambda: None))


@pytest.mark.usefixtures("_gpu")
def test_to_make_room_copies_nothing_of_a_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy on the thread's stream would hold training up, and could end after the one that is saved."""
    sources: list[int] = []
    real = module._copy

    def copy(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        sources.extend(value.data_ptr() for _, value in pairs)
        real(pairs)

    monkeypatch.setattr(module, "_copy", copy)
    weights = torch.ones(1000)
    part = {"w": weights, "tied": weights.view(1000), "b": torch.ones(3)}
    staging = Staging()
    staging.make_room(part)
    assert staging._making is not None
    made = staging._making.result()
    assert set(made) == {("w",), ("b",)}
    assert sources == []
    staged = staging.copied(part)
    assert sources == [weights.data_ptr(), part["b"].data_ptr()], "what is tied is copied once"
    assert staged["w"] is staged["tied"] is made["w",]
    assert torch.equal(staged["w"], weights)


def test_room_that_does_not_fit_or_could_not_be_made_costs_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging()
    staging.make_room({"w": torch.zeros(5), "gone": torch.zeros(9)})
    staged = staging.copied({"w": torch.ones(6), "new": torch.ones(2)})
    assert torch.equal(staged["w"], torch.ones(6))
    assert torch.equal(staged["new"], torch.ones(2))

    def full(_tensors: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("muster.train.checkpoint.staging.tensors_in", full)
    staging = Staging()
    staging.make_room({"w": torch.zeros(5)})
    assert torch.equal(staging.copied({"w": torch.ones(5)})["w"], torch.ones(5))
