"""What ``muster run`` reads of its own machine: GPUs, and faults in the kernel's log. Neither is needed to run."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from muster.cli.framework.exits import CommandError, Exit

SCRAPED_EVERY_S: Final = 10.0
"""A dcgm-exporter reads its GPUs each half a minute by default."""


def gpus_here(wanted: int | None) -> tuple[str, ...]:
    """Return this machine's GPUs. Raises CommandError if there are fewer than ``wanted``."""
    found = _visible_gpus()
    if wanted is not None and wanted > len(found):
        words = f"--gpus {wanted}: this machine has {len(found)}"
        raise CommandError(words, "`muster agent scan` says what the driver sees.", Exit.USAGE)
    return found[:wanted]


def _visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, if it is set; else all that the driver has."""
    set_by_user = os.environ.get("CUDA_VISIBLE_DEVICES")
    if set_by_user is not None:
        named = (part.strip() for part in set_by_user.split(","))
        return tuple(takewhile(lambda part: part and not part.startswith("-"), named))  # CUDA stops at any other entry
    from agents.probes.interface import ProbeError
    from agents.probes.nvml import open_nvml_probe

    try:
        probe = open_nvml_probe()
    except ProbeError:
        return ()
    try:
        return tuple(str(gpu.uuid) for gpu in probe.identify().gpus)
    finally:
        probe.close()


def readings_of(gpus: tuple[str, ...], exporter: str | None = None) -> "Callable[[], Mapping[str, float]]":
    """Return a function that reads utilisation and power of these GPUs; nothing where the driver does not answer.

    ``exporter``: the address of a dcgm-exporter that also has the activity of their tensor cores. The readings have the
    names of ``gpus``, which may be numbers as in CUDA_VISIBLE_DEVICES.
    """
    from agents.dcgm.exporter import Exporter, ProbeWithDcgm
    from agents.probes.interface import ProbeError
    from agents.probes.nvml import open_nvml_probe
    from muster.domain.gpu.metrics import value_of

    if not gpus:
        return dict
    try:
        own_probe = open_nvml_probe()
        own = names_by_uuid(gpus, {str(gpu.uuid): gpu.model for gpu in own_probe.identify().gpus})
    except ProbeError:
        return dict
    scraped = None if exporter is None else Exporter(exporter, every_s=SCRAPED_EVERY_S)
    probe = own_probe if scraped is None else ProbeWithDcgm(own_probe, scraped)
    names = {
        "utilisation": "utilisation_percent",
        "power_w": "power_w",
        "tensor_active_percent": "tensor_active_percent",
    }

    def read() -> Mapping[str, float]:
        with contextlib.suppress(ProbeError):
            checks = [check for check in probe.check(time.time_ns() // 1_000_000) if check.gpu_uuid in own]
            found = {
                f"gpu.{own[check.gpu_uuid]}.{ours}": value_of(check.values, name)
                for check in checks
                for ours, name in names.items()
            }
            return {name: value for name, value in found.items() if value is not None}
        return {}

    return read


def names_by_uuid(gpus: Sequence[str], models: Mapping[str, str | None]) -> dict[str, str]:
    """Return the name in ``gpus`` of each GPU that is known: a UUID, the unique beginning of one, or a number.

    ``models``: of all GPUs in the driver's order. CUDA counts by speed where models differ, unless CUDA_DEVICE_ORDER
    says otherwise: then a number names no certain GPU.
    """
    uuids = list(models)
    by_number = len(set(models.values())) <= 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    found: dict[str, str] = {}
    for name in gpus:
        if name.isdecimal():
            meant = [uuids[int(name)]] if by_number and len(name) <= 4 and int(name) < len(uuids) else []
        else:
            meant = [uuid for uuid in uuids if uuid.startswith(name)]
        if len(meant) == 1:
            found[meant[0]] = name
    return found


def kernel_faults_of(gpus: tuple[str, ...]) -> "Callable[[int], tuple[tuple[str, ...], tuple[str, ...]]]":
    """Return a function that reads the kernel's log since a moment: lines of faults, and remarks if it is closed to us.

    A fault of a GPU counts if the GPU is one of ``gpus``.
    """
    from agents.probes.interface import HostInventory, ProbeError
    from agents.probes.nvml import open_nvml_probe

    inventory = HostInventory()
    if gpus:
        with contextlib.suppress(ProbeError), contextlib.closing(open_nvml_probe()) as probe:
            inventory = probe.identify()  # before any fault: a GPU that fell off the bus is named no longer
    own = names_by_uuid(gpus, {str(gpu.uuid): gpu.model for gpu in inventory.gpus})

    def read(since_ms: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        from agents import host_facts  # only for a hang: these imports take a while
        from agents.kernel_log.kernel_log import GpuAddresses
        from agents.kernel_log.recent import recent_faults
        from health.host_lines import fault_lines
        from muster.domain.evidence.findings import GpuSignal
        from muster.domain.ids import NodeId
        from muster.domain.policy.document import Policy
        from workers.local.attempt import NODE

        found = recent_faults(GpuAddresses(lambda: inventory).at, host_facts.current_boot_id(), since_ms)
        signals = [
            GpuSignal(
                each.origin, each.kind, each.source, each.at_ms, NodeId(NODE), each.gpu_uuid, each.code, each.text
            )
            for each in found.events
            if each.gpu_uuid is None or each.gpu_uuid in own
        ]
        return tuple(fault_lines(signals, Policy().health)), (found.remark,) if found.remark else ()

    return read
