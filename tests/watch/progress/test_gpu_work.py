"""Work of GPUs by their readings: a collective that waits keeps them utilised without arithmetic."""

import pytest

from watch.progress.gpu_work import GpuWork


def readings(utilisation: float | None, power_w: float | None) -> dict[str, float]:
    found = {"gpu.a.utilisation": utilisation, "gpu.a.power_w": power_w}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("now", "is_working"),
    [
        (readings(100, 600), True),
        (readings(100, 210), False),
        (readings(0, 90), None),
        (readings(40, 210), None),
        (readings(100, None), None),
        ({}, None),
    ],
    ids=str,
)
def test_a_spinning_gpu_differs_from_a_computing_one(now: dict[str, float], *, is_working: bool | None) -> None:
    work = GpuWork()
    work.take(readings(100, 640))
    work.take(now)
    assert work.is_working(["a"], now) is is_working


def test_a_program_that_never_drew_power_shows_nothing_by_it() -> None:
    work = GpuWork()
    work.take(readings(3, 70))
    assert work.is_working(["a"], readings(3, 30)) is None
    assert work.is_working([], {}) is None


def test_one_gpu_that_computes_suffices() -> None:
    work = GpuWork()
    now = {"gpu.a.utilisation": 0.0, "gpu.b.utilisation": 80.0, "gpu.b.power_w": 500.0}
    work.take(now)
    assert work.is_working(["a", "b"], now) is True
