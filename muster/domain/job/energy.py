"""Computes the energy used between two moments, from the readings of a counter.

NVML's total energy counter (``nvmlDeviceGetTotalEnergyConsumption``) counts from the load of the driver, so it starts
again at 0 when the driver is reloaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

J_PER_KWH: Final = 3.6e6
Point = tuple[int, float]
"""A reading: (ms, the joules counted until then)."""


@dataclass(frozen=True, slots=True)
class Metered:
    """The energy that a counter measured within a span.

    ``seconds``: the part of the span between two readings; nothing is known before the first and after the last one.
    ``is_partial``: the counter was reset, and its count since the reading before the reset is lost.
    """

    energy_j: float
    seconds: float
    is_partial: bool = False


def metered(points: Sequence[Point], since_ms: int, until_ms: int) -> Metered | None:
    """Return the energy between ``since_ms`` and ``until_ms``, or None where no two readings enclose a part of them.

    ``points`` are in the order of time, and some may be outside the span. Energy is taken to grow evenly between two
    readings.
    """
    energy_j, covered_ms, is_partial = 0.0, 0.0, False
    for (began_ms, before), (ended_ms, after) in pairwise(points):
        share_ms = min(ended_ms, until_ms) - max(began_ms, since_ms)
        if share_ms <= 0 or ended_ms <= began_ms:
            continue
        is_anew = after < before
        is_partial |= is_anew
        energy_j += (after if is_anew else after - before) * share_ms / (ended_ms - began_ms)
        covered_ms += share_ms
    return Metered(energy_j, covered_ms / 1000, is_partial) if covered_ms > 0 else None


def energy_in_words(found: Mapping[str, Any]) -> str:
    """Return the energy of an attempt as text. The fields are named as in the API's document.

    An unknown value is stated as unknown, never as zero.
    """
    if found["energy_j"] is None:
        unsupported = found["gpus_unsupported"] and found["gpus_unsupported"] == found["gpus"]
        return "energy: unsupported by its GPUs" if unsupported else f"energy: not known: {found['why']}"
    parts = [f"energy: {found['energy_kwh']:.4g} kWh"]
    if found["j_per_step"] is not None:
        parts.append(f"{found['j_per_step']:.4g} J a step")
    if found["gpus_metered"] < found["gpus"]:
        parts.append(f"of {found['gpus_metered']} of {found['gpus']} GPUs")
    return ", ".join(parts) + (", of simulated GPUs" if found["is_simulated"] else "")
