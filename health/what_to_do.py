"""What a fault asks for, by whose word: NVML's recovery action, then an XID 154's text, then the error's own words,
then the catalogue (``health.authority`` says when a milder word takes weight away; here it is only named).

A reading for which none of them has a word asks for nothing that we know.
"""

from collections.abc import Iterable
from typing import Final

from health.detectors import recovery_action, xid
from health.evidence import counts
from health.same_fault import asked_in, remedies_of
from health.xid.catalogue import action_of
from health.xid.reading import read_xid
from health.xid.recovery import Action
from muster.domain.evidence import Evidence, GpuSignal

_SAID_NOTHING: Final = frozenset({Action.NONE, Action.MONITOR})


def action_for(evidence: Evidence, of_place: Iterable[Evidence], words: Iterable[GpuSignal] = ()) -> Action | None:
    """``of_place``: the evidence of its GPU, or of its node. ``words``: the XIDs that were told there, with their text.

    None: nobody has a word for it.
    """
    asked = asked_in(evidence.fault_key)
    if asked is not None:
        return asked
    known = tuple(of_place) if evidence.gpu_uuid is not None else ()
    nvml, by_154 = _told(known, is_nvml=True), _told(known, is_nvml=False)
    code = evidence.values.get(xid.CODE)
    if code is not None:
        own = _in_words(int(code), words)
        return action_of(int(code), nvml=nvml, xid_154=by_154 or own)
    if nvml is not None or by_154 is not None:
        return nvml or by_154
    remedies = {Action(each) for each in remedies_of(evidence.fault_key)}
    return remedies.pop() if len(remedies) == 1 else None


def _told(known: Iterable[Evidence], *, is_nvml: bool) -> Action | None:
    """The newest that the driver asks for and means: "none" and numbers that we do not know say nothing."""
    found = [
        (each.last_seen_ms, asked)
        for each in known
        if (each.detector == recovery_action.NAME) is is_nvml and counts(each)
        if (asked := asked_in(each.fault_key)) is not None and asked not in _SAID_NOTHING
    ]
    return max(found)[1] if found else None


def _in_words(code: int, words: Iterable[GpuSignal]) -> Action | None:
    """Of an NVLink's error, whose registers or unit say what is to be done."""
    read = (read_xid(code, signal.text) for signal in words if signal.code == code)
    return next((each.link.action for each in read if each.link is not None), None)
