"""Fault precedence: which source decides about a fault where the driver's request is milder than the catalogue's row.

The order is NVML's recovery action, the text of an XID 154, the catalogue (``xid.catalogue.action_of``). A worse
request needs no rule: it is a fault of its own. A milder one removes the XID's weight, so that the request weighs in
its place, and only where that is safe:

- it was first stated at the time of the XID or after it, within the window in which the two are one fault. An earlier
  request that did not change is not about this fault;
- it asks for a drain. A driver that has noticed no fault states "None", and an unknown number means nothing;
- the XID asks for a reset or reboot, threatens no result, shows in no reading, and is of no link, whose own text states
  more. A driver never asks for manual work on the hardware.

Source: NVIDIA's XID catalogue (154); NVML field 230.
"""

from collections.abc import Iterable

from health.detectors.gpu import recovery_action, xid
from health.evidence.same_fault import requested_action_in, shows_as
from health.evidence.state import CODE, counts
from health.evidence.suppression import suppressed
from health.xid.catalogue import action_of, entry_of
from health.xid.reading import RECOVERY_ACTION_CHANGED
from health.xid.recovery import OF_THE_DRIVER, SEVERITY_OF
from muster.domain.evidence.findings import Evidence, Severity, Source, Suppression, Trust
from muster.domain.policy.health import HealthPolicy


def overruled_by(newest: Evidence, known: Iterable[Evidence], policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return the evidence of ``known`` whose weight the driver's milder request removes.

    ``known``: of one GPU, ``newest`` included. ``newest``: the evidence that opened now, the request or the XID: their
    order of arrival makes no difference.
    """
    place = [each for each in known if each.gpu_uuid is not None and each.gpu_uuid == newest.gpu_uuid]
    words = [newest] if requested_action_in(newest.fault_key) is not None else []
    words += [each for each in place if requested_action_in(each.fault_key) is not None and each.id != newest.id]
    found = list[Evidence]()
    for fault in place:
        pairs = [word for word in words if newest.id in {fault.id, word.id} and _decides(word, fault, policy)]
        if pairs:
            is_by_nvml = any(_is_nvml(word) for word in pairs)
            why = Suppression.OVERRULED_BY_NVML if is_by_nvml else Suppression.OVERRULED_BY_154
            found.append(suppressed(fault, why))
    return tuple(found)


def _decides(word: Evidence, fault: Evidence, policy: HealthPolicy) -> bool:
    if not (_may_be_overruled(fault) and counts(word) and word.trust is Trust.MEASURED):
        return False
    if requested_action_in(fault.fault_key) is not None and not _outranks(word, fault):
        return False
    asked = requested_action_in(word.fault_key)
    code = int(fault.values.get(CODE, RECOVERY_ACTION_CHANGED))
    decided = action_of(code, nvml=asked) if _is_nvml(word) else action_of(code, xid_154=asked)
    is_of_it = 0 <= word.onset_ms - fault.last_seen_ms <= int(_window_s(word, policy) * 1000)
    return is_of_it and decided is asked and SEVERITY_OF[decided] < fault.severity


def _may_be_overruled(fault: Evidence) -> bool:
    """Return whether it is an XID that the catalogue or the log alone condemns, and no reading."""
    if fault.detector != xid.NAME or fault.severity is not Severity.CONDEMNING or fault.threatens_correctness:
        return False
    if not counts(fault) or fault.trust is not Trust.MEASURED or Suppression.WARM_UP in fault.suppressed_by:
        return False
    asked = requested_action_in(fault.fault_key)
    if asked is not None:
        return asked in OF_THE_DRIVER
    code = int(fault.values.get(CODE, RECOVERY_ACTION_CHANGED))
    is_shown = shows_as(fault.fault_key) != fault.fault_key
    return entry_of(code).action in OF_THE_DRIVER and not is_shown and not xid.is_of_links(fault.values)


def _window_s(word: Evidence, policy: HealthPolicy) -> float:
    """Return how long after the fault the request may be stated.

    A sample is later than the log, an exporter's reading later still.
    """
    if not _is_nvml(word):
        return policy.evidence.coalescing_s
    return policy.evidence.dcgm_window_s if word.sources == (Source.DCGM,) else policy.evidence.counter_window_s


def _is_nvml(word: Evidence) -> bool:
    return word.detector == recovery_action.NAME


def _outranks(word: Evidence, reported: Evidence) -> bool:
    """Return whether NVML's ``word`` has precedence over the log's, which NVML has not confirmed."""
    return _is_nvml(word) and Source.NVML not in reported.sources
