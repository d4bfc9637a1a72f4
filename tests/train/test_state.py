"""What is written of a program's state, and what is refused."""

import errno
import importlib.util
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.train.disk import HashingFile

from .marks import TRAINS

if TYPE_CHECKING:
    from typing_extensions import Buffer

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train import state
    from muster.train.shards import CoverageError


class FullDisk(io.BytesIO):
    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, content: "Buffer", /) -> int:
        if self.tell() + len(memoryview(content)) > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


@pytest.mark.parametrize("room", [0, 600, 700, 100_000])
def test_a_full_disk_is_an_os_error_whatever_torch_makes_of_it(room: int) -> None:
    with pytest.raises(OSError, match="No space left"):
        state.dump({"weights": torch.zeros(1_000_000)}, HashingFile(FullDisk(room)))


def test_a_part_is_read_back_as_it_was_and_only_if_it_is_plain() -> None:
    whole = io.BytesIO()
    file = HashingFile(whole)
    state.dump({"weights": torch.arange(5.0), "lr": [0.1, "linear", None]}, file)
    assert file.size == len(whole.getvalue())
    loaded = state.unpacked(whole.getvalue())
    assert loaded["lr"] == [0.1, "linear", None]
    assert torch.equal(loaded["weights"], torch.arange(5.0))
    foreign = io.BytesIO()
    torch.save({"path": Path("/")}, foreign)
    with pytest.raises(CoverageError, match="more than tensors and plain values"):
        state.unpacked(foreign.getvalue())


class Averages:
    """A stateful of one's own: its state holds a tensor that says how it is laid out over the ranks."""

    def __init__(self, *, is_whole: bool) -> None:
        self.values = torch.arange(4.0)
        self.values.device_mesh = "two ranks"  # type: ignore[attr-defined]  # as a DTensor's
        self.values.placements = (Placement(is_whole=is_whole),)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, object]:
        return {"averages": [self.values], "decay": 0.999}

    def load_state_dict(self, _state: dict[str, object], /) -> None:
        raise NotImplementedError


class Placement:
    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole

    def is_replicate(self) -> bool:
        return self._is_whole


def test_an_extra_that_is_sharded_is_refused_and_not_saved_as_one_ranks_piece() -> None:
    def part(*, is_whole: bool, rank: int) -> dict[str, object]:
        extras = {"averages": Averages(is_whole=is_whole)}
        trained = state.Trained(torch.nn.Linear(2, 2), None, None, extras)
        return state.part_of(trained, {}, rank=rank, world_size=2)

    assert "stateful" in part(is_whole=True, rank=0)
    for rank in range(2):
        with pytest.raises(CoverageError, match="extra averages holds a tensor that is sharded over the ranks"):
            part(is_whole=False, rank=rank)
