"""Which copies DDP keeps alike, and which a program may change on one rank alone."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402  # it imports torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from muster.train.checkpoint.state import Trained  # noqa: E402
from muster.train.values.copies import Copies, Copy  # noqa: E402


@pytest.fixture(autouse=True)
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


class Watched:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.model.register_parameter("average", torch.nn.Parameter(torch.zeros(2), requires_grad=False))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.wrapped = torch.nn.parallel.DistributedDataParallel(self.model)
        self.copies = Copies(Trained(self.model, self.optimizer, None, {}), self.wrapped, 2, is_declared=False)

    def of(self, name: str) -> Copy:
        return next(copy for copy in self.copies if copy.name == name)

    def step(self) -> None:
        self.wrapped(torch.ones(1, 2))
        self.optimizer.step()


def test_a_frozen_average_of_weights_may_change_on_one_rank_as_a_buffer() -> None:
    watched = Watched()
    assert (watched.of("average").is_sure, watched.of("average").is_buffer) == (False, True)
    assert (watched.of("weight").is_sure, watched.of("weight").is_buffer) == (True, False)


def test_a_step_on_gradients_of_one_rank_alone_makes_its_parameters_its_own() -> None:
    watched = Watched()
    with watched.wrapped.no_sync():
        watched.wrapped(torch.ones(1, 2))  # DDP averages if the last pass is not within ``no_sync``
    watched.step()
    assert not watched.of("weight").is_own, "gradients of several batches were added up, and then averaged"
    with watched.wrapped.no_sync():
        watched.step()
    assert watched.of("weight").is_own


def test_a_communication_hook_is_not_sure_and_that_of_local_sgd_is_own() -> None:
    watched = Watched()
    watched.wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    assert (watched.of("weight").is_sure, watched.of("weight").is_own) == (False, False)
    watched = Watched()
    state = post_localSGD_hook.PostLocalSGDState(None, None, start_localSGD_iter=9)  # type: ignore[no-untyped-call]
    watched.wrapped.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    assert (watched.of("weight").is_sure, watched.of("weight").is_own) == (False, True)


def test_the_statistics_of_a_batch_norm_are_each_ranks_own_unless_ranks_share_them() -> None:
    """Of similar samples they are equal for some steps, and then differ by their last bit."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.SyncBatchNorm(2))
    copies = Copies(Trained(model, None, None, {}), model, 2, is_declared=True)
    assert {copy.name for copy in copies if copy.is_buffer} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
