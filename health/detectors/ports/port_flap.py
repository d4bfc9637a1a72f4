"""A port that was down for a while and is back. ``port_flaps`` counts such findings. Source: gpud (25 s)."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import PORT_ACTIVE, name_in
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy

NAME: Final = "port_flap"
ABOUT: Final = About("a port was down for 25 s and came back; `port_flaps` counts such findings", "gpud", Severity.INFO)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    was_down_s, port = signal.values.get("was_down_s", 0), name_in(signal)
    if signal.values.get("state") != PORT_ACTIVE or was_down_s < policy.detectors.port_flap.least_s:
        return NO_FINDINGS
    words = f"port {port} was down for {was_down_s:.0f} s"
    values = {"was_down_s": was_down_s}
    return (signal_finding(NAME, signal, f"{NAME}:{port}", Severity.INFO, policy, words, values=values),)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.PORT_STATE,), ABOUT)
