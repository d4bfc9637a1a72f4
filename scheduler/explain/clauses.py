"""Verdicts made of clauses, each with a text for a pending job and one for a plan that is only asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from scheduler.explain.exclusions import Funnel
from scheduler.model import Reason, Verdict


@dataclass(frozen=True, slots=True)
class ClausePair:
    """A clause about an action for a job, or about a condition of it.

    ``done``: the text for a pending job; ``conditional``: the text for a plan that is only asked for.
    """

    done: str
    conditional: str


Clause = str | ClausePair


def verdict_of(clauses: Sequence[Clause], through: Funnel, *done: Reason) -> Verdict:
    """Return the verdict of the clauses. ``done``: reasons about what the plan does, or cannot do."""
    why, why_asked = "; ".join(map(_done, clauses)), "; ".join(map(_conditional, clauses))
    return Verdict(why, through.binding, (*through.reasons, *done), None if why_asked == why else why_asked)


def and_also(verdict: Verdict, clause: Clause) -> Verdict:
    why_asked = None
    if isinstance(clause, ClausePair) or verdict.why_conditional is not None:
        why_asked = f"{verdict.why_conditional or verdict.why}; {_conditional(clause)}"
    return replace(verdict, why=f"{verdict.why}; {_done(clause)}", why_conditional=why_asked)


def _done(clause: Clause) -> str:
    return clause.done if isinstance(clause, ClausePair) else clause


def _conditional(clause: Clause) -> str:
    return clause.conditional if isinstance(clause, ClausePair) else clause


def moment(at_ms: int) -> str:
    """Return the time in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
