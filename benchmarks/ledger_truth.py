"""A month of 1,000 GPUs by the trace simulator: the ledger's books against what each GPU did, and against a recount."""

import time
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from muster.domain.amounts import MS_PER_HOUR
from simulator.month.audit import Audit, audit_month
from simulator.month.history import Shape, play_month

SEED: Final = 7
SIZES: Final = Sizes(full=Shape(num_nodes=125, days=30), smallest=Shape(8, 3, failures_a_day=2.0, repair_s=21_600.0))


def measure(size: Shape) -> Groups:
    began_s = time.process_time()
    history = play_month(size, SEED)
    found = audit_month(history, SEED)
    for fault in found.faults:
        print(fault)
    peers = {
        "attempts": float(len(history.attempts)),
        "node failures": float(len(history.outages)),
        "GPU-hours compared": float(found.num_cells - found.num_marked),
        "GPU-hours inside gap markers": float(found.num_marked),
        "different there, GPU-hours": found.marked_different_ms / MS_PER_HOUR,
        "hours that were corrected": float(found.num_corrected_hours),
        "events": float(found.num_events),
        "CPU s": time.process_time() - began_s,
    }
    yield _figures(f"ledger: {size.days:g} simulated days of {size.num_gpus:,} GPUs", found, peers)


def _figures(name: str, found: Audit, peers: dict[str, float]) -> list[Figure]:
    counted_ms, true_ms = found.goodput_ms
    hours = {account.value: num_ms / MS_PER_HOUR for account, num_ms in found.by_account.most_common()}
    return [
        Figure(f"{name}: GPU-hours unlike the truth outside gap markers", found.num_different, "", 0.0, peers=peers,
               basis=Basis.COUNT),
        Figure(f"{name}: unexplained", found.unexplained_ms, "ms", 0.0, peers=hours, basis=Basis.COUNT),
        Figure(f"{name}: recount unlike the books", found.recount_different_ms, "ms", 0.0, basis=Basis.COUNT),
        Figure(f"{name}: GPU-hours counted twice or not at all", found.num_counted_twice, "", 0.0, basis=Basis.COUNT),
        Figure(f"{name}: goodput of whole jobs unlike the simulator's", abs(counted_ms - true_ms), "ms", 0.0,
               peers={"jobs": float(found.num_whole_jobs), "GPU-hours": true_ms / MS_PER_HOUR}, basis=Basis.COUNT),
    ]  # fmt: skip
