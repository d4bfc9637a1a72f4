"""What pages say of figures that have names of their own."""

import pytest

from console.words import attribute, attribute_value, measure, microseconds
from muster.domain.gpu.cohort_attributes import REPORTED_ATTRIBUTES


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("copy_to_device_gb_per_s", "copy to device, GB/s"),
        ("gemm_bf16_tflops", "gemm bf16, TFLOP/s"),
        ("something_else", "something else"),
    ],
)
def test_a_measure_is_stated_with_its_unit(name: str, reported: str) -> None:
    assert measure(name) == reported


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("power_limit_w", "700", ("Power limit", "700 W")),
        ("application_clock_mhz", "1980", ("Application clock", "1980 MHz")),
        ("nvlink_mb_per_s", "26562", ("Speed of one NVLink", "26562 MB/s")),
        ("pcie_max_width", "16", ("PCIe width, at most", "16 lanes")),
        ("ecc_enabled", "1", ("ECC", "on")),
        ("persistence_enabled", "0", ("Persistence mode", "off")),
        ("ecc_enabled", "perhaps", ("ECC", "perhaps")),
        ("network", "8 x 400 Gb/s InfiniBand", ("Network", "8 x 400 Gb/s InfiniBand")),
    ],
)
def test_an_attribute_is_stated_with_its_unit(name: str, value: str, reported: tuple[str, str]) -> None:
    assert (attribute(name), attribute_value(value, name)) == reported


def test_no_attribute_is_stated_by_its_bare_field() -> None:
    assert not [name for name in REPORTED_ATTRIBUTES if "_" in attribute(name)]


@pytest.mark.parametrize(("value", "reported"), [(12.4, "12 µs"), (1_500.0, "1.5 ms"), (None, "none came back")])
def test_a_round_trip_is_stated_in_the_unit_that_fits(value: float | None, reported: str) -> None:
    assert microseconds(value) == reported
