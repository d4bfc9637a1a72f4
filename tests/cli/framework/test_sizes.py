"""Sizes of memory as people write them."""

import pytest
import typer

from muster.cli.framework.sizes import bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GiB", 64 << 30),
        ("1.5TiB", 3 << 39),
        ("512 MiB", 512 << 20),
        (" 8KiB ", 8 << 10),
        ("64GB", 64 * 10**9),
        (None, None),
    ],
)
def test_a_size_has_its_unit(text: str | None, size: int | None) -> None:
    assert bytes_of(text, "--memory") == size


@pytest.mark.parametrize("text", ["64", "64G", "64gib", "-1GiB", "GiB", "1e3GiB", ""])
def test_what_could_mean_two_things_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is no size: write 512MiB, 64GiB or 1\.5TiB"):
        bytes_of(text, "--memory")
