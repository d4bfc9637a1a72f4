"""The attributes by which cohorts are distinguished, and in which GPUs of one model drift apart."""

from typing import Final

ENROLLED: Final = ("model", "memory_bytes", "compute_capability", "driver_version")
"""Known since the GPU was enrolled, each in a column of its row. Its agent's later reports are stored apart from it."""
STATE_ATTRIBUTES: Final = (
    "ecc_enabled",
    "power_limit_w",
    "persistence_enabled",
    "application_clock_mhz",
    "pcie_max_generation",
    "pcie_max_width",
    "nvlink_links",
    "nvlink_mb_per_s",
)
"""The names in ``state_readings.GPU_STATE`` whose values are equal for GPUs that are set up alike."""
TEXT_ATTRIBUTES: Final = (
    "vbios_version",
    "gsp_firmware_version",
    "cuda_version",
    "inforom_version",
    "board_part_number",
)
"""Names in ``state_readings.GPU_WORDS``, likewise."""
HOST: Final = ("kernel_release", "nic_firmware", "nic_driver")
"""Names in ``state_readings.HOST_READING_TEXTS``, likewise, about the GPU's node."""
NETWORK: Final = "network"
"""The class of the node's network cards: their number, rate and link layer."""
NIC_RATE: Final = "nic_rate"
"""The best rate of the node's network cards. A port that is down changes ``network``, and not this."""
LINKS: Final = ("nvlink_links", "nvlink_mb_per_s", "pcie_max_generation", "pcie_max_width", NIC_RATE)
"""The attributes that determine the speed between GPUs. A difference makes a gang slow, never wrong."""
FABRIC_CLIQUE: Final = "fabric_clique"
"""An NVLink domain of several hosts. It is a place: others elsewhere are no drift."""
SET_UP: Final = (*STATE_ATTRIBUTES, *TEXT_ATTRIBUTES, *HOST, NETWORK)
"""Attributes in which GPUs of a model drift apart."""
REPORTED_ATTRIBUTES: Final = (*SET_UP, NIC_RATE, FABRIC_CLIQUE)
"""Attributes that agents report after the enrolment."""
COHORT_ATTRIBUTES: Final = (*ENROLLED, *REPORTED_ATTRIBUTES)
