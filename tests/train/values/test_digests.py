"""Digests of tensors: each bit and its place count, whatever the kind, the shape and the layout."""

import pytest

torch = pytest.importorskip("torch")

from muster.train.values import digests  # noqa: E402  # it imports torch


@pytest.mark.parametrize("size", [1, 3, 8, 1000, 65_536, 131_075])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "bool"])
def test_each_flipped_bit_and_each_two_swapped_values_change_it(size: int, dtype: str) -> None:
    draw = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=draw).to(getattr(torch, dtype))
    before = digests.digest_of(values)
    raw = values.view(torch.uint8)
    for _ in range(20):
        place, bit = int(torch.randint(raw.numel(), (1,), generator=draw)), int(torch.randint(8, (1,), generator=draw))
        raw[place] ^= 1 << bit
        assert digests.digest_of(values) != before
        raw[place] ^= 1 << bit
        first, second = (int(each) for each in torch.randint(size, (2,), generator=draw))
        swapped = values.clone()
        swapped[[first, second]] = values[[second, first]]
        assert (digests.digest_of(swapped) != before) is (bool(values[first] != values[second]))
    assert digests.digest_of(values) == before


def test_changes_that_cancel_in_an_xor_or_in_a_sum_do_not_cancel() -> None:
    values = torch.zeros(200_000, dtype=torch.int64)
    for first, second in ((0, 1), (0, 65_536), (65_535, 131_071), (70_000, 199_999)):
        changed = values.clone()
        changed[first] ^= 1 << 40
        changed[second] ^= 1 << 40
        assert digests.digest_of(changed) != digests.digest_of(values)
        changed = values.clone()
        changed[first], changed[second] = 7, -7
        assert digests.digest_of(changed) != digests.digest_of(values)


def test_kind_and_shape_count_and_the_layout_in_memory_does_not() -> None:
    values = torch.arange(24, dtype=torch.int32)
    assert digests.digest_of(values.view(4, 6)) != digests.digest_of(values.view(6, 4))
    assert digests.digest_of(values.view(torch.float32)) != digests.digest_of(values)
    assert digests.digest_of(values.view(4, 6).t()) == digests.digest_of(values.view(4, 6).t().contiguous())
    assert digests.digest_of(torch.empty(0)) != digests.digest_of(torch.empty(0, 2))
    apart = torch.zeros(65_600, dtype=torch.uint8)
    assert digests.digest_of(apart[1:65_537]) == digests.digest_of(apart[:65_536].clone()), "not at 8 bytes"


def test_tensors_that_are_computed_together_have_the_digest_that_each_has_alone() -> None:
    draw = torch.Generator().manual_seed(1)
    complex_values = torch.randn(6, dtype=torch.complex64, generator=draw)
    values = [torch.randn(33, generator=draw)[1:], complex_values.conj().imag, complex_values.conj()]
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64):
        for shape in ((), (0,), (0, 2), (3,), (5, 7), (40, 100), (5000,), (131_075,)):
            values += [torch.randn(shape, generator=draw).to(dtype) for _ in range(3)]
    values += [torch.randn(7, 5, generator=draw).t() for _ in range(2)]
    pictures = [torch.randn(4, 3, 3, 3, generator=draw) for _ in range(2)]
    values += [*pictures, *(each.to(memory_format=torch.channels_last) for each in pictures)]
    values.append(torch.nn.Parameter(torch.randn(40, 100, generator=draw)))
    alone = [digests.digest_of(value) for value in values]
    assert digests.read([digests.begun(values)]) == alone
    assert digests.read([digests.begun(values[:50]), digests.begun([]), digests.begun(values[50:])]) == alone
    small = [value.clone() for value in values]
    for place in (0, 3, len(values) - 1):
        small[place].view(-1)[0] += 1
    changed = digests.read([digests.begun(small)])
    assert [place for place, digest in enumerate(changed) if digest != alone[place]] == [0, 3, len(values) - 1]
