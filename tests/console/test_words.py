"""What pages say of figures that have names of their own."""

import pytest

from console.words import measure


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("copy_to_device_gb_per_s", "copy to device, GB/s"),
        ("gemm_bf16_tflops", "gemm bf16, TFLOP/s"),
        ("something_else", "something else"),
    ],
)
def test_a_measure_is_said_with_its_unit(name: str, said: str) -> None:
    assert measure(name) == said
