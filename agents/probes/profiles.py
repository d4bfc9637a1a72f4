"""The GPUs that can be simulated: their identities, and their readings when idle and under load.

Power, memory, clocks and links are from NVIDIA's data sheets (A100 80GB SXM4, H100 80GB SXM5, H200 SXM5); versions and
part numbers have the real shape and end in ``.SIM`` or begin with ``SIM-``, so that they are not mistaken for real
ones.
"""

from dataclasses import dataclass
from typing import Final

SIMULATED_DRIVER: Final = "580.95.05-simulated"
SIMULATED_CUDA: Final = "13.0"

_NO_MARGIN_NO_RECOVERY: Final = frozenset({"temperature_margin_c", "recovery_action"})
"""Ampere has neither T.Limit (gpu-health §2.7) nor the recovery action's field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One model. A healthy GPU settles at its ``idle`` and ``busy`` values; at ``slowdown_c`` it slows itself down."""

    key: str
    model: str
    compute_capability: str
    memory_mib: int
    vbios_version: str
    board_part_number: str
    inforom_version: str
    num_nvlinks: int
    nvlink_mb_per_s: float
    pcie_generation: int
    power_limit_w: float
    min_power_limit_w: float
    idle_power_w: float
    busy_power_w: float
    idle_temperature_c: float
    busy_temperature_c: float
    slowdown_c: float
    idle_sm_clock_mhz: float
    busy_sm_clock_mhz: float
    memory_clock_mhz: float
    remap_banks: int
    """Memory banks that keep spare rows of their own, all of them unused."""
    has_fabric_info: bool = True
    """Hopper and later register with their fabric and report it."""
    unsupported: frozenset[str] = frozenset()


H100: Final = HardwareProfile(
    key="h100",
    model="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    memory_mib=81_559,
    vbios_version="96.00.A5.00.SIM",
    board_part_number="SIM-2G520-0200-000",
    inforom_version="G520.0200.00.SIM",
    num_nvlinks=18,
    nvlink_mb_per_s=26_562,
    pcie_generation=5,
    power_limit_w=700,
    min_power_limit_w=200,
    idle_power_w=72,
    busy_power_w=655,
    idle_temperature_c=29,
    busy_temperature_c=64,
    slowdown_c=87,
    idle_sm_clock_mhz=345,
    busy_sm_clock_mhz=1_980,
    memory_clock_mhz=2_619,
    remap_banks=640,
)
H200: Final = HardwareProfile(
    key="h200",
    model="NVIDIA H200",
    compute_capability="9.0",
    memory_mib=143_771,
    vbios_version="96.00.BC.00.SIM",
    board_part_number="SIM-2G520-0280-000",
    inforom_version="G520.0280.00.SIM",
    num_nvlinks=18,
    nvlink_mb_per_s=26_562,
    pcie_generation=5,
    power_limit_w=700,
    min_power_limit_w=200,
    idle_power_w=78,
    busy_power_w=662,
    idle_temperature_c=28,
    busy_temperature_c=62,
    slowdown_c=87,
    idle_sm_clock_mhz=345,
    busy_sm_clock_mhz=1_980,
    memory_clock_mhz=3_201,
    remap_banks=768,
)
A100: Final = HardwareProfile(
    key="a100",
    model="NVIDIA A100-SXM4-80GB",
    compute_capability="8.0",
    memory_mib=81_920,
    vbios_version="92.00.45.00.SIM",
    board_part_number="SIM-2G506-0210-320",
    inforom_version="G506.0210.00.SIM",
    num_nvlinks=12,
    nvlink_mb_per_s=25_781,
    pcie_generation=4,
    power_limit_w=400,
    min_power_limit_w=100,
    idle_power_w=61,
    busy_power_w=378,
    idle_temperature_c=30,
    busy_temperature_c=61,
    slowdown_c=89,
    idle_sm_clock_mhz=210,
    busy_sm_clock_mhz=1_410,
    memory_clock_mhz=1_593,
    remap_banks=640,
    has_fabric_info=False,
    unsupported=_NO_MARGIN_NO_RECOVERY,
)

PROFILES: Final = {profile.key: profile for profile in (H100, A100, H200)}
