"""GPUs that the driver lists: by slot, by UUID, and slots whose GPU has no readable UUID."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agents.probes.interface import NamelessGpu
from agents.probes.nvml_driver import Driver
from agents.probes.nvml_gpm import GpmMemory
from agents.probes.nvml_links import LinkMemory
from agents.probes.nvml_states import InforomMemory
from muster.domain.ids import GpuUuid


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that the driver lists, with its NVLinks' counts so far and the result of its InfoROM's validation."""

    uuid: GpuUuid
    index: int
    handle: Any
    links: LinkMemory = field(default_factory=LinkMemory)
    inforom: InforomMemory = field(default_factory=InforomMemory)
    gpm: GpmMemory = field(default_factory=GpmMemory)


class DeviceList:
    """The list. ``listen`` is called once for each new GPU, in a thread with a deadline; its error is stored by GPU."""

    def __init__(self, driver: Driver, listen: Callable[[GpuUuid, Any], None]) -> None:
        self._driver = driver
        self._listen = listen
        self.listed: dict[GpuUuid, Device] = {}
        self.slots: dict[GpuUuid, int] = {}
        """UUID → last slot, of every GPU ever listed: one that vanished is still known."""
        self.nameless: tuple[NamelessGpu, ...] = ()
        self.unreachable: dict[GpuUuid, BaseException] = {}
        self.num_listed = 0

    def count(self) -> int:
        """Return the number of GPUs. Raises ProbeError."""
        return int(self._driver.ask(self._driver.nvml.nvmlDeviceGetCount))

    def forget(self) -> None:
        """Forget the handles of a released driver: the next ``refresh`` opens each GPU again."""
        self.listed = {}

    def refresh(self, count: int) -> None:
        """List ``count`` slots again."""
        self.num_listed = count
        answers = self._driver.each({f"slot:{index}": partial(self._open, index) for index in range(count)})
        found = [answer for answer in answers.values() if isinstance(answer, Device)]
        silent = {
            int(slot.removeprefix("slot:")): answer
            for slot, answer in answers.items()
            if isinstance(answer, BaseException)
        }
        named = {device.uuid: self._with_memory(device) for device in found}
        # A slot that does not answer now still holds its former GPU, if that one is listed nowhere else.
        kept = {uuid: old for uuid, old in self.listed.items() if uuid not in named and old.index in silent}
        taken = {device.index for device in kept.values()}
        self.nameless = tuple(NamelessGpu(index, str(error)) for index, error in silent.items() if index not in taken)
        new = {uuid: device for uuid, device in named.items() if uuid not in self.listed}
        self.listed = named | kept
        self.slots |= {device.uuid: device.index for device in self.listed.values()}
        self._listen_to(new)

    def _open(self, index: int) -> Device:
        nvml = self._driver.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return Device(GpuUuid(nvml.nvmlDeviceGetUUID(handle)), index, handle)

    def _with_memory(self, device: Device) -> Device:
        before = self.listed.get(device.uuid)
        return replace(device, links=before.links, inforom=before.inforom, gpm=before.gpm) if before else device

    def _listen_to(self, devices: Mapping[GpuUuid, Device]) -> None:
        answers = self._driver.each(
            {uuid: partial(self._listen, uuid, device.handle) for uuid, device in devices.items()}
        )
        for uuid in devices:
            self.unreachable.pop(uuid, None)
            answer = answers[uuid]
            if isinstance(answer, BaseException):
                self.unreachable[uuid] = answer
