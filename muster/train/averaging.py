"""Averaging gradients so that the bits do not hang on where a gradient lies in a bucket.

DDP lays its buckets out anew after the first step, by the order in which gradients came; a ring sums each piece of a
bucket in an order that hangs on its place. So the first step after a resume would sum in another order than the same
step of an undisturbed run: with more than two ranks the last bits differ, and soon the losses. Here each rank sums its
share of a bucket in the order of the ranks and all gather the shares: as many bytes as a ring, the same bits always.
"""

import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

# Annotations stay objects here: register_comm_hook looks at them.


def average_in_rank_order(model: DistributedDataParallel) -> None:
    """From now on, gradients of ``model`` are averaged so. For gloo; all parameters on the CPU."""
    model.register_comm_hook(None, _average)


def _average(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
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
    distributed.all_gather_into_tensor(padded, total)
    gradients.copy_(padded[:length])
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done
