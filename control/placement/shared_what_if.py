"""Shared what-if: one plan for all requests about pending jobs that arrived before it began.

The fleet is read, and planned on, once for all of them. A request that arrives during that is answered by the next
plan. So each answer is from data read after its request, as if the request were alone, and a hundred requests at one
time cost two plans. Nothing is kept for later.

    requests   r1   r2 r3 r4
    plans      [---- 1 ----][---- 2 ----]     plan 1 answers r1, plan 2 answers r2, r3 and r4
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakKeyDictionary

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from scheduler.explain.advice import Answer, answer
from scheduler.fleet.topology import FleetState
from scheduler.forecast.start_range import StartForecast
from scheduler.model import Plan, Question, WaitingJob
from scheduler.planner import plan_on


class Planned:
    """One plan and the state that it left. Answers are made one at a time: each tries changes on that state."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.state = FleetState(question.gpus, question.policy)
        self.decided: Plan = plan_on(self.state, question.queue, question.policy, question.workload)
        self._forecast: StartForecast | None = None
        self._one_at_a_time = Lock()

    def answer(self, job: WaitingJob, grace_s: float) -> Answer:
        """Return the answer for a job that waits by the plan. The first call computes the start forecast."""
        with self._one_at_a_time:
            if self._forecast is None:
                self._forecast = StartForecast(self.state, self.question, self.decided)
            return answer(self.state, self.question, self.decided, job, grace_s, self._forecast)


@dataclass(slots=True)
class _Turn:
    """The plan of all requests that arrived before it began. ``found``: its result, once ``is_over``."""

    is_over: bool = False
    found: Planned | None = None


@dataclass(slots=True)
class _Turns:
    """Plans one after another. ``next_one``: the plan of requests that arrive now; None: there is none yet."""

    under_way: Lock = field(default_factory=Lock)
    changing: Lock = field(default_factory=Lock)
    next_one: _Turn | None = None

    def take(self, plan: Callable[[], Planned | None]) -> Planned | None:
        """Return the result of one ``plan`` for all callers of one turn. Where it raises, the next of them tries."""
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


def plan_shared(session: Session, question: Callable[[], Question | None]) -> Planned | None:
    """Return the shared plan; None: there is nothing to plan.

    ``question`` reads the next cycle's input in this session.
    """
    engine = session.get_bind().engine
    with _adding:
        turns = _turns.setdefault(engine, _Turns())

    def plan() -> Planned | None:
        asked = question()
        return None if asked is None else Planned(asked)

    return turns.take(plan)
