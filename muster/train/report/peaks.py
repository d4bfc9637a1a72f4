"""Dense peaks of GPUs by the product names that the driver gives, without the "NVIDIA " in front.

Dense, for bf16 or fp16 operands and fp32 sums: a data sheet's "with sparsity" is twice that, and no other type of
operands has its figures here. AMD's stand by their whole names, as torch gives them. Sources: ``torchtitan`` is
its tools/utils.py, ``composer`` its speed_monitor.py, ``lightning`` its throughput.py, ``vendor`` the vendor's data
sheet, ``known`` common knowledge that we have not measured. A GPU that is not listed here has no MFU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Dtype(Enum):
    """Type of the operands of matrix products."""

    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True)
class Peak:
    """Peak of one GPU. ``hbm_tb_per_s``: bandwidth of its memory. ``has_bf16``: false for old GPUs with fp16 alone."""

    tflops: float
    hbm_tb_per_s: float
    source: str
    has_bf16: bool = True

    def tflops_of(self, dtype: Dtype | None) -> float | None:
        """Return the peak for a type, or None if the matrix units do not support it. ``dtype`` None: the GPU's half
        precision.
        """
        return None if dtype is Dtype.BF16 and not self.has_bf16 else self.tflops

    @property
    def ridge_flop_per_byte(self) -> float:
        """Operations a byte above which the GPU computes for longer than it reads."""
        return self.tflops / self.hbm_tb_per_s


def _volta(tflops: float) -> Peak:
    return Peak(tflops, 0.9, "composer, lightning", has_bf16=False)


_A100_40 = Peak(312, 1.56, "torchtitan, composer")
_A100_80 = Peak(312, 2.04, "torchtitan, composer")
_BLACKWELL = Peak(2250, 8.0, "torchtitan")
_GRACE_BLACKWELL = Peak(2500, 8.0, "torchtitan")
_MI300X = Peak(1300, 5.3, "torchtitan")

PEAKS: dict[str, Peak] = {
    "Tesla V100-SXM2-16GB": _volta(125),
    "Tesla V100-SXM2-32GB": _volta(125),
    "Tesla V100-SXM3-32GB": _volta(125),
    "Tesla V100-PCIE-16GB": _volta(112),
    "Tesla V100-PCIE-32GB": _volta(112),
    "Tesla T4": Peak(65, 0.32, "composer, lightning", has_bf16=False),
    "A10": Peak(125, 0.6, "composer"),
    "A10G": Peak(70, 0.6, "known; another part than the A10"),
    "A100-SXM4-40GB": _A100_40,
    "A100-PCIE-40GB": _A100_40,
    "A100-SXM4-80GB": _A100_80,
    "A100 80GB PCIe": Peak(312, 1.94, "torchtitan, composer"),
    "RTX A6000": Peak(154.85, 0.77, "torchtitan"),
    "L4": Peak(121, 0.30, "vendor, half of its figure with sparsity"),
    "L40": Peak(181, 0.864, "vendor"),
    "L40S": Peak(362, 0.864, "torchtitan"),
    "H100 80GB HBM3": Peak(989, 3.35, "torchtitan, composer"),
    "H100 PCIe": Peak(756, 2.0, "torchtitan, composer"),
    "H100 NVL": Peak(835, 3.9, "torchtitan, composer"),
    "H200": Peak(989, 4.8, "torchtitan"),
    "H20": Peak(148, 4.0, "torchtitan"),
    "B200": _BLACKWELL,
    "B300": _BLACKWELL,
    "GB200": _GRACE_BLACKWELL,
    "GB300": _GRACE_BLACKWELL,
    "GeForce RTX 3090": Peak(71, 0.94, "known; sums in fp32 at half the rate"),
    "GeForce RTX 4090": Peak(165, 1.0, "known; sums in fp32 at half the rate"),
    "GeForce RTX 5090": Peak(210, 1.8, "known; sums in fp32 at half the rate"),
    "AMD Instinct MI250X": Peak(191.5, 1.6, "torchtitan; of one of its two dies, which torch sees as a GPU each"),
    "AMD Instinct MI300X": _MI300X,
    "AMD Instinct MI300X OAM": _MI300X,
    "AMD Instinct MI325X": Peak(1300, 6.0, "torchtitan"),
    "AMD Instinct MI355X": Peak(2500, 8.0, "torchtitan"),
}
