"""GPUs of one host that should read each other's memory, and cannot. Source: gpud: any pair that is not OK.

NVML reports it pair by pair. One faulty GPU is in all pairs that are not OK, so the fewest GPUs that explain all pairs
are to blame (``blamed``), and no other GPU has a finding. It is expected only of GPUs with NVLinks: on others the
host's PCIe decides. A GPU that the fabric has not registered yet cannot read either, so the fault weighs once it has
outlasted ``health.warm_up.outlast_s``.
"""

from collections.abc import Mapping
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "p2p"
ABOUT: Final = About("a GPU cannot read the memory of other GPUs of its host", "gpud", Severity.DEGRADED)


def blamed(not_ok: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """Return for each slot how many of the pairs that are not OK it is blamed for; 0 for most.

    ``not_ok``: slot → the other slots. The slot in most pairs is blamed first, then the same for the remaining pairs;
    among equals the lower one.
    """
    left = {slot: set(others) for slot, others in not_ok.items()}
    found = dict.fromkeys(not_ok, 0)
    while any(left.values()):
        worst = min(left, key=lambda slot: (-len(left[slot]), slot))
        found[worst] = len(left[worst])
        for other in left[worst]:
            left[other].discard(worst)
        left[worst] = set()
    return found


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    pairs, links = signal.values.get("p2p_blamed", 0), signal.values.get("nvlink_links", 0)
    if not (pairs > 0 and links > 0):
        return NO_FINDINGS
    peers, bits = signal.values.get("p2p_peers"), int(signal.values.get("p2p_not_ok_bits", 0))
    slots = ", ".join(str(slot) for slot in range(bits.bit_length()) if bits >> slot & 1)
    num = signal.values.get("p2p_not_ok", pairs)
    of = "" if peers is None else f" of {peers:.0f}"
    where = f", in slots {slots}" if slots else ""
    words = f"it cannot read the memory of {num:.0f}{of} other GPUs{where}"
    values = {"not_ok": num, "blamed": pairs}
    pending = outlasting(signal, policy.warm_up.outlast_s)
    return (signal_finding(NAME, signal, NAME, Severity.DEGRADED, policy, words, values=values, pending=pending),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "p2p_blamed") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
