"""Access between the GPUs of one host to each other's memory, pair by pair (``nvmlDeviceGetP2PStatus``).

Read in a thread of its own after the inspections, for the GPUs that answered: a pair with a GPU that hangs delays no
inspection. MIG's instances read no other memory, by design.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

from agents.probes.nvml_devices import Device
from health.detectors.links.p2p import blamed
from muster.domain.ids import GpuUuid

READ: Final = 0
"""NVML_P2P_CAPS_INDEX_READ, which pynvml has as a tuple of one."""
_OK: Final = 0


def read_pairs(nvml: Any, gpus: Mapping[GpuUuid, Device]) -> dict[GpuUuid, dict[str, float]]:
    """Return UUID → states by the names of ``GPU_STATE``. A pair without an answer of the driver is left out."""
    peers: dict[int, set[int]] = {each.index: set() for each in gpus.values()}
    not_ok: dict[int, set[int]] = {each.index: set() for each in gpus.values()}
    for one, other in combinations(gpus.values(), 2):
        try:
            status = int(nvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, READ))
        except nvml.NVMLError:
            continue
        for here, there in ((one.index, other.index), (other.index, one.index)):
            peers[here].add(there)
            if status != _OK:
                not_ok[here].add(there)
    laid_to = blamed({slot: frozenset(others) for slot, others in not_ok.items()})
    return {
        uuid: {
            "p2p_peers": float(len(peers[each.index])),
            "p2p_not_ok": float(len(not_ok[each.index])),
            "p2p_not_ok_bits": float(sum(1 << slot for slot in not_ok[each.index])),
            "p2p_blamed": float(laid_to[each.index]),
        }
        for uuid, each in gpus.items()
        if peers[each.index]
    }
