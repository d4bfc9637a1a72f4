"""The smallest gang: each rank adds its number over gloo, checks the sum, and prints the result.

Run by Muster, or by hand: ``torchrun --nproc-per-node 2 examples/hello_ranks.py``.
"""

import sys

import torch
import torch.distributed as dist


def main() -> int:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    expected = world_size * (world_size + 1) // 2
    print(f"rank {rank} of {world_size}: the sum over all ranks is {int(total)}, expected {expected}", flush=True)
    dist.destroy_process_group()
    return 0 if int(total) == expected else 1


if __name__ == "__main__":
    sys.exit(main())
