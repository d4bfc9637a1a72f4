"""A training over gloo whose ranks dump as NCCL's monitor does: KIND of the last rank's dump: whole, cut or none.

A thread of each rank makes NCCL's pipe and, at a byte in it, writes torch's own record of the collectives in the form
of NCCL's dump. The sensor's record is empty, as it is of a job over NCCL. Rank 1 computes without end in step 12.
"""

import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from muster import train

c10d: Any = sys.modules["torch._C._distributed_c10d"]
recorded = c10d._dump_fr_trace_json
c10d._dump_fr_trace_json = lambda *_: '{"entries": []}'


def dump() -> dict[str, object]:
    document: dict[str, Any] = json.loads(recorded(True, False))
    for entry in document["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
        entry["state"] = "completed" if entry["retired"] else "started"
    document["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(dist.get_world_size())])}}
    return document


def serve(rank: int, kind: str) -> None:
    pipe = Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe")
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    while not os.read(descriptor, 128):
        time.sleep(0.05)
    content = pickle.dumps(dump(), protocol=2)
    if kind != "none":
        Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}").write_bytes(content[:-40] if kind == "cut" else content)


model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run = train.start(model, optimizer, checkpoint_every=5)
kind = sys.argv[1] if run.rank == run.world_size - 1 else "whole"
threading.Thread(target=serve, args=(run.rank, kind), daemon=True).start()
for step in run.steps(total=100):
    while step == 12 and run.rank == 1:
        pass
    dist.all_reduce(torch.ones(3))
    loss = run.model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.15)
run.finish()
