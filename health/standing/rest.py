"""A guard against a bug of the rules: a GPU that they move to and fro without end.

The rules come to rest, since a burn-in answers only what was seen before it began (``health.standing.standing``). If
they did not, each round of the judge would move the GPU again, with events and with jobs that come and lose it. So the
judge asks here before each move that brings a GPU back. A move that lowers it is never refused: the GPU stays out.
"""

from typing import Final

from health.standing.gpu_case import RULE, GpuCase, Move
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing

MOVES_IN_A_LOOP: Final = 6
LOOP_MS: Final = 60_000
"""Rules that made ``MOVES_IN_A_LOOP`` moves of one GPU within this time, or a shorter ``raise_dwell_s``, do not rest.

Without new proof they only lower a GPU, in at most three moves, or wait for ``raise_dwell_s`` and longer.
"""
_RAISED: Final = frozenset({Standing.PROBATION, Standing.HEALTHY})


class RestlessRulesError(RuntimeError):
    """The rules move a GPU to and fro without new proof: a bug in Muster."""


def require_rest(gpu: GpuCase, next_move: Move, policy: HealthPolicy) -> None:
    """Check that the rules do not move the GPU to and fro.

    The same stays true until a burn-in has ended or a person has moved the GPU: time alone does not start it again.

    Raises:
        RestlessRulesError: the last moves of a GPU, in quick succession, were by rules, and this one would raise it.
    """
    last = gpu.moves[-MOVES_IN_A_LOOP:]
    if next_move.to_standing not in _RAISED or len(last) < MOVES_IN_A_LOOP:
        return
    first_ms, last_ms = last[0].at_ms, last[-1].at_ms
    is_slow = last_ms - first_ms > min(LOOP_MS, policy.standing.raise_dwell_s * 1000)
    is_proved = any(each.ended_ms >= first_ms for each in gpu.burn_ins)
    if is_slow or is_proved or any(each.actor != RULE for each in last):
        return
    path = " → ".join([*(each.from_standing for each in last), next_move.from_standing, next_move.to_standing])
    message = f"the rules do not come to rest: {len(last)} moves in {(last_ms - first_ms) / 1000:g} s ({path})"
    raise RestlessRulesError(message)
