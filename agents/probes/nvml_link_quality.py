"""Quality of a GPU's NVLinks (NVLink 5): the worst bit error rate of any, as the n of 10^-n.

NVML packs a rate into a number (fields 220 and 222): bits 0 to 7 are its exponent, 8 to 11 its mantissa, so that
``0x50f`` is 5 x 10^-15. No rule of the field judges it: it is a reading.
"""

import math
from typing import Any, Final

from agents.probes.nvml_fields import NVLINK_EFFECTIVE_BER, NVLINK_SYMBOL_BER, number_of, read_fields
from agents.probes.nvml_library import NOT_SUPPORTED, UNSUPPORTED_CODES

BIT_ERROR_RATES: Final = ("nvlink_effective_ber_exponent", "nvlink_symbol_ber_exponent")
_QUALITY_FIELDS: Final = (NVLINK_EFFECTIVE_BER, NVLINK_SYMBOL_BER)
_EXPONENT: Final = 0xFF
_MANTISSA: Final = 0xF
_MANTISSA_AT: Final = 8
_NONE: Final = 255.0
"""No errors at all."""


def read_bit_error_rates(nvml: Any, handle: Any, links: list[int]) -> list[float]:
    """Return one number a name of ``BIT_ERROR_RATES``. Raises NVMLError; NOT_SUPPORTED where no link reports one."""
    return [_worst(nvml, handle, field, links) for field in _QUALITY_FIELDS]


def _worst(nvml: Any, handle: Any, field: int, links: list[int]) -> float:
    found = list[float]()
    for value in read_fields(nvml, handle, [(field, link) for link in links]):
        try:
            found.append(exponent_of(int(number_of(nvml, value))))
        except nvml.NVMLError as error:
            if error.value not in UNSUPPORTED_CODES:
                raise
    if not found:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return min(found)


def exponent_of(packed: int) -> float:
    """Return the n of 10^-n, to a hundredth."""
    mantissa = packed >> _MANTISSA_AT & _MANTISSA
    return _NONE if not mantissa else round((packed & _EXPONENT) - math.log10(mantissa), 2)
