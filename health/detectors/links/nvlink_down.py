"""NVLinks that are down, or up to nothing. Source: DCGM, Azure, gpud: any.

Links train when a host boots: of 288 healthy nodes 214 reported links that were not up (NVSentinel issue 1701). So the
fault is stated at once and weighs only once it has outlasted ``health.warm_up.outlast_s``.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.state_readings import words_in
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "nvlink_down"
TO_NOTHING: Final = "nvlink_to_nothing"
ABOUT: Final = About("NVLinks are down", "DCGM; Azure; gpud", Severity.DEGRADED)
TO_NOTHING_ABOUT: Final = About(
    "NVLinks are up, and the driver does not know their other end", "gpud", Severity.DEGRADED
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    return _judged(signal, NAME, ("nvlink_links_down", "nvlink_down_bits"), "down", policy)


def judge_to_nothing(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    readings = ("nvlink_links_to_nothing", "nvlink_to_nothing_bits")
    return _judged(signal, TO_NOTHING, readings, "up to nothing that the driver knows", policy)


def _judged(signal: GpuSignal, name: str, readings: tuple[str, str], what: str, policy: HealthPolicy) -> Findings:
    reading, bits_reading = readings
    links = signal.values.get(reading, 0)
    if not links > 0:
        return NO_FINDINGS
    of = signal.values.get("nvlink_links")
    bits = signal.values.get(bits_reading, 0)
    named = _named(int(bits), words_in(signal.text).get("nvlink_ends_down", "") if name == NAME else "")
    words = f"{links:.0f}{'' if of is None else f' of {of:.0f}'} NVLinks are {what}{named}"
    which = {"link_bits": bits} if bits else {}
    values = {"links": links, **which}
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return (signal_finding(name, signal, name, Severity.DEGRADED, policy, words, values=values, pending=pending),)


def _named(bits: int, ends: str) -> str:
    """Return the links as text, each with its other end where that is known: a cable's ticket needs both."""
    known = dict(each.partition("/")[::2] for each in ends.split("+"))
    numbers = [str(link) for link in range(bits.bit_length()) if bits >> link & 1]
    told = [
        f"{number} to {known[number].replace('/', ' ')}" if known.get(number, "unknown") != "unknown" else number
        for number in numbers
    ]
    return f": {', '.join(told)}" if told else ""


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "nvlink_links_down") else ()


def handles_nothing(signal: GpuSignal) -> tuple[str, ...]:
    return (TO_NOTHING,) if has(signal, "nvlink_links_to_nothing") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
TO_NOTHING_DETECTOR: Final = SignalDetector(
    TO_NOTHING, 1, judge_to_nothing, (EventKind.GPU_STATE,), TO_NOTHING_ABOUT, Nature.STATE, handles_nothing
)
