"""The same bits in every run: torch's repeatable kernels, and gradient averages that do not depend on DDP's buckets.

DDP rebuilds its buckets after the first step, in the order in which gradients arrived. A circular all-reduce sums each
piece of a bucket in an order that depends on the piece's position. So the first step after a resume would sum in
another order than the same step of an undisturbed run: with more than two ranks the last bits differ, and soon the
losses. Here each rank sums its share of a bucket in the order of the ranks, and all ranks gather the shares. This
sends as many bytes as a circular all-reduce and always gives the same bits.
"""

import os
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

# Annotations stay objects here, because register_comm_hook checks them.


def ask_for_determinism(*, has_gpu: bool) -> None:
    """Switch this process to torch's repeatable algorithms, with one thread if it computes on the CPU."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    if has_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    else:
        torch.set_num_threads(1)


class Timed(Protocol):
    """An object that measures how long ranks exchange gradients."""

    def exchanging(self) -> AbstractContextManager[None]:
        """Return a context manager for the time of one exchange."""


def average_in_rank_order(model: DistributedDataParallel, timed: Timed) -> None:
    """Average the gradients of ``model`` in the order of the ranks from now on. It needs gloo and all parameters on the
    CPU.
    """
    model.register_comm_hook(timed, _average)


def _average(timed: Timed, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    with timed.exchanging():
        gradients = _averaged(bucket)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def _averaged(bucket: GradBucket) -> torch.Tensor:
    world_size = distributed.get_world_size()
    gradients = bucket.buffer()
    length = gradients.numel()
    share = -(-length // world_size)
    padded = torch.nn.functional.pad(gradients, (0, share * world_size - length))
    shares = torch.empty_like(padded)
    distributed.all_to_all_single(shares, padded)
    total = shares[:share].clone()
    for rank in range(1, world_size):
        total += shares[rank * share : (rank + 1) * share]
    total /= world_size
    distributed.all_gather_single(padded, total)
    gradients.copy_(padded[:length])
    return gradients
