"""The slow inspection of one GPU: its states, its counters and its links' counters, within one call to its thread."""

from dataclasses import dataclass
from typing import Any

from agents.probes.nvml_counters import ALONGSIDE, read_counters, read_link_counters
from agents.probes.nvml_gpm import GpmMemory, read_idle
from agents.probes.nvml_links import LinkMemory
from agents.probes.nvml_sheet import Sheet
from agents.probes.nvml_states import InforomMemory, read_states
from agents.probes.nvml_texts import read_words


@dataclass(frozen=True, slots=True)
class Inspected:
    """Result of an inspection; the fields are as in ``interface.GpuInspection``."""

    state: dict[str, float]
    words: dict[str, str]
    counters: dict[str, float]
    link_counters: dict[int, dict[str, float]]
    alongside: dict[str, float]
    unsupported: frozenset[str]
    faults: dict[str, str]


def inspect(
    nvml: Any, handle: Any, links: LinkMemory, inforom: InforomMemory, gpm: GpmMemory, now_s: float
) -> Inspected:
    """Inspect a GPU. ``now_s``: monotonic seconds. Raises GpuLostError at the first call that reports it lost."""
    states, counts, of_links = Sheet(nvml), Sheet(nvml), Sheet(nvml)
    read_states(states, handle, links, inforom, now_s)
    read_idle(states, handle, gpm)
    read_counters(counts, handle)
    of_links.take_one("link_counters", lambda: read_link_counters(nvml, handle, links))
    return Inspected(
        state=_numbers(states.values),
        words={**read_words(nvml, handle), **links.words_of_down()},
        counters=_numbers({name: value for name, value in counts.values.items() if name not in ALONGSIDE}),
        link_counters=of_links.values.get("link_counters", {}),
        alongside=_numbers({name: value for name, value in counts.values.items() if name in ALONGSIDE}),
        unsupported=frozenset(states.unsupported | counts.unsupported | of_links.unsupported),
        faults={**states.faults, **counts.faults, **of_links.faults},
    )


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
