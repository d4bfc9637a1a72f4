"""Failures that ``muster simulate`` plays, from its options."""

import math
from typing import Final

from muster.cli.framework.exits import CommandError, Exit
from simulator.traces.failing import NO_FAILURES, PUBLISHED_RATES, Checkpoints, Failures

MOST_RATE: Final = 100_000.0
"""Most failures of 1,000 nodes a day: each node fails a hundred times."""


def requested_failures(
    rate: str, *, every_s: float | None, stall_s: float | None, restart_s: float | None, repair_s: float | None
) -> Failures:
    """Return the failures; an option that is not given has the default of ``Failures``.

    Raises CommandError: a value is not accepted, or an option has no effect without failures.
    """
    asked = {
        "--checkpoint-every": every_s,
        "--checkpoint-stall": stall_s,
        "--restart": restart_s,
        "--repair": repair_s,
    }
    told = {option: value for option, value in asked.items() if value is not None}
    per_1000_node_days = _rate(rate)
    if per_1000_node_days == 0:
        without = sorted(told.keys() - {"--restart"})
        if without:
            raise CommandError(f"{without[0]} has no effect without failures", "Name --failures too.", Exit.USAGE)
        saves = Checkpoints(
            every_s=NO_FAILURES.checkpoints.every_s,
            stall_s=0.0,
            restart_s=told.get("--restart", NO_FAILURES.checkpoints.restart_s),
        )
        return Failures(0.0, checkpoints=saves)
    usual = Failures(per_1000_node_days)
    return Failures(
        per_1000_node_days,
        told.get("--repair", usual.repair_s),
        Checkpoints(
            told.get("--checkpoint-every", usual.checkpoints.every_s),
            told.get("--checkpoint-stall", usual.checkpoints.stall_s),
            told.get("--restart", usual.checkpoints.restart_s),
        ),
    )


def document_of(failures: Failures) -> dict[str, float | None]:
    """Return the failures for a document: null for saves if nothing is saved, since nothing fails."""
    saves = failures.checkpoints
    return {
        "per_1000_node_days": failures.per_1000_node_days,
        "repair_s": failures.repair_s,
        "checkpoint_every_s": saves.every_s if math.isfinite(saves.every_s) else None,
        "checkpoint_stall_s": saves.stall_s,
        "restart_s": saves.restart_s,
    }


def _rate(text: str) -> float:
    if text in PUBLISHED_RATES:
        return PUBLISHED_RATES[text]
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= MOST_RATE:
        names = ", ".join(PUBLISHED_RATES)
        raise CommandError(
            f"--failures {text!r} is no rate", f"Say 0 to {MOST_RATE:,.0f} of 1,000 node-days, or {names}.", Exit.USAGE
        )
    return rate
