"""Device files of GPUs that a program may open: those in its allocation alone, by its attempt's control group.

A program may change ``CUDA_VISIBLE_DEVICES``, and /dev/nvidiaN is open to every user of a host. So the device files of
all other GPUs are barred, present or future, the render nodes and MIG capabilities of present ones, and the capability
that changes the MIG layout. Files that all GPUs share (nvidiactl, nvidia-uvm) stay open, and every file of no GPU.

Numbers: nv-chardev-numbers.h of github.com/NVIDIA/open-gpu-kernel-modules; /proc/driver/nvidia: NVIDIA's driver README,
"The /proc Interface", and its MIG User Guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

import json
from pathlib import Path

from workers.host.supervisor.cgroup import devices as cgroup_devices
from workers.host.supervisor.cgroup.place import V1_DEVICES
from workers.host.supervisor.container.containers import has_nvidia
from workers.host.supervisor.container.end import has_own_group
from workers.host.supervisor.gpu_query import UnansweredError, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from workers.host.supervisor.cgroup.group import Group
    from workers.host.supervisor.order import Order

CGROUP, ENGINE, NONE = "cgroup", "engine", "none"
MAJOR = 195
MOST_GPUS = 248
"""Number of minor numbers from 0 on that are GPUs'; 254 and 255 are files that all GPUs share."""
_PROC = Path("/proc")
_PCI = Path("/sys/bus/pci/devices")
_PATIENCE_S = 5.0


class DeviceFiles:
    """Isolation of device files. ``kind``: its ``group``, its container's ``engine``, or ``none`` with a ``reason``."""

    def __init__(self, kind: str, reason: str | None = None) -> None:
        self.kind = kind
        self.reason = reason

    def facts(self, group: Group) -> dict[str, Any]:
        """Return the facts at the end: a group that took no process has barred nothing."""
        is_lost = self.kind == CGROUP and not group.folders.keys() & {"", V1_DEVICES}
        kind, reason = (NONE, group.reason) if is_lost else (self.kind, self.reason)
        return {"device_files": kind, "device_files_reason": reason}


class Gpu:
    """GPU as the driver lists it. ``minor``: N of its ``/dev/nvidiaN``. ``address``: on the PCI bus."""

    __slots__ = ("address", "minor", "uuid")

    def __init__(self, uuid: str, minor: int, address: str) -> None:
        self.uuid = uuid
        self.minor = minor
        self.address = address


def isolate(order: Order, group: Group) -> DeviceFiles:
    """Bar the group from device files outside the attempt's allocation. If that fails, the program runs all
    the same.
    """
    if order.preparation is not None and order.preparation.is_simulated:
        return DeviceFiles(NONE, "the GPUs are simulated")
    if not has_nvidia():
        return DeviceFiles(NONE, "no NVIDIA driver is loaded")
    if has_own_group(order):
        return DeviceFiles(ENGINE)
    try:
        cgroup_devices.bar(group, barred_files(order.gpus, _PROC, _PCI))
    except (OSError, ValueError, UnansweredError) as fault:
        return DeviceFiles(NONE, str(fault))
    return DeviceFiles(CGROUP)


def barred_files(uuids: Sequence[str], proc: Path, pci: Path) -> list[tuple[int, int]]:
    """Return major and minor number of each character device that a program with these GPUs alone may not open.

    ``proc``: the folder of /proc; ``pci``: a folder with one for each device of that bus.

    Raises:
        UnansweredError: the driver does not state which device file is whose.
        OSError, ValueError: its list of GPUs cannot be read.
    """
    driver = proc / "driver" / "nvidia"
    gpus = list(_read_gpus(driver / "gpus"))
    own = _own_minors(uuids, {gpu.uuid: gpu.minor for gpu in gpus})
    others = [gpu for gpu in gpus if gpu.minor not in own]
    return [
        *((MAJOR, minor) for minor in range(MOST_GPUS) if minor not in own),
        *(device for gpu in others for device in _render_nodes(pci / gpu.address)),
        *_capabilities(driver / "capabilities", proc / "devices", others),
    ]


def _own_minors(uuids: Sequence[str], known: dict[str, int]) -> set[int]:
    """Return the minors of the attempt's GPUs.

    A GPU that no process has opened since the driver was loaded has no UUID in /proc yet: then NVML is queried.
    """
    unknown = [uuid for uuid in uuids if uuid not in known]
    if unknown:
        from workers.host.supervisor.gpu_check import MINORS  # noqa: PLC0415  # most starts need none of it

        known = known | {str(uuid): int(minor) for uuid, minor in json.loads(ask(MINORS, unknown, _PATIENCE_S)).items()}
    return {known[uuid] for uuid in uuids}


def _read_gpus(folder: Path) -> Iterator[Gpu]:
    for path in sorted(folder.glob("*/information")):
        said = _fields(path)
        yield Gpu(said.get("GPU UUID", ""), int(said.get("Device Minor", "")), path.parent.name)


def _render_nodes(device: Path) -> Iterator[tuple[int, int]]:
    for path in sorted(device.glob("drm/*/dev")):
        major, _, minor = path.read_text(encoding="ascii").strip().partition(":")
        yield int(major), int(minor)


def _capabilities(folder: Path, numbers: Path, others: Sequence[Gpu]) -> Iterator[tuple[int, int]]:
    """Yield the devices of MIG capabilities. Their major number is the kernel's choice."""
    major = next((int(line.split()[0]) for line in _lines(numbers) if line.split()[1:] == ["nvidia-caps"]), None)
    if major is None:
        return
    of_others = (path for gpu in others for path in sorted(folder.glob(f"gpu{gpu.minor}/**/access")))
    for path in (folder / "mig" / "config", *of_others):
        if path.exists():
            yield major, int(_fields(path).get("DeviceFileMinor", ""))


def _fields(path: Path) -> dict[str, str]:
    """Return the fields of lines such as ``GPU UUID: GPU-…``."""
    pairs = (line.partition(":") for line in _lines(path))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
