"""Inspections of GPUs as events: states, rises of counters, and their resets.

``GPU_STATE`` is for states, ``GPU_RATES`` for rises of a GPU's counters and its links', ``COUNTER_RESET`` for their
resets. Checks are read as well: only they show a GPU's PCIe link under load, and the fastest link in a window.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from agents.events.idle import IdleWindows
from agents.events.naming import Naming
from agents.events.rises import Rise, RiseTeller
from agents.events.states import Coarseness, StateTeller
from agents.probes.interface import GpuCheck, GpuInspection, ProbeEvent
from health.detectors.node.node_mismatch import differing
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import words_text
from muster.domain.gpu.metrics import value_of
from muster.domain.ids import GpuUuid

LOADED_PERCENT: Final = 50.0
"""The load of a check under load. A GPU busy for half of the time keeps its PCIe link up; an idle one lowers it, which
is no fault.
"""
LOADED_CHECKS: Final = 3
"""Number of successive checks under load, of which the best counts.

The utilisation is of an interval, the link's state of a moment."""
_PCIE: Final = ("pcie_replays", "pcie_correctable_errors")
_CORRECTED_ECC: Final = ("ecc_corrected_sram", "ecc_corrected_dram")
_NO_FAULT_OF_A_WINDOW: Final = frozenset({"symbol_errors"})
"""NVRx counts data that a link received wrong, sent again or recovered from (fields 208, 295, 215), and no symbol
errors: the link's own code corrects these, and they rise on good links.
"""
GPU_COARSENESS: Final = {
    "nvlink_effective_ber_exponent": Coarseness(0.1, floor=10.0),
    "nvlink_symbol_ber_exponent": Coarseness(0.1, floor=10.0),
    "idle_utilisation_percent": Coarseness(0.1, floor=50.0),
    "idle_sm_percent": Coarseness(0.1, floor=50.0),
    "idle_dram_percent": Coarseness(0.1, floor=50.0),
    "idle_pcie_mib_per_s": Coarseness(0.1, floor=10_240.0),
    "idle_nvlink_mib_per_s": Coarseness(0.1, floor=10_240.0),
}
"""A tenth of the reported value; near zero 5 %, 1 GiB/s, or one power of ten."""
Link = tuple[float, float]
"""PCIe generation and width."""


class PcieLinks:
    """The PCIe links that checks saw: under load, and at best since they were last taken."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loaded: dict[GpuUuid, Link] = {}
        self._under_load: defaultdict[GpuUuid, deque[Link]] = defaultdict(lambda: deque(maxlen=LOADED_CHECKS))
        self._best: dict[GpuUuid, Link] = {}

    def saw(self, checks: Iterable[GpuCheck]) -> None:
        with self._lock:
            for check in checks:
                generation = value_of(check.values, "pcie_generation")
                width = value_of(check.values, "pcie_width")
                if generation is None or width is None:
                    continue
                link = (generation, width)
                self._best[check.gpu_uuid] = max(link, self._best.get(check.gpu_uuid, link))
                if (value_of(check.values, "utilisation_percent") or 0.0) >= LOADED_PERCENT:
                    self._under_load[check.gpu_uuid].append(link)
                else:
                    self._under_load.pop(check.gpu_uuid, None)
                if len(row := self._under_load.get(check.gpu_uuid, ())) == LOADED_CHECKS:
                    self._loaded[check.gpu_uuid] = max(row)

    def loaded(self, gpu_uuid: GpuUuid) -> dict[str, float]:
        """Return the link by the names of ``GPU_STATE``; empty until the GPU was seen under load."""
        with self._lock:
            link = self._loaded.get(gpu_uuid)
        return {} if link is None else {"pcie_loaded_generation": link[0], "pcie_loaded_width": link[1]}

    def take_best(self, gpu_uuid: GpuUuid) -> dict[str, float]:
        """Return by the names of ``GPU_RATES`` the fastest link since the last call."""
        with self._lock:
            link = self._best.pop(gpu_uuid, None)
        return {} if link is None else {"pcie_generation": link[0], "pcie_width": link[1]}


def _of_link() -> RiseTeller:
    return RiseTeller(alongside=_NO_FAULT_OF_A_WINDOW)


@dataclass(slots=True)
class _OfGpu:
    state: StateTeller = field(default_factory=lambda: StateTeller(GPU_COARSENESS))
    rises: RiseTeller = field(default_factory=RiseTeller)
    links: defaultdict[int, RiseTeller] = field(default_factory=lambda: defaultdict(_of_link))
    newest: Mapping[str, float | str] = field(default_factory=dict)


class GpuTeller:
    """Events of GPUs.

    ``report`` runs in one thread; ``saw`` may get checks in another. ``sees_programs``: see ``IdleWindows``.
    """

    def __init__(self, naming: Naming, *, sees_programs: bool = True) -> None:
        self._naming = naming
        self._idle = IdleWindows(sees_programs)
        self._gpus: defaultdict[GpuUuid, _OfGpu] = defaultdict(_OfGpu)
        self.pcie = PcieLinks()

    def saw(self, checks: Iterable[GpuCheck]) -> None:
        told = tuple(checks)
        self.pcie.saw(told)
        self._idle.saw(told)

    def report(self, inspections: Iterable[GpuInspection], at_ms: int, now_s: float) -> tuple[ProbeEvent, ...]:
        """Return the events of inspections. ``at_ms`` since 1970, ``now_s`` by a clock that only grows."""
        return tuple(event for found in inspections for event in self._of(found, at_ms, now_s))

    def differing(self) -> dict[str, float]:
        """Return how many GPUs differed from most of their model at the last inspection.

        Its keys are names of ``HOST_STATE``.
        """
        return differing(gpu.newest for gpu in self._gpus.values() if gpu.newest)

    def _of(self, found: GpuInspection, at_ms: int, now_s: float) -> Iterator[ProbeEvent]:
        known = self._gpus[found.gpu_uuid]
        state = self._idle.of(found.gpu_uuid, state_of(found, self.pcie))
        known.newest = {**state, **found.words} if state else {}
        if known.state.is_due(state, now_s, found.words):
            uuid, text = found.gpu_uuid, words_text(found.words)
            yield self._naming.event(EventKind.GPU_STATE, Source.NVML, at_ms, state, gpu_uuid=uuid, text=text)
        rise = known.rises.rise(found.counters, now_s)
        best = {**found.alongside, **self.pcie.take_best(found.gpu_uuid)}
        if rise is not None:
            yield self._rose(found, rise, at_ms, _reported_alongside(rise, best))
        for link, counts in sorted(found.link_counters.items()):
            of_link = known.links[link]
            rise = of_link.rise(counts, now_s)
            if rise is not None:
                yield self._rose(found, rise, at_ms, {"link": link, "bad_windows": of_link.num_bad_windows})
        yield from self._reset(found, known, at_ms)

    def _reset(self, found: GpuInspection, known: _OfGpu, at_ms: int) -> Iterator[ProbeEvent]:
        """Yield one event for all counters that fell at this inspection: a driver's reload resets them all at once."""
        links = [known.links[link].fell for link in found.link_counters if known.links[link].fell]
        own = known.rises.fell if found.counters else frozenset()
        if own or links:
            values = {"num_counters": float(len(own) + sum(map(len, links))), "num_links": float(len(links))}
            names = ", ".join(sorted(own.union(*links)))
            yield self._naming.event(
                EventKind.COUNTER_RESET, Source.NVML, at_ms, values, gpu_uuid=found.gpu_uuid, text=names
            )

    def _rose(self, found: GpuInspection, rise: Rise, at_ms: int, alongside: dict[str, float]) -> ProbeEvent:
        values = {"window_s": rise.window_s, **rise.by, **alongside}
        return self._naming.event(EventKind.GPU_RATES, Source.NVML, at_ms, values, gpu_uuid=found.gpu_uuid)


def state_of(found: GpuInspection, pcie: PcieLinks) -> dict[str, float]:
    """Return the state to report; nothing for a GPU that did not answer."""
    if found.is_lost or found.is_late:
        return {}
    return {**pcie.loaded(found.gpu_uuid), **found.state}


def _reported_alongside(rise: Rise, alongside: dict[str, float]) -> dict[str, float]:
    """Return the link on which PCIe errors were counted, and the total of ECC errors."""
    wanted: set[str] = set()
    if any(name in rise.by for name in _PCIE):
        wanted |= {"pcie_generation", "pcie_width"}
    wanted |= {f"{name}_total" for name in _CORRECTED_ECC if name in rise.by}
    return {name: value for name, value in alongside.items() if name in wanted}
