"""A verdict of clauses: what is done for a job is told as done to one that waits, as what would be to who only asks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.explain.funnel import Funnel
from scheduler.model import Reason, Verdict


@dataclass(frozen=True, slots=True)
class Deed:
    """What a plan does for a job, or what hangs on it: in the words of one that waits, and of a plan only asked for."""

    done: str
    asked: str


Clause = str | Deed


def verdict_of(clauses: Sequence[Clause], through: Funnel, *done: Reason) -> Verdict:
    """``done``: what is done about it, or cannot be."""
    why, why_asked = "; ".join(map(_done, clauses)), "; ".join(map(_asked, clauses))
    return Verdict(why, through.binding, (*through.reasons, *done), None if why_asked == why else why_asked)


def and_also(verdict: Verdict, told: Clause) -> Verdict:
    why_asked = None
    if isinstance(told, Deed) or verdict.why_asked is not None:
        why_asked = f"{verdict.why_asked or verdict.why}; {_asked(told)}"
    return replace(verdict, why=f"{verdict.why}; {_done(told)}", why_asked=why_asked)


def _done(clause: Clause) -> str:
    return clause.done if isinstance(clause, Deed) else clause


def _asked(clause: Clause) -> str:
    return clause.asked if isinstance(clause, Deed) else clause
