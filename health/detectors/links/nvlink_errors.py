"""NVLinks whose counters rise.

Flit CRC errors (DCGM: 100 a second), rises minute after minute (NVRx: in more than 15 of 30 one-minute windows), and
any replay or recovery (DCGM warns; a fleet has many, so here it is stated and weighs nothing).
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import link_of, rate_of
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

CRC: Final = "nvlink_crc"
WINDOWS: Final = "nvlink_windows"
RISES: Final = "nvlink_rises"
CRC_ABOUT: Final = About("NVLink flit CRC errors, 100 a second or more", "DCGM", Severity.DEGRADED)
WINDOWS_ABOUT: Final = About("an NVLink's errors rose in more than 15 of 30 minutes", "NVRx", Severity.DEGRADED)
RISES_ABOUT: Final = About("NVLink replays or recoveries rose", "DCGM", Severity.INFO)


def judge_crc(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    per_s = rate_of(signal, "crc_errors", 1.0)
    if per_s is None or per_s < policy.detectors.nvlink_crc.errors_per_s:
        return NO_FINDINGS
    words = f"{per_s:.0f} NVLink CRC errors a second{_words_of(signal)}"
    key = f"{CRC}{link_of(signal)}"
    return (signal_finding(CRC, signal, key, Severity.DEGRADED, policy, words, values={"per_s": per_s}),)


def judge_windows(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    bad = signal.values.get("bad_windows", 0)
    if not bad > policy.detectors.nvlink_windows.bad_windows_max:
        return NO_FINDINGS
    words = f"NVLink errors rose in {bad:.0f} of the last 30 minutes{_words_of(signal)}"
    key = f"{WINDOWS}{link_of(signal)}"
    return (signal_finding(WINDOWS, signal, key, Severity.DEGRADED, policy, words, values={"windows": bad}),)


def judge_rises(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    rises = {name: signal.values[name] for name in ("replays", "recoveries") if signal.values.get(name, 0) > 0}
    if not rises:
        return NO_FINDINGS
    told = ", ".join(f"{rise:.0f} NVLink {name}" for name, rise in rises.items())
    key = f"{RISES}{link_of(signal)}"
    return (signal_finding(RISES, signal, key, Severity.INFO, policy, f"{told}{_words_of(signal)}", values=rises),)


def _words_of(signal: GpuSignal) -> str:
    link = signal.values.get("link")
    return "" if link is None else f" on link {link:.0f}"


CRC_DETECTOR: Final = SignalDetector(CRC, 1, judge_crc, (EventKind.GPU_RATES,), CRC_ABOUT, Nature.RATE)
WINDOWS_DETECTOR: Final = SignalDetector(WINDOWS, 1, judge_windows, (EventKind.GPU_RATES,), WINDOWS_ABOUT, Nature.RATE)
RISES_DETECTOR: Final = SignalDetector(RISES, 1, judge_rises, (EventKind.GPU_RATES,), RISES_ABOUT, Nature.RATE)
