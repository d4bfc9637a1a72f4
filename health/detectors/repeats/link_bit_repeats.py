"""Each bit of an XID 74 that counts by its repetitions, on one link. Source: NVIDIA's guide to XID 74."""

from typing import Final

from health.detectors.detector import Findings
from health.detectors.gpu import xid
from health.detectors.repeats.repeat import Seen
from health.evidence.index import of_code
from health.xid.nvlink import NVLINK_ERROR, REGISTER_BITS
from health.xid.recovery import SEVERITY_OF
from muster.domain.evidence.findings import Evidence, Finding

NAME: Final = "link_bit_repeats"


def judge(seen: Seen) -> Findings:
    newest, rule = seen.newest, seen.policy.detectors.link_bit_repeats
    link, found = newest.values.get(xid.LINK), list[Finding]()
    told = [key for key in newest.values if xid.is_bit_key(key)]
    if not told:
        return ()

    def is_of_link(each: Evidence) -> bool:
        return each.values.get(xid.LINK) == link

    of_link = seen.alike(rule.window_s, of_code(NVLINK_ERROR), is_of_link)
    for (register, bit), known in REGISTER_BITS.items():
        key = xid.bit_key(register, bit)
        if known.repeated is None or key not in told:
            continue
        times = sum(key in each.values for each in of_link)
        if times >= (rule.times if known.takes_more else rule.others_times):
            words = f"XID 74, register {register} bit {bit} ({known.meaning}) {times} times on one link"
            where = f"{'' if link is None else f'link{link:.0f}:'}{register}.{bit}"
            found.append(seen.found(NAME, SEVERITY_OF[known.repeated], words, key=where))
    return tuple(found)
