"""RDMA ports compared with the host's enrolment and past: one that is missing, fewer ports than before, or slower ones.

Source: gpud's InfiniBand check. gpud expects a number by the GPU's model (1 port at 200 Gb/s of an A100, 8 at 400 of an
H100 and later): right for DGX, wrong for every other host. Here a host is measured by its own past, and the policy of a
fleet may set a floor. The findings are about the node: it takes no new work while they last, and they weigh only after
``health.warm_up.outlast_s``.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has, name_in
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

COUNT: Final = "port_count"
RATE: Final = "port_rate"
MISSING: Final = "port_missing"
COUNT_ABOUT: Final = About("a host has fewer RDMA ports than it had", "gpud", Severity.DEGRADED)
RATE_ABOUT: Final = About("an RDMA port is up and slower than it was", "gpud", Severity.DEGRADED)
MISSING_ABOUT: Final = About("an RDMA port that the host enrolled with is not there", "gpud; Azure", Severity.DEGRADED)
_ACTIVE: Final = 4


def judge_count(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    expected, found = signal.values.get("expected_ports"), signal.values.get("found_ports")
    if expected is None or found is None:
        return NO_FINDINGS
    expected = max(expected, policy.detectors.port_count.ports_min)
    if found >= expected:
        return NO_FINDINGS
    words = f"the host has {found:.0f} RDMA ports, {expected:.0f} before or by the policy"
    values = {"expected_ports": expected, "found_ports": found}
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return (signal_finding(COUNT, signal, COUNT, Severity.DEGRADED, policy, words, values=values, pending=pending),)


def handles_count(signal: GpuSignal) -> tuple[str, ...]:
    return (COUNT,) if has(signal, "expected_ports", "found_ports") else ()


def judge_rate(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding, none for a port that is down: it has no rate, and ``port_down`` states that it is down."""
    port, rate = name_in(signal), signal.values.get("rate_gbps")
    if rate is None or "/" not in port or signal.values.get("state") != _ACTIVE:
        return NO_FINDINGS
    expected = max(signal.values.get("best_rate_gbps", 0.0), policy.detectors.port_rate.gbps_min)
    if rate >= expected:
        return NO_FINDINGS
    words = f"port {port} is up at {rate:g} Gb/s, {expected:g} before or by the policy"
    values = {"rate_gbps": rate, "expected_gbps": expected}
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return (
        signal_finding(
            RATE, signal, f"{RATE}:{port}", Severity.DEGRADED, policy, words, values=values, pending=pending
        ),
    )


def handles_rate(signal: GpuSignal) -> tuple[str, ...]:
    return (f"{RATE}:{name_in(signal)}",) if has(signal, "rate_gbps", "state") else ()


def judge_missing(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding where the agent reports the port as missing: the agent knows its host's enrolment.

    A port that is there and down is another fault.
    """
    port = name_in(signal)
    if "/" not in port or not signal.values.get("is_missing", 0) >= 1:
        return NO_FINDINGS
    words = f"port {port} of the enrolled inventory is not there"
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return (signal_finding(MISSING, signal, f"{MISSING}:{port}", Severity.DEGRADED, policy, words, pending=pending),)


def handles_missing(signal: GpuSignal) -> tuple[str, ...]:
    return (f"{MISSING}:{name_in(signal)}",) if has(signal, "is_missing") else ()


COUNT_DETECTOR: Final = SignalDetector(
    COUNT, 1, judge_count, (EventKind.HOST_STATE,), COUNT_ABOUT, Nature.STATE, handles_count
)
RATE_DETECTOR: Final = SignalDetector(
    RATE, 1, judge_rate, (EventKind.PORT_STATE,), RATE_ABOUT, Nature.STATE, handles_rate
)
MISSING_DETECTOR: Final = SignalDetector(
    MISSING, 1, judge_missing, (EventKind.PORT_STATE,), MISSING_ABOUT, Nature.STATE, handles_missing
)
