"""What computes, with real torch on the CPU: the exact answers are right, and what computes wrong is found."""

from typing import Any

import pytest
import torch

from agents.burn_in.bench import bands, memory, program
from agents.burn_in.bench.bands import BANDS
from muster.bench import exact

CPU = torch.device("cpu")
EXACT_TO = {torch.float64: 2**53, torch.float32: 2**24, torch.bfloat16: 2**8, torch.float16: 2**11}


@pytest.fixture(scope="module")
def device() -> program.Device:
    return program.open_device("cpu")


def wrong(found: dict[str, Any]) -> set[str]:
    return {name for name, golden, measured in found["partial_sums"] if golden != measured}


@pytest.mark.parametrize("kind", exact.CUDA_KINDS, ids=lambda kind: kind.name)
def test_no_sum_can_leave_what_its_dtype_holds_exactly(kind: exact.Kind) -> None:
    assert kind.inner * kind.largest**2 <= EXACT_TO[kind.dtype]
    if kind.is_tf32:
        assert kind.largest < 2**11


@pytest.mark.parametrize("kind", exact.CPU_KINDS, ids=lambda kind: kind.name)
def test_golden_values_are_those_of_plain_integers(kind: exact.Kind) -> None:
    problem = exact.make_problem(kind, 16)
    left, right, weights = problem.left.tolist(), problem.right.tolist(), problem.weights.tolist()
    rows = [[sum(row[k] * right[k][j] for k in range(kind.inner)) for j in range(16)] for row in left]
    weighted = [sum(value * weight for value, weight in zip(row, weights, strict=True)) for row in rows]
    golden = tuple(sum(weighted[start : start + 2]) for start in range(0, 16, 2))
    assert problem.golden == golden
    assert len(set(golden)) > 1, "the sums differ"


def test_a_cpu_gives_every_golden_value_and_the_same_bits_each_time(device: program.Device) -> None:
    first, second = device.burn_in(), device.burn_in()
    assert wrong(first) == set()
    assert first["bands"] == second["bands"]
    assert set(first["bands"]) == {band.name for band in BANDS}
    assert len(set(first["bands"].values())) == len(BANDS)
    assert set(first["rates"]) == {"gemm_fp32_sustained_tflops", "gemm_bf16_sustained_tflops", "copy_device_gb_per_s"}
    assert all(rate > 0 for rate in first["rates"].values())
    assert min(first["took_s"], second["took_s"]) < 5  # not each: other processes share this machine


def test_one_wrong_sign_shows_in_the_sums_of_every_dtype_and_in_every_band(device: program.Device) -> None:
    right, ill = device.burn_in(), device.burn_in(is_wrong=True)
    assert {name.split()[0] for name in wrong(ill)} == {kind.name for kind in exact.CPU_KINDS}
    assert all(ill["bands"][name] != digest for name, digest in right["bands"].items())


@pytest.mark.parametrize("kind", exact.CPU_KINDS, ids=lambda kind: kind.name)
def test_a_gemm_that_is_wrong_once_in_many_rounds_is_found(kind: exact.Kind) -> None:
    problem, rounds = exact.make_problem(kind, 32), iter(range(9))

    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = torch.mm(left, right)
        if next(rounds) == 5:
            result[3, 7] += 1
        return result

    found = exact.check(problem, CPU, multiply, rounds=8)
    assert [name for name, golden, measured in found if golden != measured] == [f"{kind.name} rows 1/8"]


def test_nan_is_a_wrong_sum() -> None:
    problem = exact.make_problem(exact.CPU_KINDS[1], 32)
    found = exact.check(problem, CPU, lambda left, right: torch.mm(left, right) * float("nan"), rounds=1)
    assert all(golden != measured for _, golden, measured in found)


def test_bits_that_change_from_round_to_round_are_a_wrong_count() -> None:
    band, rounds = BANDS[0], iter(range(4))

    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.mm(left, right) * (2 if next(rounds) == 2 else 1)

    digest, repeats = bands.digest(band, bands.factors(band, 32, 64), CPU, multiply, rounds=4)
    assert (len(digest), repeats) == (64, (f"{band.name} repeats", 4, 3))


@pytest.mark.parametrize("band", BANDS, ids=lambda band: band.name)
def test_a_bands_factors_are_of_its_magnitude_and_finite(band: bands.Band) -> None:
    left, right = bands.factors(band, 32, 64)
    for factor in (left, right):
        assert torch.isfinite(factor).all()
        assert 2.0 ** (band.exponent + 1) < factor.abs().max() <= 2.0 ** (band.exponent + 2)
    assert torch.isfinite(torch.mm(left, right)).all()


def test_sound_memory_reads_back_every_word_of_every_pattern() -> None:
    found = memory.check(CPU, 1 << 20, 1 << 18)
    assert [name for name, _, _ in found] == [f"memory {name}" for name in (*memory.PATTERNS, "addresses")]
    assert {(golden, measured) for _, golden, measured in found} == {(1 << 17, 1 << 17)}


def test_a_stuck_bit_and_an_aliased_address_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in which word 5 of the first chunk never keeps bit 0, and word 9 is where word 8 is."""
    fill, arange = torch.Tensor.fill_, torch.arange

    def stuck(self: torch.Tensor, value: int) -> torch.Tensor:
        fill(self, value)
        self[5] &= -2
        return self

    def aliased(*arguments: Any, out: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        if out is None:
            return arange(*arguments, **more)
        arange(*arguments, out=out)
        out[8] = out[9]
        return out

    monkeypatch.setattr(torch.Tensor, "fill_", stuck)
    monkeypatch.setattr(torch, "arange", aliased)
    found = memory.check(CPU, 1 << 12, 1 << 12)
    lost = {name: golden - measured for name, golden, measured in found}
    assert lost == {
        "memory zeros": 0,
        "memory ones": 1,
        "memory 0xaa": 0,
        "memory 0x55": 1,
        "memory addresses": 1,
    }


def test_a_machine_without_cuda_reports_it() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(RuntimeError, match="sees no CUDA device"):
        program.open_device("cuda")
