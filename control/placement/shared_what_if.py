"""One plan for all who ask at one time what becomes of jobs that wait.

What the fleet is like is read, and planned on, once for all who asked before that began; who asks while it is under way
is told by the next one. So everybody is answered from what was read after he asked, as if he had asked alone, and a
hundred who ask at once cost two plans. Nothing is kept for later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from scheduler.explain.answer import Answer, answer
from scheduler.fleet.topology import FleetState
from scheduler.forecast.eta import Outlook
from scheduler.model import Plan, Question, WaitingJob
from scheduler.planner import plan_on


class Planned:
    """``decided``: of what was ``asked``; ``state``: as it left it. One at a time is answered: an answer tries changes
    on that state.
    """

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        self.state = FleetState(asked.gpus, asked.policy)
        self.decided: Plan = plan_on(self.state, asked.queue, asked.policy, asked.workload)
        self._outlook: Outlook | None = None
        self._one_at_a_time = Lock()

    def answer(self, job: WaitingJob, grace_s: float) -> Answer:
        """Of one that waits by the plan. Whoever asks first has the outlook made."""
        with self._one_at_a_time:
            if self._outlook is None:
                self._outlook = Outlook(self.state, self.asked, self.decided)
            return answer(self.state, self.asked, self.decided, job, grace_s, self._outlook)


@dataclass(slots=True)
class _Turn:
    """For all who asked before it began. ``found``: what came of it, once ``is_over``."""

    is_over: bool = False
    found: Planned | None = None


@dataclass(slots=True)
class _Turns:
    """One after another. ``next_one``: of those who ask now; None: nobody has yet."""

    under_way: Lock = field(default_factory=Lock)
    changing: Lock = field(default_factory=Lock)
    next_one: _Turn | None = None

    def take(self, plan: Callable[[], Planned | None]) -> Planned | None:
        """What ``plan`` of one of those gives who ask together. Where it raises, the next of them tries."""
        with self.changing:
            turn = self.next_one = self.next_one or _Turn()
        with self.under_way:
            if turn.is_over:
                return turn.found
            with self.changing:
                if self.next_one is turn:
                    self.next_one = None
            turn.found = plan()
            turn.is_over = True
            return turn.found


_turns: WeakKeyDictionary[Engine, _Turns] = WeakKeyDictionary()
_adding = Lock()


def planned_together(session: Session, question: Callable[[], Question | None]) -> Planned | None:
    """None: there is nothing to plan. ``question``: reads what the next cycle would be asked, in this session."""
    engine = session.get_bind().engine
    with _adding:
        turns = _turns.setdefault(engine, _Turns())

    def plan() -> Planned | None:
        asked = question()
        return None if asked is None else Planned(asked)

    return turns.take(plan)
