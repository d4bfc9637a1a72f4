"""The steps of each attempt by the simulator's timeline, and when the control plane receives their reports.

Some hosts have no contact for hours. Reports of that time come once the host is back, or are lost with its disk.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Final, NamedTuple

from simulator.month.history import HOUR_MS, SAVES, STEP_S, Attempt, History, by_job

_STEP_MS: Final = STEP_S * 1000
_RESTART_MS: Final = round(SAVES.restart_s * 1000)
_STALL_MS: Final = round(SAVES.stall_s * 1000)
_STEPS_A_SAVE: Final = round(SAVES.every_s) // STEP_S
SILENT_EVERY_DAYS: Final = 10
"""Mean days between two times in which a node has no contact."""
LONGEST_H: Final = 4
"""Most hours without contact: fewer than a spool keeps."""


class Step(NamedTuple):
    """One step of one attempt, by its number in the job. ``save_ms``: the save at its end, within its time."""

    number: int
    start_ms: int
    end_ms: int
    save_ms: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A node without contact. ``is_lost``: what is reported in that time never comes."""

    node: int
    start_ms: int
    end_ms: int
    is_lost: bool


def silences_of(history: History, seed: int) -> tuple[Silence, ...]:
    """Return the silences of all nodes; silences of one node do not overlap. One in two loses its reports."""
    chance = Random(f"silences {seed}")  # noqa: S311  # a simulation
    found: list[Silence] = []
    for node in range(history.shape.num_nodes):
        at_ms = 0
        while True:
            at_ms += 1 + round(chance.expovariate(1 / SILENT_EVERY_DAYS) * 24 * HOUR_MS)
            end_ms = at_ms + chance.randrange(HOUR_MS // 6, LONGEST_H * HOUR_MS)
            if end_ms >= history.until_ms:
                break
            found.append(Silence(node, at_ms, end_ms, is_lost=chance.random() < 0.5))
            at_ms = end_ms
    return tuple(sorted(found, key=lambda one: (one.start_ms, one.node)))


def steps_of(history: History, attempt: Attempt) -> list[Step]:
    """Return the steps that the attempt did as a whole."""
    over_ms = history.until_ms if attempt.end_ms is None else attempt.end_ms
    last = history.num_steps(attempt.job)
    at_ms = attempt.start_ms + (_RESTART_MS if attempt.number > 1 else 0)
    found: list[Step] = []
    for number in range(attempt.first_step, last + 1):
        is_saved = (number - attempt.first_step + 1) % _STEPS_A_SAVE == 0 and number < last
        save_ms = _STALL_MS if is_saved else 0
        end_ms = at_ms + _STEP_MS + save_ms
        if end_ms > over_ms:
            break
        found.append(Step(number, at_ms, end_ms, save_ms))
        at_ms = end_ms
    return found


class Reports:
    """All steps of a history, and what of them is known when. Rank 0 of an attempt is on the first of its nodes."""

    def __init__(self, history: History, silences: Sequence[Silence]) -> None:
        self.history, self.silences = history, silences
        self.steps = {one.attempt_id: steps_of(history, one) for one in history.attempts}
        self._of_node: dict[int, list[Silence]] = {}
        for silence in silences:
            self._of_node.setdefault(silence.node, []).append(silence)
        self.known_ms = {
            one.attempt_id: [self._known_ms(one.nodes[0], step.end_ms) for step in self.steps[one.attempt_id]]
            for one in history.attempts
        }

    def _known_ms(self, node: int, done_ms: int) -> int | None:
        """Return when a step is known that was done at that time; None: never."""
        for silence in self._of_node.get(node, ()):
            if silence.start_ms <= done_ms < silence.end_ms:
                return None if silence.is_lost else silence.end_ms
        return done_ms

    def known(self, attempt_id: str, at_ms: int) -> list[Step]:
        """Return the steps of which the control plane knows at a time."""
        steps = zip(self.steps[attempt_id], self.known_ms[attempt_id], strict=True)
        return [step for step, known_ms in steps if known_ms is not None and known_ms <= at_ms]

    def lost(self, attempt_id: str) -> list[Step]:
        steps = zip(self.steps[attempt_id], self.known_ms[attempt_id], strict=True)
        return [step for step, known_ms in steps if known_ms is None]

    @cached_property
    def marked(self) -> frozenset[tuple[int, int]]:
        """Return each GPU and hour that a gap marker covers.

        They are: hosts without contact; all hosts of an attempt whose steps are lost, for as long as these steps took;
        and later attempts of that job, while they do the lost steps again: their first execution is not known.
        """
        found: set[tuple[int, int]] = set()
        size = self.history.shape.num_gpus // self.history.shape.num_nodes
        for silence in self.silences:
            gpus = range(silence.node * size, (silence.node + 1) * size)
            found.update(_cells(gpus, silence.start_ms, silence.end_ms))
        for own in by_job(self.history.attempts).values():
            lost: set[int] = set()
            for attempt in own:
                gone = self.lost(attempt.attempt_id)
                again = [step for step in self.steps[attempt.attempt_id] if step.number in lost]
                for step in (*gone, *again):
                    found.update(_cells(attempt.gpus, step.start_ms, step.end_ms))
                if gone and len(gone) == len(self.steps[attempt.attempt_id]):
                    over_ms = self.history.until_ms if attempt.end_ms is None else attempt.end_ms
                    found.update(_cells(attempt.gpus, attempt.start_ms, over_ms))
                lost.update(step.number for step in gone)
        return frozenset(found)


def _cells(gpus: Iterable[int], start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    hours = range(start_ms // HOUR_MS, -(-end_ms // HOUR_MS))
    return [(gpu, hour) for gpu in gpus for hour in hours]
