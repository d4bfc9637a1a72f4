"""The cause of a straggler, by the part of its additional time that a reading explains.

| cause | readings |
|---|---|
| data | the wait for batches; the time that its process waited for the disk |
| host | ready without a processor, garbage collection, other threads of its process, time stolen by other machines |
| gpu | a lower clock than its peers', or a throttle reason that they do not have |
| compute | none of these: it computes longer |

Readings overlap. The wait for a batch is all the time from a step's begin to the model's call, with whatever delays the
main thread in it. So where the main thread had no processor, or collected garbage, for about as long as the wait for
data became longer, that is the cause. A loader that sleeps or waits for a disk shows neither. Other threads are no such
sign: a loader may compute in them while the main thread waits. If nearly all of the additional time is the wait for
data, they count as the loader's, since a thread that hinders training lengthens its passes too.

Garbage collection and other threads are of the rank's own process: they cause no swap of its host. Network and
imbalance are no causes of a straggler: see ``judge``.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.policy.stragglers import StragglerPolicy
from watch.stragglers.compare import Compared
from watch.stragglers.windows import SIGNALS, Window

CLOCK: Final = "clock_mhz"
TEMPERATURE: Final = "temperature_c"
_FEW_BYTES: Final = 1e6
_WHOLE: Final = 0.8
THROTTLE: Final = "throttle"
"""Readings of GPUs: 1 if a reason of heat or power lowers the clock, else 0."""
_READING_WORDS: Final[Mapping[str, Callable[[float, float], str]]] = {
    "cpu_wait_s": lambda own, usual: f"ready without a processor for {own:.3f} s a step, usual {usual:.3f} s",
    "gc_s": lambda own, usual: f"garbage collection {own:.3f} s a step, usual {usual:.3f} s",
    "threads_s": lambda own, usual: f"other threads of its process computed {own:.3f} s a step, usual {usual:.3f} s",
    "io_wait_s": lambda own, usual: f"waited for the disk for {own:.3f} s a step, usual {usual:.3f} s",
    "steal_share": lambda own, usual: f"stolen processor time {own:.1%}, usual {usual:.1%}",
    "switches_per_s": lambda own, usual: f"involuntary switches {own:.0f}/s, usual {usual:.0f}/s",
    "read_bytes_per_s": lambda own, usual: f"read {own / 1e6:.1f} MB/s, usual {usual / 1e6:.1f} MB/s",
    "data_s": lambda own, usual: f"data {own:.3f} s a step, usual {usual:.3f} s",
    "memory_mib": lambda own, usual: f"memory {own:.0f} MiB, usual {usual:.0f} MiB",
}


class StragglerCause(StrEnum):
    """The cause of a verdict of kind straggler."""

    COMPUTE = "compute"
    DATA = "data"
    HOST = "host"
    GPU = "gpu"
    NETWORK = "network"
    IMBALANCE = "imbalance"


@dataclass(frozen=True, slots=True)
class Explained:
    """A cause with its evidence. ``memory_ratio``: the rank's memory over the usual one; None if unknown.

    ``is_of_process``: garbage collection or other threads of the rank's own process, as of its loader, so its program
    may be the cause.
    ``is_whole``: readings make up nearly all of the additional time, so its own computation is as long as before.
    """

    cause: StragglerCause
    evidence: tuple[str, ...]
    memory_ratio: float | None
    is_of_process: bool
    is_whole: bool


def explain(
    slow: Sequence[Compared],
    others: Sequence[Window],
    readings: Mapping[str, float],
    of_others: Sequence[Mapping[str, float]],
    rules: StragglerPolicy,
) -> Explained:
    """Explain the windows in which a rank was slow.

    ``others``: windows of its peers over the same steps, or of its own past. ``readings`` and ``of_others``: of their
    GPUs; empty where there are none.
    """
    own = _means([each.window for each in slow])
    usual = _medians(others)
    excess_s = statistics.fmean(each.excess_s for each in slow)
    own_s, usual_s = (statistics.fmean(values) for values in zip(*((x.own_s, x.usual_s) for x in slow), strict=True))
    more = {name: max(own[name] - usual.get(name, 0.0), 0.0) for name in own}
    explained = {
        **_by_parts(more, own_s, excess_s),
        StragglerCause.GPU: _by_clock(readings, of_others) * usual_s,
    }
    cause = max(explained, key=lambda each: explained[each])
    if explained[cause] < rules.cause_share * excess_s:
        is_throttled = bool(readings.get(THROTTLE)) and not any(each.get(THROTTLE) for each in of_others)
        cause = StragglerCause.GPU if is_throttled else StragglerCause.COMPUTE
    evidence = [
        words(own[name], usual.get(name, 0.0))
        for name, words in _READING_WORDS.items()
        if name in own and (more[name] > _share_of(name, excess_s, usual) or name == "data_s")
    ]
    memory = own["memory_mib"] / usual["memory_mib"] if own.get("memory_mib") and usual.get("memory_mib") else None
    of_process_s = more.get("threads_s", 0.0) + more.get("gc_s", 0.0)
    is_of_process = cause in {StragglerCause.HOST, StragglerCause.DATA} and of_process_s >= rules.cause_share * excess_s
    is_whole = cause is StragglerCause.GPU or explained.get(cause, 0.0) >= _WHOLE * excess_s
    return Explained(cause, (*evidence, *_of_gpu(readings, of_others)), memory, is_of_process, is_whole)


def _by_parts(more: Mapping[str, float], own_s: float, excess_s: float) -> dict[StragglerCause, float]:
    """Return the seconds of a step that its host and its data explain. ``more``: by how much each reading is higher."""
    data_s, threads_s = more.get("data_s", 0.0), more.get("threads_s", 0.0)
    delayed_s = max(more.get("cpu_wait_s", 0.0) + more.get("gc_s", 0.0), more.get("steal_share", 0.0) * own_s)
    if delayed_s >= _WHOLE * data_s:
        data_s = 0.0  # of the main thread, so within the wait
    elif data_s >= _WHOLE * excess_s:
        threads_s = 0.0  # of the loader
    return {
        StragglerCause.HOST: max(delayed_s, threads_s),
        StragglerCause.DATA: max(data_s, more.get("io_wait_s", 0.0)),
    }


def _share_of(name: str, excess_s: float, usual: Mapping[str, float]) -> float:
    """Return from which difference on a reading is worth a line: a tenth of the additional time, or of the usual."""
    if name == "read_bytes_per_s":
        return max(0.1 * usual.get(name, 0.0), _FEW_BYTES)
    return 0.1 * (excess_s if name.endswith("_s") and "_per_" not in name else usual.get(name, 0.0))


def _means(windows: Sequence[Window]) -> dict[str, float]:
    """Return the means of the readings that each window has."""
    names = [name for name in (*SIGNALS, "data_s", "memory_mib") if all(name in window.means for window in windows)]
    return {name: statistics.fmean(window.means[name] for window in windows) for name in names}


def _medians(windows: Sequence[Window]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for window in windows:
        for name, value in window.means.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def _by_clock(readings: Mapping[str, float], of_others: Sequence[Mapping[str, float]]) -> float:
    """Return the share by which a step gets longer since this GPU's clock is lower than the others'."""
    clock, usual = readings.get(CLOCK), _usual(CLOCK, of_others)
    return usual / clock - 1 if clock and usual and clock < usual else 0.0


def _of_gpu(readings: Mapping[str, float], of_others: Sequence[Mapping[str, float]]) -> list[str]:
    found = []
    for name, unit in ((CLOCK, "clock {:.0f} MHz"), (TEMPERATURE, "temperature {:.0f} °C")):
        value, usual = readings.get(name), _usual(name, of_others)
        if value is not None and usual is not None:
            found.append(f"GPU {unit.format(value)}, usual {usual:.0f}")
    if readings.get(THROTTLE):
        found.append("a throttle reason of heat or power is active on its GPU")
    return found


def _usual(name: str, of_others: Sequence[Mapping[str, float]]) -> float | None:
    values = [each[name] for each in of_others if name in each]
    return statistics.median(values) if values else None
