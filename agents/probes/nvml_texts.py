"""Texts about a GPU that may change while its host runs: by the names of ``state_readings.GPU_WORDS``."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from agents.probes.nvml_identity import cuda_version
from agents.probes.nvml_sheet import Sheet
from agents.probes.nvml_states import fabric_of, is_registered


def _cluster(nvml: Any, handle: Any) -> str:
    """Return the cluster's id, empty where the GPU is in no NVLink domain beyond its host.

    Its UUID is then all zeros.
    """
    found = fabric_of(nvml, handle)
    uuid = bytes(found.clusterUuid)
    return uuid.hex() if is_registered(found) and any(uuid) else ""


_WORD_READERS: Final[dict[str, Callable[[Any, Any], str]]] = {
    "model": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "vbios_version": lambda nvml, gpu: nvml.nvmlDeviceGetVbiosVersion(gpu),
    "gsp_firmware_version": lambda nvml, gpu: nvml.nvmlDeviceGetGspFirmwareVersion(gpu).decode(),
    "inforom_version": lambda nvml, gpu: nvml.nvmlDeviceGetInforomImageVersion(gpu),
    "board_part_number": lambda nvml, gpu: nvml.nvmlDeviceGetBoardPartNumber(gpu),
    "cuda_version": lambda nvml, _gpu: cuda_version(nvml.nvmlSystemGetCudaDriverVersion_v2()),
    "fabric_cluster": _cluster,
}


def read_words(nvml: Any, handle: Any) -> dict[str, str]:
    """Return the texts that the GPU reports; its identity states which are unsupported or failed.

    Raises GpuLostError.
    """
    sheet = Sheet(nvml)
    for name, read in _WORD_READERS.items():
        sheet.take_one(name, partial(read, nvml, handle))
    return {name: str(word) for name, word in sheet.values.items() if word}
