"""A verdict of clauses: what is done for a job is told as done to one that waits, as what would be to who only asks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.funnel import Funnel
from scheduler.model import Reason, Verdict


@dataclass(frozen=True, slots=True)
class Deed:
    """What a plan does for a job, or what hangs on it: in the words of one that waits, and of a plan only asked for."""

    done: str
    asked: str


Clause = str | Deed


def verdict_of(clauses: Sequence[Clause], through: Funnel, *done: Reason) -> Verdict:
    """``done``: what is done about it, or cannot be."""
    why = "; ".join(one.done if isinstance(one, Deed) else one for one in clauses)
    why_asked = "; ".join(one.asked if isinstance(one, Deed) else one for one in clauses)
    return Verdict(why, through.binding, (*through.reasons, *done), None if why_asked == why else why_asked)


def and_also(verdict: Verdict, told: str) -> Verdict:
    why_asked = None if verdict.why_asked is None else f"{verdict.why_asked}; {told}"
    return replace(verdict, why=f"{verdict.why}; {told}", why_asked=why_asked)
