"""Whether a pass of the judge or of the burn-ins may find work: one statement on small indexes, for one round trip.

The control worker asks this before each pass. Most passes find nothing, and their own transactions cost ten times as
much. Each condition is wider than the pass's own: an unneeded pass costs milliseconds, but a pass that is left out
leaves work undone.
"""

from typing import Final, NamedTuple

from control.core.unit_of_work import UnitOfWorkFactory

_JUDGE: Final = """
    SELECT EXISTS (SELECT FROM gpu_signals WHERE judged_at IS NULL)
        OR EXISTS (SELECT FROM gpus WHERE judge_at <= %(now)s) AS to_judge,
        EXISTS (SELECT FROM attempts WHERE state <> 'ENDED') AS to_evacuate
"""
_BURN_INS: Final = """
    SELECT EXISTS (SELECT FROM burn_ins WHERE state IN ('ORDERED', 'RUNNING', 'MEASURED'))
        OR EXISTS (SELECT FROM burn_ins WHERE state = 'JUDGED' AND open_bands <> '[]')
        OR EXISTS (SELECT FROM gpus WHERE standing = 'UNPROVEN')
        OR EXISTS (SELECT FROM verdicts WHERE burn_in_next_at <= %(now)s) AS is_pending
"""


class JudgesWork(NamedTuple):
    """The parts of the judge's pass that may find work."""

    to_judge: bool
    """A signal is not judged yet, or a GPU is due."""
    to_evacuate: bool
    """An attempt has not ended."""


def judges_work(units: UnitOfWorkFactory) -> JudgesWork:
    """Return which parts of the judge's pass may find work now. Raises ``UnavailableError``."""
    (row,) = units.ask(_JUDGE, {"now": units.clock()})
    return JudgesWork(row.to_judge, row.to_evacuate)


def has_burn_ins(units: UnitOfWorkFactory) -> bool:
    """Return whether a burn-in is open or undecided, a GPU is UNPROVEN, or a verdict asks for a burn-in.

    Raises:
        UnavailableError: the database does not answer.
    """
    (row,) = units.ask(_BURN_INS, {"now": units.clock()})
    return bool(row.is_pending)
