"""Heat in a sample: hotter than GPU_MAX or MEM_MAX, or past the margin to slowing down. A rule each.

Sources: gpud for the two maxima; NVSentinel (ADR-042) for the margin: under -2 °C on H100, GB200 and L40, -3 on B200.
The quick check uses the policy's strictest limits of any model (``is_hot``). A GPU's maxima are its own where it
reports them, else the policy's for its model; none is under the policy's strictest. Readings that no GPU has (-40, 999,
NaN) are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading, SampleDetector
from muster.domain.evidence.findings import Finding, Severity
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy

TEMPERATURE: Final = "temperature"
MARGIN: Final = "thermal_margin"
GPU_MAX: Final = "temperature:gpu"
MEMORY_MAX: Final = "temperature:memory"
CORE_READING: Final = INDEX["temperature_c"]
MEMORY_READING: Final = INDEX["memory_temperature_c"]
MARGIN_READING: Final = INDEX["temperature_margin_c"]
HOTTEST_C: Final = 150.0
LEAST_C: Final = -30.0
LEAST_MARGIN_C: Final = -30.0
"""No silicon is hotter, or further past its limit: such a reading is of a broken sensor."""
TEMPERATURE_ABOUT: Final = About(
    "core hotter than GPU_MAX, or HBM hotter than MEM_MAX: the maxima that the GPU reports, else the policy's",
    "NVML; gpud",
    Severity.DEGRADED,
)
MARGIN_ABOUT: Final = About("past the margin to slowing down, by model", "NVSentinel ADR-042", Severity.DEGRADED)


@dataclass(frozen=True, slots=True)
class Limits:
    """The strictest limits of any model in °C; a reading must be between them and a sensor's range."""

    gpu_max: float
    memory_max: float
    margin: float


def strictest(policy: HealthPolicy) -> Limits:
    heat, margin = policy.detectors.temperature, policy.detectors.thermal_margin
    return Limits(heat.strictest_gpu_c, heat.strictest_memory_c, margin.strictest_c)


def is_hot(values: Sequence[float | None], limits: Limits) -> bool:
    """Return whether a sample may have a finding of heat for any model.

    It takes a few comparisons, since it is called for every sample.
    """
    core, memory, margin = values[CORE_READING], values[MEMORY_READING], values[MARGIN_READING]
    return (
        (core is not None and limits.gpu_max < core < HOTTEST_C)
        or (memory is not None and limits.memory_max < memory < HOTTEST_C)
        or (margin is not None and LEAST_MARGIN_C < margin < limits.margin)
    )


def judge_temperature(reading: Reading, policy: HealthPolicy) -> Findings:
    values, heat = reading.sample.values, policy.detectors.temperature
    core_c, memory_c = values[CORE_READING] or 0.0, values[MEMORY_READING] or 0.0
    if not (core_c > heat.strictest_gpu_c or memory_c > heat.strictest_memory_c):
        return NO_FINDINGS
    found = list[Finding]()
    own, model = reading.own_heat, reading.model
    gpu_max_c = _own_or(own.gpu_max_c, limit_of(model, heat.gpu_max_c, heat.gpu_max_c_of), heat.strictest_gpu_c)
    memory_max_c = _own_or(
        own.memory_max_c, limit_of(model, heat.memory_max_c, heat.memory_max_c_of), heat.strictest_memory_c
    )
    for key, what, reads, hot_c, limit_c in (
        (GPU_MAX, "core", CORE_READING, core_c, gpu_max_c),
        (MEMORY_MAX, "HBM", MEMORY_READING, memory_c, memory_max_c),
    ):
        if limit_c < hot_c < HOTTEST_C:
            words = f"{what} at {hot_c:.0f} °C, {limit_c:g} °C at most"
            values_c = {"celsius": hot_c, "limit": limit_c}
            found.append(
                reading.finding(TEMPERATURE, key, Severity.DEGRADED, policy, words, reads=reads, values=values_c)
            )
    return tuple(found)


def judge_margin(reading: Reading, policy: HealthPolicy) -> Findings:
    left_c, rule = reading.sample.values[MARGIN_READING], policy.detectors.thermal_margin
    if left_c is None or not LEAST_MARGIN_C < left_c < rule.strictest_c:
        return NO_FINDINGS
    if left_c >= limit_of(reading.model, rule.least_c, rule.least_c_of):
        return NO_FINDINGS
    words = f"{-left_c:.0f} °C past the temperature at which it slows itself down"
    values = {"margin_c": left_c}
    return (reading.finding(MARGIN, MARGIN, Severity.DEGRADED, policy, words, reads=MARGIN_READING, values=values),)


def limit_of(model: str, default: float, by_model: Mapping[str, float]) -> float:
    """Return the limit of the longest key that is a part of the model's name: GB200 before B200."""
    fitting = [key for key in by_model if key and key.lower() in model.lower()]
    return by_model[max(fitting, key=len)] if fitting else default


def _own_or(own_c: float | None, policy_c: float, strictest_c: float) -> float:
    """Return the maximum in °C. An impossible own maximum is ignored; one under ``strictest_c`` counts as that."""
    if own_c is None or not 0 < own_c < HOTTEST_C:
        return policy_c
    return max(own_c, strictest_c)


def is_inconclusive(fault_key: str, values: Sequence[float | None]) -> bool:
    """Return whether the sample cannot show if this heat still stands: its reading is missing or impossible."""
    at = {GPU_MAX: CORE_READING, MEMORY_MAX: MEMORY_READING, MARGIN: MARGIN_READING}[fault_key]
    value = values[at]
    if value is None:
        return True
    return not (LEAST_MARGIN_C < value < HOTTEST_C) if fault_key == MARGIN else not (0 < value < HOTTEST_C)


TEMPERATURE_DETECTOR: Final = SampleDetector(
    TEMPERATURE, 1, judge_temperature, is_standing=True, about=TEMPERATURE_ABOUT
)
MARGIN_DETECTOR: Final = SampleDetector(MARGIN, 1, judge_margin, is_standing=True, about=MARGIN_ABOUT)
