"""Attributes of a GPU that its agent tells, as cohorts and the drift report compare them: all of them texts.

Pure: from the newest ``GPU_STATE`` of the GPU and the class of its node's network.
"""

from collections.abc import Mapping
from typing import Any, Final

from muster.domain.state_readings import words_in

FABRIC_CLIQUE: Final = "fabric_clique"
STATES: Final = (
    "ecc_enabled",
    "power_limit_w",
    "persistence_enabled",
    "application_clock_mhz",
    "pcie_max_generation",
    "pcie_max_width",
    "nvlink_links",
    "nvlink_mb_per_s",
)
"""Of ``state_readings.GPU_STATE``, those that are alike of GPUs that are set up alike."""
WORDS: Final = ("vbios_version", "gsp_firmware_version", "cuda_version")
"""Of ``state_readings.GPU_WORDS``, likewise."""
NETWORK: Final = "network"
SET_UP: Final = (*STATES, *WORDS, NETWORK)
"""What GPUs of a model drift apart in. ``FABRIC_CLIQUE`` is a place: others elsewhere are no drift."""
TOLD: Final = (*SET_UP, FABRIC_CLIQUE)


def attributes_told(state: Mapping[str, Any], text: str, network: str | None) -> dict[str, str]:
    """By the names of ``TOLD``; what was not told is not there.

    ``fabric_clique``: ``cluster/clique`` in an NVLink domain of several hosts, else NVML's number alone.
    """
    words = words_in(text)
    found = {name: f"{state[name]:.12g}" for name in STATES if state.get(name) is not None}
    found |= {name: words[name] for name in WORDS if name in words}
    if network is not None:
        found[NETWORK] = network
    if state.get(FABRIC_CLIQUE) is not None:
        clique = f"{state[FABRIC_CLIQUE]:.12g}"
        cluster = words.get("fabric_cluster")
        found[FABRIC_CLIQUE] = clique if cluster is None else f"{cluster}/{clique}"
    return found
