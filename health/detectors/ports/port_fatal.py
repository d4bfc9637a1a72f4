"""A rise of a port's counter that should never rise. Source: NVSentinel's NIC monitor."""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector
from health.detectors.ports import port_counters
from health.detectors.readings import rate_of
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "port_fatal"
ABOUT: Final = About("a port's counter rose that should never rise", "NVSentinel NIC monitor", Severity.DEGRADED)
_FATAL_COUNTERS: Final = (
    "link_downed",
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "rnr_nak_retry_err",
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    rises = {name: signal.values[name] for name in _FATAL_COUNTERS if signal.values.get(name, 0) > 0}
    symbols = rate_of(signal, "symbol_error", 3600.0)
    if symbols is not None and symbols > policy.detectors.port_fatal.symbol_errors_per_hour:
        rises["symbol_errors_per_hour"] = symbols
    return port_counters.risen(NAME, signal, Severity.DEGRADED, policy, rises)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.PORT_RATES,), ABOUT, Nature.RATE)
