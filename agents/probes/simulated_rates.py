"""Rates of a simulated GPU: shares of the data sheets' figures (A100 80GB SXM4, H100 80GB SXM5, H200 SXM5)."""

from typing import Final

from agents.probes.profiles import HardwareProfile

SHEET: Final = {
    "a100": {"gemm_fp32": 19.5, "gemm_bf16": 312.0, "memory": 2_039.0, "pcie": 32.0},
    "h100": {"gemm_fp32": 67.0, "gemm_bf16": 989.4, "memory": 3_350.0, "pcie": 64.0},
    "h200": {"gemm_fp32": 67.0, "gemm_bf16": 989.4, "memory": 4_800.0, "pcie": 64.0},
}
"""TFLOP/s dense, GB/s."""
GEMM_FP32_SHARE: Final = 0.77
GEMM_BF16_SHARE: Final = 0.665
COPY_SHARE: Final = 0.86
"""Shares of the data sheet that an H100 80GB HBM3 reached under a second's load, driver 580, torch 2.11."""
SPREAD: Final = 0.01
SLOW: Final = 0.6


def simulated_rates(profile: HardwareProfile, seed_share: float, *, is_slow: bool = False) -> dict[str, float]:
    """Return the rates.

    ``seed_share``, −1 to 1: this board's place among its kind. A copy within the GPU reads and writes.
    """
    sheet = SHEET[profile.key]
    share = (1 + SPREAD * seed_share) * (SLOW if is_slow else 1)
    rates = {
        "gemm_fp32_sustained_tflops": GEMM_FP32_SHARE * sheet["gemm_fp32"],
        "gemm_bf16_sustained_tflops": GEMM_BF16_SHARE * sheet["gemm_bf16"],
        "copy_device_gb_per_s": COPY_SHARE * sheet["memory"] / 2,
        "copy_to_device_gb_per_s": COPY_SHARE * sheet["pcie"],
        "copy_to_host_gb_per_s": COPY_SHARE * sheet["pcie"],
    }
    return {name: float(f"{share * rate:.4g}") for name, rate in rates.items()}
