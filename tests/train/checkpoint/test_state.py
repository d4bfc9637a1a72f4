"""What is written of a program's state, and what is refused."""

import errno
import importlib.util
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.train.runtime.durable_files import HashingFile
from tests.train.marks import TRAINS

if TYPE_CHECKING:
    from typing_extensions import Buffer

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.checkpoint import state
    from muster.train.parallel.shards import CoverageError


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


class Summands:
    """A stateful of one's own, of whose tensor each rank holds a summand."""

    def __init__(self) -> None:
        self.values = torch.arange(4.0)
        self.values.device_mesh = "two ranks"  # type: ignore[attr-defined]  # as a DTensor's
        self.values.placements = (Partial(),)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, object]:
        return {"sums": [self.values]}

    def load_state_dict(self, _state: dict[str, object], /) -> None:
        raise AssertionError("nothing of it was saved, so nothing comes back")


class Partial:
    def is_replicate(self) -> bool:
        return False

    def is_partial(self) -> bool:
        return True


def test_an_extra_that_is_mere_summands_is_refused_by_name() -> None:
    trained = state.Trained(torch.nn.Linear(2, 2), None, None, {"sums": Summands()})
    with pytest.raises(CoverageError, match="extra sums: the ranks hold summands of a tensor"):
        state.part_of(trained, {}, rank=0, world_size=2)
