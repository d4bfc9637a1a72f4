"""Ranks over gloo without ``muster.train``: all reduce a tensor, except rank 1, which sleeps or computes: KIND.

``sleeps``: in one call; ``spins``: in a loop without output.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
print("stands still", flush=True)  # noqa: T201
if os.environ["RANK"] == "1":
    while sys.argv[1] == "spins":
        pass
    time.sleep(600)
dist.all_reduce(torch.ones(3))
