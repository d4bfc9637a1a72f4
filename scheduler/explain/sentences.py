"""Verdicts made of clauses, each with a text for a pending job and one for a plan that is only asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.explain.funnel import Funnel
from scheduler.model import Reason, Verdict


@dataclass(frozen=True, slots=True)
class Deed:
    """A clause about an action for a job, or about a condition of it.

    ``done``: the text for a pending job; ``asked``: the text for a plan that is only asked for.
    """

    done: str
    asked: str


Clause = str | Deed


def verdict_of(clauses: Sequence[Clause], through: Funnel, *done: Reason) -> Verdict:
    """Return the verdict of the clauses. ``done``: reasons about what the plan does, or cannot do."""
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
