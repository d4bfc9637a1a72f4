"""Uncorrected ECC errors, by the rise of their counters. Source: DCGM and NVIDIA's memory error guide: any is a fault.

Volatile counters restart when the driver is loaded, aggregate ones with another board: a fall is no finding. On first
sight of a GPU, a volatile counter has risen since its driver was loaded (DCGM fails it); the errors in its board's life
are ``ecc_history``'s.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading, SampleDetector
from muster.domain.evidence.findings import Severity
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy

NAME: Final = "ecc_uncorrected"
VOLATILE: Final = INDEX["ecc_uncorrected_volatile"]
AGGREGATE: Final = INDEX["ecc_uncorrected_aggregate"]


def judge(reading: Reading, policy: HealthPolicy) -> Findings:
    """Return the finding of the larger rise, since one error raises both counters.

    It condemns: a program may have read wrong data.
    """
    previous, now = reading.previous, reading.sample.values
    if previous is None or is_first_sight(reading):
        rise, reads, when = now[VOLATILE] or 0.0, VOLATILE, " since its driver was loaded, at first sight"
    else:
        before, when = previous.values, ""
        if now[VOLATILE] == before[VOLATILE] and now[AGGREGATE] == before[AGGREGATE]:
            return NO_FINDINGS
        rise, reads = max((rise_of(before[at], now[at]), at) for at in (VOLATILE, AGGREGATE))
    if rise <= 0:
        return NO_FINDINGS
    words = f"{rise:.0f} uncorrected ECC error{'s' if rise > 1 else ''}{when}"
    return (
        reading.finding(
            NAME,
            NAME,
            Severity.CONDEMNING,
            policy,
            words,
            reads=reads,
            threatens_correctness=True,
            values={"errors": rise},
        ),
    )


def is_first_sight(reading: Reading) -> bool:
    """Return whether the counters' former values are unknown. A restart of agent or server forgets none of them."""
    previous = reading.previous
    return previous is None or (previous.values[VOLATILE] is None and previous.values[AGGREGATE] is None)


def rise_of(before: float | None, now: float | None) -> float:
    """Return how far a counter rose; 0 where it fell, or where either end is unknown."""
    return 0.0 if before is None or now is None else max(0.0, now - before)


ABOUT: Final = About(
    "uncorrected ECC errors rose, or were there at first sight, since the driver was loaded",
    "DCGM; NVIDIA GPU memory error guide",
    Severity.CONDEMNING,
)
DETECTOR: Final = SampleDetector(NAME, 1, judge, is_standing=False, about=ABOUT)
