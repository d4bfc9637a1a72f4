"""The words of a verdict: one sentence with rank, host, GPU, operation, frame and line."""

from collections.abc import Mapping, Sequence
from typing import Final

from watch.forensics.standing import Stand, Standing
from watch.reports import Frame, ProcessState, RankReport

_MOST_NAMED: Final = 8
_SILENT: Final = frozenset({ProcessState.STOPPED, ProcessState.ZOMBIE, ProcessState.GONE})
DOES: Final = {
    Standing.DATA_LOADER: "waits for its data loader",
    Standing.STORAGE: "waits for storage",
    Standing.GPU: "waits for its GPU",
    Standing.PYTHON: "does not return from the program's own code",
    Standing.COMPILE: "does not return from a compiler",
    Standing.STOPPED: "is stopped by a signal",
    Standing.DEAD: "has ended",
    Standing.COLLECTIVE: "waits in a collective that no other rank has entered",
    Standing.BACKWARD: "is in its backward pass and has not entered the collective of the others",
    Standing.UNKNOWN: "has not entered the collective of the others, and its stack is unknown",
}


_PLURAL: Final = {"has": "have", "waits": "wait", "is": "are", "does": "do", "reports": "report"}


def predicate(does: str, num_ranks: int) -> str:
    """Return the predicate in the number of its subject: ``has ended``, ``have ended``."""
    verb, _, rest = does.partition(" ")
    return does if num_ranks == 1 else f"{_PLURAL.get(verb, verb)} {rest}"


def rank_words(ranks: Sequence[int]) -> str:
    """Return ranks as text: ``rank 3``, ``ranks 0, 1 and 3``, or the first few and a count."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        return f"ranks {', '.join(map(str, ranks[:_MOST_NAMED]))} and {len(ranks) - _MOST_NAMED} others"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place_words(ranks: Sequence[int], node: str, gpu: str) -> str:
    """Return the subject of a sentence: ``Rank 1 on node-a (GPU-…)``."""
    named = rank_words(ranks)
    on = f" on {node}" if node else ""
    return f"{named[0].upper()}{named[1:]}{on}{f' ({gpu})' if gpu else ''}"


def span_words(span_s: float) -> str:
    """Return a span as text: ``6 h``, ``45 min``, ``20 s``."""
    if span_s >= 7_200:
        return f"{span_s / 3600:.0f} h"
    return f"{span_s / 60:.0f} min" if span_s >= 120 else f"{span_s:.0f} s"


def frame_words(frame: Frame | None) -> str:
    """Return a frame as text: `` in encode (/app/bpe.py:77)``; empty if there is none."""
    if frame is None:
        return ""
    place = f"{frame.file}:{frame.line}" if frame.file and frame.line else frame.file
    return f" in {frame.function}{f' ({place})' if place else ''}"


def moment_words(rank: RankReport | None) -> str:
    """Return step and phase of a rank as text, if it has any. One that cannot report may have done further steps."""
    if rank is None or not rank.step:
        return ""
    if rank.process in _SILENT:
        return f"; its last report was at step {rank.step}, phase {rank.phase}"
    return f" at step {rank.step}, phase {rank.phase}"


def waits_words(waiting: Sequence[int], collective: str) -> str:
    """Return the ranks that wait, and the collective."""
    if not waiting:
        return ""
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"; {rank_words(waiting)} {verb}{f' in {collective}' if collective else ' for it'}"


def rank_evidence(node: str, rank: RankReport, stand: Stand) -> str:
    """Return the state of a rank as one line of evidence."""
    parts = [f"rank {rank.rank}{f' on {node}' if node else ''}: {stand.why}"]
    if rank.process != "unknown":
        parts.append(f"process {rank.process}")
    if rank.cpu_share is not None:
        parts.append(f"{rank.cpu_share:.2f} of a core")
    if rank.still_s:
        parts.append(f"no progress for {rank.still_s:.0f} s")
    if rank.busy_quiet_s is not None and rank.busy_quiet_s > rank.still_s:
        parts.append(f"nothing but processor time for {rank.busy_quiet_s:.0f} s")
    parts.append(f"phase {rank.phase}, step {rank.step}")
    if rank.stack:
        frames = " < ".join(_frame(each) for each in rank.stack[:6])
        parts.append(f"stack ({rank.stack_source}): {frames}")
    return "; ".join(parts)


_GPU_READINGS: Final = (
    ("utilisation", "utilisation {:.0f} %"),
    ("tensor_active_percent", "tensor cores active {:.0f} %"),
    ("power_w", "{:.0f} W"),
    ("temperature_c", "{:.0f} °C"),
    ("sm_clock_mhz", "{:.0f} MHz"),
)
_MOST_PORTS: Final = 3


def readings_evidence(node: str, rank: RankReport, readings: Mapping[str, float]) -> list[str]:
    """Return the readings of the rank's GPU, and the ports of its host whose retries grew, as lines of evidence."""
    found = gpu_evidence(rank, readings)
    ports = sorted((-value, name.split(".")) for name, value in readings.items() if name.startswith("port."))
    for value, parts in ports[:_MOST_PORTS]:
        port, counter = ".".join(parts[1:-1]), parts[-1]
        found.append(f"port {port}{f' of {node}' if node else ''}: {counter} grew by {-value:g} in the last minutes")
    return found


def gpu_evidence(rank: RankReport, readings: Mapping[str, float]) -> list[str]:
    """Return the readings of the rank's GPU as one line of evidence, if there are any."""
    of_gpu = [(readings.get(f"gpu.{rank.gpu}.{name}"), words) for name, words in _GPU_READINGS] if rank.gpu else []
    known = [words.format(value) for value, words in of_gpu if value is not None]
    return [f"GPU of rank {rank.rank} ({rank.gpu}): {', '.join(known)}"] if known else []


def _frame(frame: Frame) -> str:
    return f"{frame.function} {frame.file}:{frame.line}" if frame.line else frame.function
