"""A suspect operation, repeated: exact on a sound device in each kind and size, and wrong where one number is."""

from typing import Any

import pytest
import torch

from agents.burn_in.bench import operation, program
from muster.bench import exact

CPU = torch.device("cpu")
KINDS = ("float64", "float32", "float16", "bfloat16")


def suspect_operation(**more: Any) -> dict[str, Any]:
    return {"kind": "matmul", "shape": [48, 96], "dtype": "float32", "magnitude": 0.02, **more}


def check(document: dict[str, Any], multiply: Any = torch.mm, rounds: int = 2) -> dict[str, bool]:
    """Return by name whether the device gave what is exactly right."""
    return {name: golden == got for name, golden, got in operation.check(document, CPU, multiply, rounds, 1 << 16)}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("kind", "shape"), [("matmul", [48, 96]), ("matmul", [1, 1]), ("matmul", [4, 9000]), ("conv2d", [8, 3, 7, 7])]
)
@pytest.mark.parametrize("magnitude", [0.0, 1e-30, 0.02, 900.0, 1e30])
def test_a_sound_device_gives_the_exact_sum_in_each_kind(
    dtype: str, kind: str, shape: list[int], magnitude: float
) -> None:
    found = check(suspect_operation(kind=kind, shape=shape, dtype=dtype, magnitude=magnitude))
    assert found == {"operation exact": True, "operation repeats": True}


@pytest.mark.parametrize("dtype", KINDS)
def test_one_wrong_number_in_one_round_is_found(dtype: str) -> None:
    rounds = iter(range(9))

    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = torch.mm(left, right)
        if next(rounds) == 1:
            result[3, 7] += right.abs().max()
        return result

    assert check(suspect_operation(dtype=dtype), multiply, 3) == {"operation exact": False, "operation repeats": False}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**-20])
def test_what_is_no_whole_number_is_a_wrong_sum(value: float) -> None:
    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = torch.mm(left, right)
        result[0, 0] = value
        return result

    assert not check(suspect_operation(), multiply)["operation exact"]


def test_a_large_shape_is_cut_and_an_unknown_kind_is_left_out() -> None:
    """A tenant states the shape."""
    sizes = []

    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        sizes.append((left.numel(), right.numel()))
        return torch.mm(left, right)

    assert all(check(suspect_operation(shape=[1 << 16] * 4), multiply, 1).values())
    assert sizes == [(operation.ROWS << 16, 1 << 16)]
    assert check(suspect_operation(dtype="float8_e4m3fn")) == {}


def test_a_burn_in_repeats_it_and_a_faulty_gpu_fails_it() -> None:
    device = program.open_device("cpu")
    for is_wrong in (False, True):
        sums = device.burn_in(is_wrong=is_wrong, suspect=suspect_operation())["partial_sums"]
        (exact,) = [golden == got for name, golden, got in sums if name == "operation exact"]
        assert exact is not is_wrong


def test_a_kind_that_a_gpu_lacks_or_a_refused_operation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs before compute capability 8.0 have no bfloat16."""
    kinds = tuple(kind for kind in exact.CPU_KINDS if kind.name != "bf16")
    device = program.Device(CPU, program.SMALL, "torch", kinds)

    def sums(dtype: str) -> list[str]:
        found = device.burn_in(suspect=suspect_operation(dtype=dtype))["partial_sums"]
        assert all(golden == got for _, golden, got in found)
        return [name for name, _, _ in found if name.startswith("operation")]

    assert sums("bfloat16") == sums("float8_e4m3fn") == []
    assert sums("float16") == ["operation exact", "operation repeats"]

    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(operation, "check", refuse)
    assert sums("float16") == []
