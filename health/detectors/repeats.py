"""The same once more: rules over evidence that is there, asked whenever evidence is new or stated again.

Source: NVSentinel's analyzer for windows and counts; NVIDIA's catalogue for what a repetition asks for. What persons
dismissed, what is suspended and what was set aside does not count, but what the driver's milder word overruled does; a
repair does not begin the count anew. What a program brings about at will (XID 13 and 31) is told for a diagnosis and
weighs nothing: one tenant's job that is placed on the same GPU again would take it out.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from health.detectors import cleanup, corrected_remaps, gpu_lost, nic_driver, ports, retired_pages, xid
from health.detectors.detector import NO_FINDINGS, About, Findings, counts_for_ms
from health.detectors.modes import in_mode
from health.weightless import OVERRULED, SHADOW, set_aside_by
from health.xid.kernel_log import OFF_THE_BUS
from health.xid.nvlink import REGISTER_BITS
from health.xid.recovery import SEVERITY_OF
from muster.domain.detector_policy import RepeatPolicy
from muster.domain.evidence import Evidence, Finding, Severity, Source, Trust
from muster.domain.health_policy import HealthPolicy
from muster.domain.ids import NodeId

TIMES: Final = "times"
"""Key in ``values``: how often a rate was told too high, or a fault came."""
BURST_MS: Final = 15_000
"""What comes closer together is one (NVSentinel: 15 s for XID 13)."""


COPY_ENGINES: Final = frozenset({*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)})
"""XIDs of copy engines (NVIDIA's catalogue; 126 to 135 of Blackwell)."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rule looks at. ``newest``: what was noted now; ``known``: all evidence of its GPU, or of its node."""

    newest: Evidence
    known: Sequence[Evidence]
    elsewhere: Callable[[], Iterable[Evidence]]
    policy: HealthPolicy

    def alike(self, window_s: float, is_alike: Callable[[Evidence], bool]) -> list[Evidence]:
        """Those within the window before the newest, the newest among them, oldest first."""
        since_ms = self.newest.last_seen_ms - int(window_s * 1000)
        found = (each for each in self.known if since_ms < each.last_seen_ms <= self.newest.last_seen_ms)
        return sorted(filter(is_alike, found), key=lambda each: (each.last_seen_ms, each.id))

    def found(
        self, rule: str, severity: Severity, words: str, *, key: str = "", values: Mapping[str, float] | None = None
    ) -> Finding:
        """A finding of ``rule`` about what the newest is about, with its source and trust."""
        newest = self.newest
        return Finding(
            detector=rule,
            version=VERSION,
            fault_key=f"{rule}:{key}" if key else rule,
            gpu_uuid=newest.gpu_uuid,
            node_id=newest.node_id,
            severity=severity,
            trust=newest.trust,
            source=newest.sources[-1],
            onset_ms=newest.last_seen_ms,
            counts_for_ms=counts_for_ms(severity, self.policy),
            summary=words,
            values=values or {},
        )


@dataclass(frozen=True, slots=True)
class Repeat:
    name: str
    judge: Callable[[Seen], Findings]
    about: About

    @property
    def version(self) -> int:
        return VERSION


VERSION: Final = 1
REPAIRS: Final = "repair_repeats"
REPAIRS_ABOUT: Final = About("5 repairs on one node in 7 days", "NVSentinel analyzer", Severity.DEGRADED)


def repeats_of(
    newest: Evidence,
    known: Iterable[Evidence],
    elsewhere: Callable[[], Iterable[Evidence]],
    policy: HealthPolicy,
) -> Findings:
    """What it means that ``newest`` came, after all that is ``known`` of its place.

    ``elsewhere``: gives evidence of the other GPUs of its node. A rule in shadow counts what it has found itself, so
    that it shows all that it would find; no other rule counts that.
    """
    own = newest.detector if SHADOW in newest.values else None
    if not _counts(newest, own) or not (newest.detector in _SOURCES or _code(newest) is not None):
        return NO_FINDINGS
    place = tuple(each for each in known if _counts(each, own))
    seen = Seen(newest, place, elsewhere, policy)
    return tuple(finding for rule in RULES if own in {None, rule.name} for finding in rule.judge(seen))


def _counts(evidence: Evidence, in_shadow: str | None = None) -> bool:
    """``in_shadow``: the rule that is asked, where it is in shadow."""
    why = set_aside_by(evidence.values) - OVERRULED
    if evidence.detector == in_shadow:
        why -= {SHADOW}
    return not (evidence.is_dismissed or evidence.is_suspended or why)


def _code(evidence: Evidence) -> int | None:
    """The XID, whoever spoke first. A GPU that is lost fell off the bus, also where the log is not read."""
    code = evidence.values.get(xid.CODE)
    if code is None:
        return OFF_THE_BUS if evidence.detector == gpu_lost.NAME else None
    return int(code)


def _is_of(codes: Iterable[int]) -> Callable[[Evidence], bool]:
    wanted = frozenset(codes)
    return lambda evidence: _code(evidence) in wanted


def num_bursts(evidence: Sequence[Evidence], policy: HealthPolicy, gap_ms: int = BURST_MS) -> int:
    """How often it came: what follows within the gap, or for hours after an XID that sticks, is the same time."""
    rule = policy.detectors.fatal_repeats
    bursts, last_ms, last_of = 0, -(1 << 60), dict[int | None, int]()
    for each in evidence:
        code = _code(each)
        sticky_ms = int(rule.sticky_gap_s * 1000) if code in rule.sticky else gap_ms
        is_same = each.onset_ms - last_ms <= gap_ms or each.onset_ms - last_of.get(code, -(1 << 60)) <= sticky_ms
        bursts += not is_same
        last_ms = last_of[code] = max(each.onset_ms, each.last_seen_ms)
    return bursts


def _comes_again(seen: Seen, rule: RepeatPolicy, codes: Iterable[int]) -> int:
    """How often an XID of ``codes`` came, the newest being one of them; 0 where that is too seldom."""
    of = _is_of(codes)
    if not of(seen.newest):
        return 0
    times = num_bursts(seen.alike(rule.window_s, of), seen.policy)
    return times if times >= rule.times else 0


def _mmu_faults(seen: Seen) -> Findings:
    """On several GPUs of a node it is the program. On one it may be: no job that crashes on and on moves a GPU."""
    return _on_one_gpu_alone(seen, "mmu_fault_repeats", (31,), "XID 31")


def _copy_engines(seen: Seen) -> Findings:
    """As with MMU faults: NVIDIA asks for the program to be started anew, and for a diagnosis where that is in vain."""
    return _on_one_gpu_alone(seen, "copy_engine_repeats", COPY_ENGINES, "an XID of a copy engine")


def _on_one_gpu_alone(seen: Seen, name: str, codes: Collection[int], what: str) -> Findings:
    rule: RepeatPolicy = getattr(seen.policy.detectors, name)
    times = _comes_again(seen, rule, codes)
    since_ms = seen.newest.last_seen_ms - int(rule.window_s * 1000)
    if not times or any(_code(each) in codes and each.last_seen_ms > since_ms for each in seen.elsewhere()):
        return NO_FINDINGS
    words = f"{what} {times} times on this GPU, and on no other of its node: to be diagnosed"
    return (seen.found(name, Severity.INFO, words, values={TIMES: float(times)}),)


def _sm_exceptions(seen: Seen) -> Findings:
    rule, place = seen.policy.detectors.sm_exception_repeats, _sm_place(seen.newest)
    if place is None or _code(seen.newest) != 13:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, lambda each: _code(each) == 13 and _sm_place(each) == place)
    times = num_bursts(alike, seen.policy)
    if times < rule.times:
        return NO_FINDINGS
    words = f"XID 13 {times} times in GPC {place[0]:.0f}, TPC {place[1]:.0f}: to be diagnosed"
    return (seen.found("sm_exception_repeats", Severity.INFO, words, values={TIMES: float(times)}),)


def _sm_place(evidence: Evidence) -> tuple[float, float] | None:
    gpc, tpc = evidence.values.get("gpc"), evidence.values.get("tpc")
    return None if gpc is None or tpc is None else (gpc, tpc)


def _link_bits(seen: Seen) -> Findings:
    """Each bit of an XID 74 that counts by its repetitions, on one link."""
    newest, rule = seen.newest, seen.policy.detectors.link_bit_repeats
    link, found = newest.values.get("link"), list[Finding]()
    for (register, bit), known in REGISTER_BITS.items():
        key = xid.bit_key(register, bit)
        if known.repeated is None or key not in newest.values:
            continue
        alike = seen.alike(rule.window_s, lambda each, key=key: key in each.values and each.values.get("link") == link)  # type: ignore[misc]  # bound at once
        if len(alike) >= rule.times:
            words = f"XID 74, register {register} bit {bit} ({known.meaning}) {len(alike)} times on one link"
            where = f"{'' if link is None else f'link{link:.0f}:'}{register}.{bit}"
            found.append(seen.found("link_bit_repeats", SEVERITY_OF[known.repeated], words, key=where))
    return tuple(found)


def _gsp_errors(seen: Seen) -> Findings:
    """The second says that a reset did not last, the third that the board is to be held."""
    rule = seen.policy.detectors.gsp_repeats
    of = _is_of((119, 120))
    if not of(seen.newest):
        return NO_FINDINGS
    times = num_bursts(seen.alike(rule.window_s, of), seen.policy)
    if times >= rule.times:
        words = f"XID 119 or 120 {times} times: hold the board, resets and reboots do not last"
        return (seen.found("gsp_repeats", Severity.CONDEMNING, words, key="hold"),)
    if times == rule.times - 1 and times > 1:
        words = f"XID 119 or 120 {times} times: reboot the node, a reset did not last"
        return (seen.found("gsp_repeats", Severity.WARNING, words, key="reboot"),)
    return NO_FINDINGS


def _held(name: str, codes: tuple[int, ...], what: str) -> Callable[[Seen], Findings]:
    def judge(seen: Seen) -> Findings:
        times = _comes_again(seen, getattr(seen.policy.detectors, name), codes)
        if not times:
            return NO_FINDINGS
        words = f"{what} {times} times: hold the board, it comes back"
        return (seen.found(name, Severity.CONDEMNING, words, key="hold"),)

    return judge


def _fatal(seen: Seen) -> Findings:
    rule = seen.policy.detectors.fatal_repeats
    if _code(seen.newest) is None or seen.newest.severity is not Severity.CONDEMNING:
        return NO_FINDINGS
    fatal = seen.alike(rule.window_s, lambda each: _code(each) is not None and each.severity is Severity.CONDEMNING)
    times = num_bursts(fatal, seen.policy, int(rule.gap_s * 1000))
    if times < rule.times:
        return NO_FINDINGS
    words = f"{times} bursts of fatal XIDs in {rule.window_s / 3600:g} h: hold the board"
    return (seen.found("fatal_repeats", Severity.CONDEMNING, words, key="hold"),)


def _retired_pages(seen: Seen) -> Findings:
    """Of the double-bit pages that ``retired_pages`` counted: more than one within its week."""
    newest, rule = seen.newest, seen.policy.detectors.retired_pages
    pages = newest.values.get(retired_pages.PAGES)
    if pages is None or pages <= rule.double_bit_pages:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, lambda each: retired_pages.PAGES in each.values)
    rise = pages - min(each.values[retired_pages.PAGES] for each in alike)
    if rise <= 1:
        return NO_FINDINGS
    words = f"{pages:.0f} pages retired after double-bit errors, {rise:.0f} of them in a week: the board is used up"
    return (seen.found(retired_pages.NAME, Severity.CONDEMNING, words, key="week"),)


def _corrected_remaps(seen: Seen) -> Findings:
    rule = seen.policy.detectors.corrected_remaps
    if seen.newest.detector != corrected_remaps.NAME or corrected_remaps.ROWS not in seen.newest.values:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, lambda each: each.detector == corrected_remaps.NAME)
    rows = sum(each.values.get(corrected_remaps.ROWS, 0.0) for each in alike)
    if rows <= rule.rows_max:
        return NO_FINDINGS
    words = f"{rows:.0f} rows remapped after correctable errors within {rule.window_s / 86_400:g} days"
    return (seen.found(corrected_remaps.NAME, Severity.DEGRADED, words, key=corrected_remaps.RATE),)


def _port_flaps(seen: Seen) -> Findings:
    rule = seen.policy.detectors.port_flaps
    if seen.newest.detector != ports.FLAP:
        return NO_FINDINGS
    times = len(seen.alike(rule.window_s, lambda each: each.fault_key == seen.newest.fault_key))
    return _of_port(seen, "port_flaps", times, rule, "flapped")


def _nic(seen: Seen) -> Findings:
    rule = seen.policy.detectors.nic_repeats
    if seen.newest.detector != ports.DEGRADED:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, lambda each: each.fault_key == seen.newest.fault_key)
    times = int(sum(each.values.get(TIMES, 1.0) for each in alike))
    return _of_port(seen, "nic_repeats", times, rule, "had a bad link")


def _nic_driver(seen: Seen) -> Findings:
    """Of one card: what three of them say once each is no repetition."""
    rule = seen.policy.detectors.nic_driver_repeats
    if seen.newest.detector != nic_driver.NAME:
        return NO_FINDINGS
    card = nic_driver.card_of(seen.newest.fault_key)
    alike = seen.alike(
        rule.window_s, lambda each: each.detector == nic_driver.NAME and nic_driver.card_of(each.fault_key) == card
    )
    times = len(alike)
    if times < rule.times:
        return NO_FINDINGS
    words = f"the driver of network card {card} told {times} faults in {rule.window_s / 3600:g} h"
    return (seen.found("nic_driver_repeats", Severity.DEGRADED, words, values={TIMES: float(times)}),)


def _of_port(seen: Seen, name: str, times: int, rule: RepeatPolicy, what: str) -> Findings:
    if times < rule.times:
        return NO_FINDINGS
    port = seen.newest.fault_key.partition(":")[2]
    words = f"port {port} {what} {times} times"
    return (seen.found(name, Severity.DEGRADED, words, key=port, values={TIMES: float(times)}),)


def repairs_of(node_id: NodeId, began_ms: Iterable[int], policy: HealthPolicy, now_ms: int) -> Findings:
    """What it means that a repair begins on a node: of any of its GPUs, the new one among ``began_ms``."""
    rule = policy.detectors.repair_repeats
    times = sum(now_ms - int(rule.window_s * 1000) < at_ms <= now_ms for at_ms in began_ms)
    if times < rule.times:
        return NO_FINDINGS
    words = f"{times} repairs on this node in {rule.window_s / 86_400:g} days: the host may be what is broken"
    finding = Finding(
        detector=REPAIRS,
        version=VERSION,
        fault_key=REPAIRS,
        gpu_uuid=None,
        node_id=node_id,
        severity=Severity.DEGRADED,
        trust=Trust.MEASURED,
        source=Source.AGENT,
        onset_ms=now_ms,
        counts_for_ms=counts_for_ms(Severity.DEGRADED, policy),
        summary=words,
        values={TIMES: float(times)},
    )
    return in_mode((finding,), policy)


_NVIDIA: Final = "NVIDIA XID catalogue"
_NVSENTINEL: Final = "NVSentinel analyzer"
RULES: Final = (
    Repeat("mmu_fault_repeats", _mmu_faults, About("XID 31 again on one GPU alone", _NVSENTINEL, Severity.INFO)),
    Repeat("sm_exception_repeats", _sm_exceptions, About("XID 13 again in one TPC", _NVSENTINEL, Severity.INFO)),
    Repeat(
        "copy_engine_repeats",
        _copy_engines,
        About("an XID of a copy engine again on one GPU alone", _NVIDIA, Severity.INFO),
    ),
    Repeat("link_bit_repeats", _link_bits, About("a bit of XID 74 again on one link", _NVIDIA, Severity.CONDEMNING)),
    Repeat(
        "gsp_repeats", _gsp_errors, About("XID 119 or 120 again (warning), and again", _NVIDIA, Severity.CONDEMNING)
    ),
    Repeat(
        "bus_repeats",
        _held("bus_repeats", (OFF_THE_BUS,), "off the bus (XID 79)"),
        About("XID 79, or a lost GPU, again", _NVIDIA, Severity.CONDEMNING),
    ),
    Repeat(
        "reset_repeats",
        _held("reset_repeats", (136, 143), "XID 136 or 143"),
        About("XID 136 or 143 again", _NVIDIA, Severity.CONDEMNING),
    ),
    Repeat(cleanup.NAME, cleanup.judge, cleanup.ABOUT),
    Repeat("fatal_repeats", _fatal, About("5 bursts of fatal XIDs in a day", _NVSENTINEL, Severity.CONDEMNING)),
    Repeat(retired_pages.NAME, _retired_pages, retired_pages.ABOUT),
    Repeat(corrected_remaps.NAME, _corrected_remaps, corrected_remaps.ABOUT),
    Repeat("port_flaps", _port_flaps, About("a port flaps 3 times", "gpud", Severity.DEGRADED)),
    Repeat(
        "nic_driver_repeats",
        _nic_driver,
        About("faults of a node's network cards, by their driver, 3 times in an hour", _NVSENTINEL, Severity.DEGRADED),
    ),
    Repeat("nic_repeats", _nic, About("a bad link 3 times in an hour", _NVSENTINEL, Severity.DEGRADED)),
)
_SOURCES: Final = frozenset({ports.FLAP, ports.DEGRADED, retired_pages.NAME, corrected_remaps.NAME, nic_driver.NAME})
HOLDS: Final = frozenset({"gsp_repeats:hold", "bus_repeats:hold", "reset_repeats:hold", "fatal_repeats:hold"})
"""Fault keys that say: no repair lasts."""
