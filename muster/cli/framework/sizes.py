"""Sizes of memory as people write them: 512MiB, 64GiB, 1.5TiB; MB, GB and TB are powers of ten."""

import re
from typing import Final

from muster.cli.framework.options import unfit

_BYTES_OF_UNIT: Final[dict[str, int]] = {
    **{f"{prefix}iB": 1 << power for prefix, power in (("K", 10), ("M", 20), ("G", 30), ("T", 40))},
    **{f"{prefix}B": 10**power for prefix, power in (("K", 3), ("M", 6), ("G", 9), ("T", 12))},
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?B)")


def bytes_of(text: str | None, option: str) -> int | None:
    """Return the bytes of a size. Raises ``typer.BadParameter``, which names the option, for any other text."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise unfit(option, f"{text!r} is no size: write 512MiB, 64GiB or 1.5TiB")
    return round(float(match[1]) * _BYTES_OF_UNIT[match[2]])
