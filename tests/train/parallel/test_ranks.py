"""Joining and leaving the ranks of a job."""

import pytest

from muster.ports import free_port
from tests.train.marks import TRAINS

pytestmark = TRAINS
torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402  # after the check that torch is there

from muster.train.parallel.ranks import Ranks  # noqa: E402  # it imports torch


def test_a_launcher_of_one_rank_leaves_no_group_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL warns at the end of a process whose group nothing destroyed, which an H100 has shown."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    ranks = Ranks(0, 1, is_launched=True, has_gpu=False, patience_s=5.0)
    assert dist.is_initialized()
    ranks.leave()
    assert not dist.is_initialized()
